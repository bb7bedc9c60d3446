"""Names in a stack's configuration that the host would not find when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.config.provider_names import ProviderNames
from llama_stack_responses.config.wrong_settings import wrong_settings

ROOT: Final = Path(__file__).parents[3]
STACK: Final = """\
apis: [inference, responses, files]
providers:
  inference:
  - provider_id: ${env.URL:+local}
    provider_type: remote::openai-chat
    module: ours==1.0
  files:
  - {provider_id: files, provider_type: inline::localfs}
  responses:
  - provider_id: responses
    provider_type: inline::kv
    module: ours
"""
NAMES: Final = ProviderNames(
    apis=["inference", "responses", "files", "safety"],
    types=lambda api: ["inline::localfs"] if api == "files" else [],
    modules={"ours": ["inline::kv", "remote::openai-chat"]},
    packages=["ours", "absent"],
    has_module=lambda module: module == "theirs",
)


def said(text: str, **environment: str) -> list[str]:
    """Return what is said of a file."""
    return list(wrong_settings(text, lambda *_: None, environment, names=NAMES))


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        (
            "inline::kv",
            "inline::kw",
            "line 11: 'providers.responses.0.provider_type': the module 'ours' has no provider type 'inline::kw'; "
            "did you mean 'inline::kv'?",
        ),
        (
            "\n    module: ours\n",
            "\n",
            "line 11: 'providers.responses.0.provider_type': 'module: ours' is missing beside this type.",
        ),
        (
            "module: ours\n",
            "module: our\n",
            "line 12: 'providers.responses.0.module': no provider is installed in the module 'our'; "
            "did you mean 'ours'?",
        ),
        (
            "module: ours\n",
            "module: absent\n",
            "line 12: 'providers.responses.0.module': no provider is installed in the module 'absent'.",
        ),
        (
            "inline::localfs",
            "inline::localfz",
            "line 8: 'providers.files.0.provider_type': the host has no provider type 'inline::localfz'; "
            "did you mean 'inline::localfs'?",
        ),
        (
            "apis: [inference, responses,",
            "apis: [inference, responses, fils,",
            "line 1: 'apis.2': the host has no API 'fils'; did you mean 'files'?",
        ),
        ("  files:\n", "  fils:\n", "line 7: 'providers.fils': the host has no API 'fils'; did you mean 'files'?"),
        ("responses, files", "files", "line 1: 'apis': 'responses' is missing here, so that its provider does not"),
    ],
)
def test_name_that_the_host_does_not_find_is_said_with_its_line(right: str, wrong: str, sentence: str) -> None:
    assert right in STACK
    [found] = said(STACK.replace(right, wrong))
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    "text",
    [
        STACK,
        STACK.replace("module: ours\n", "module: theirs\n"),
        STACK.replace("remote::openai-chat", "remote::disabled"),
        STACK.replace("inline::localfs", "inline::other") + "external_providers_dir: /providers\n",
        STACK.replace("files]", "other]") + "external_apis_dir: /apis\n",
        STACK.replace("apis: [inference, responses, files]\n", ""),
    ],
)
def test_names_that_the_host_may_find_are_not_named(text: str) -> None:
    assert said(text) == []


def test_type_of_an_enabled_provider_is_checked() -> None:
    [found] = said(STACK.replace("remote::openai-chat", "remote::openai-chad"), URL="http://localhost")
    assert "did you mean 'remote::openai-chat'?" in found
