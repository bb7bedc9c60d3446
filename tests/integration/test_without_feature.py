"""A stack runs without any one feature: its folder is taken out of the package, and nothing else is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

import llama_stack_responses
from llama_stack_responses.core.discovery import feature_names
from tests.support.script import reply, text
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream
from tests.support.variants import responses_config, variant

Json = dict[str, Any]

pytestmark = pytest.mark.live

SETTINGS: Final[dict[str, tuple[str, Any]]] = {
    "code": ("code_interpreter", {"folder": "/containers"}),
    "images": ("image_generation", {"url": "http://localhost/v1"}),
    "keys": ("keys", {}),
    "moderation": ("moderation", {}),
    "page": ("ui", False),
    "usage": ("usage", {}),
}
"""The setting of each feature that has one, with a value."""

REFUSED: Final[dict[str, tuple[Json, str, str, str]]] = {
    "code": (
        {"tools": [{"type": "code_interpreter", "container": ""}]},
        "tools[0].type",
        "unsupported_value",
        "This stack has no provider for tools of the type 'code_interpreter'. Its operator can configure one, or leave "
        "such tools out with the setting 'unavailable_tools: {code_interpreter: omit}': see docs/guides/tools.md.",
    ),
    "file_search": (
        {"tools": [{"type": "file_search", "vector_store_ids": "which the feature would refuse"}]},
        "tools[0].type",
        "unsupported_value",
        "This stack has no provider for tools of the type 'file_search'. Its operator can configure one, or leave such "
        "tools out with the setting 'unavailable_tools: {file_search: omit}': see docs/guides/tools.md.",
    ),
    "images": (
        {"tools": [{"type": "image_generation", "size": "which the feature would refuse"}]},
        "tools[0].type",
        "unsupported_value",
        "This stack has no provider for tools of the type 'image_generation'. Its operator can configure one, or leave "
        "such tools out with the setting 'unavailable_tools: {image_generation: omit}': see docs/guides/tools.md.",
    ),
    "moderation": (
        {"extra_body": {"moderation": {"model": "m"}}},
        "moderation",
        "unsupported_parameter",
        "Unsupported parameter: 'moderation' needs a moderation provider, and this stack has none. Its operator can add "
        "a safety provider, or set 'moderation.url' in the configuration of the responses provider.",
    ),
    "programs": (
        {"tools": [{"type": "programmatic_tool_calling"}] * 2},
        "tools[0].type",
        "unsupported_value",
        "This stack has no provider for tools of the type 'programmatic_tool_calling'. Its operator can configure one, or "
        "leave such tools out with the setting 'unavailable_tools: {programmatic_tool_calling: omit}': see "
        "docs/guides/tools.md.",
    ),
    "web_search": (
        {"tools": [{"type": "web_search_preview", "search_context_size": "which the feature would refuse"}]},
        "tools[0].type",
        "unsupported_value",
        "This stack has no provider for tools of the type 'web_search_preview'. Its operator can configure one, or leave "
        "such tools out with the setting 'unavailable_tools: {web_search: omit}': see docs/guides/tools.md.",
    ),
}
"""A request that needs the feature, and the parameter, code and message of its refusal."""

COMMANDS: Final = {
    "admin": ("list", "init, import, doctor, keys, usage"),
    "doctor": (
        "doctor",
        "init, import, list, show, chain, tail, stats, queue, profiles, audit, delete, sweep, "
        "export, backup, restore, recover, secret, keys, usage",
    ),
    "keys": (
        "keys",
        "init, import, list, show, chain, tail, stats, queue, profiles, audit, delete, sweep, "
        "export, backup, restore, recover, secret, doctor, usage",
    ),
    "usage": (
        "usage",
        "init, import, list, show, chain, tail, stats, queue, profiles, audit, delete, sweep, "
        "export, backup, restore, recover, secret, doctor, keys",
    ),
}
"""A command that the feature brings, and the commands of an installation without the feature."""

PATHS: Final = {"page": ("/ui", "/v1/ui/session")}
"""Paths of routes that the feature brings."""

REPLAY: Final = """
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.response import new_response

