"""The settings of webhooks, and what they cost a stack without them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import yaml
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.feature import Feature, Stack
from llama_stack_responses.features.webhooks.feature import open_feature
from llama_stack_responses.features.webhooks.settings import SETTINGS, Webhooks
from llama_stack_responses.features.webhooks.signing import new_secret
from tests.support.snippets import blocks

URL: Final = "https://hooks.example.com/openai"


def endpoints(*given: dict[str, Any]) -> Webhooks:
    return Webhooks.model_validate({"endpoints": given})


def test_documented_block_is_valid() -> None:
    text = blocks()["docs/guides/webhooks.md, For all users, yaml"].text
    given = yaml.safe_load(text.replace("${env.WEBHOOK_SECRET}", new_secret()))
    settings = SETTINGS.of(ResponsesConfig.model_validate(given))
    assert settings
    assert [(each.url, len(each.events)) for each in settings.endpoints] == [(URL, 2)]


@pytest.mark.parametrize(
    "secret",
    ["", "secret", "whsec_", "whsec_###", "whsec_c2hvcnQ=", "xwhsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="],
)
def test_secret_without_the_form_of_standard_webhooks_is_refused(secret: str) -> None:
    with pytest.raises(ValidationError, match="openssl rand -base64 32"):
        endpoints({"url": URL, "secret": secret})


def test_two_endpoints_with_one_url_are_refused() -> None:
    with pytest.raises(ValidationError, match="the same 'url'"):
        endpoints({"url": URL, "secret": new_secret()}, {"url": URL, "secret": new_secret()})


def test_stack_without_settings_has_nothing_of_webhooks() -> None:
    assert open_feature(cast("Stack", SimpleNamespace(config=ResponsesConfig()))) == Feature()


def test_stack_without_settings_imports_nothing_of_webhooks() -> None:
    code = (
        "import sys, llama_stack_responses.features.webhooks.feature, llama_stack_responses.features.webhooks.settings;"
        "print([name for name in sys.modules if name.startswith('llama_stack_responses.features.webhooks.')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    names = {name.rpartition(".")[2] for name in yaml.safe_load(loaded.stdout)}
    assert names == {"feature", "settings"}