item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AA=="}
response = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=1)
response |= {"status": "completed", "completed_at": 2, "output": [item], "moderation": None}
codes = [[0], [1], [2, 0, -1, 0], [47, 0, -1], [49, 0, 0], [50, 0, -1], [3, 0, -1]]
events = [*replay(response, codes)]
assert [event["type"].rpartition(".")[2] for event in events] == [
    "created", "in_progress", "added", "done", "completed"
], events
assert events[2]["item"] == events[3]["item"] == item
"""


def without(feature: str, folder: Path) -> Path:
    """Copy the package without a feature into a folder, and return the folder."""
    package = Path(llama_stack_responses.__path__[0])
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, folder / package.name, ignore=ignored)
    shutil.rmtree(folder / package.name / "features" / feature)
    return folder


def path_of(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(map(str, (folder, REPOSITORY / "providers" / "openai_chat")))}


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code with the package in this folder."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=os.environ | path_of(folder), capture_output=True, text=True, check=False, timeout=120
    )


def leaving_out(feature: str) -> Callable[[Json], None]:
    def change(config: Json) -> None:
        if feature in SETTINGS:
            responses_config(config).pop(SETTINGS[feature][0], None)

    return change


def test_every_feature_has_a_request_command_or_path_that_needs_it() -> None:
    assert REFUSED.keys() | COMMANDS.keys() | PATHS.keys() == set(feature_names())


@pytest.mark.extended  # each is a new process of the host
@pytest.mark.parametrize("feature", feature_names())
def test_stack_without_feature_answers_and_refuses_what_needs_it(
    feature: str, host: Host, upstream: Upstream, tmp_path: Path
) -> None:
    folder = without(feature, tmp_path / "package")
    config = variant(STARTER, tmp_path / "config.yaml", leaving_out(feature))
    env = {**path_of(folder), "INFERENCE_URL": upstream.base_url, "UNAVAILABLE_TOOLS": "refuse"}
    upstream.script("local", reply(text("Hello")))
    with LiveStack(config, env, tmp_path / "state", host=host, fork=False) as stack, stack.client() as client:
        assert client.responses.create(model="local/local", input="Hi").output_text == "Hello"
        for path in PATHS.get(feature, ()):
            assert httpx.get(f"{stack.base_url}{path}", trust_env=False).status_code == 404
        if feature not in REFUSED:
            return
        more, param, code, message = REFUSED[feature]
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model="local/local", input="Hi", **more)
    error: Any = raised.value.body
    assert (error["param"], error["code"], error["message"]) == (param, code, message)


@pytest.mark.parametrize("feature", COMMANDS)
def test_command_of_absent_feature_is_named(feature: str, tmp_path: Path) -> None:
    folder = without(feature, tmp_path / "package")
    (folder / "templates").symlink_to(REPOSITORY / "templates")
    code = "import sys; from llama_stack_responses.cli import main; sys.exit(main({}))"
    command, left = COMMANDS[feature]
    ended = python(folder, code.format([command, "--config", str(STARTER)]))
    others = ", ".join(name for name in feature_names() if name != feature)
    here = f"the commands of this installation are {left}"
    said = f"llama-stack-responses: There is no command '{command}': {here}, and its features are {others}.\n"
    assert (ended.returncode, ended.stderr) == (2, said)
    ended = python(folder, code.format(["init", "starter", str(tmp_path / "new")]))
    assert (ended.returncode, (tmp_path / "new" / "config.yaml").exists()) == (0, True), ended.stderr


@pytest.mark.parametrize("feature", SETTINGS)
def test_setting_of_absent_feature_is_named(feature: str, tmp_path: Path) -> None:
    key, value = SETTINGS[feature]
    code = f"from llama_stack_responses.config import ResponsesConfig; ResponsesConfig(**{{{key!r}: {value!r}}})"
    ended = python(without(feature, tmp_path), code)
    others = ", ".join(name for name in feature_names() if name != feature)
    said = f"{key}\n  there is no such setting here, take it out; the features of this installation are {others}"
    assert (ended.returncode, said in ended.stderr) == (1, True), ended.stderr


def test_stored_item_of_absent_feature_is_replayed_as_a_whole(tmp_path: Path) -> None:
    ended = python(without("images", tmp_path), REPLAY)
    assert ended.returncode == 0, ended.stderr
