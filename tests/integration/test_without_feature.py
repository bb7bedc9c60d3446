"""A stack runs without any one feature: its folder is taken out of the package, and nothing else is changed."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

import llama_stack_responses
from llama_stack_responses.core.discovery import feature_names, modules_of_features
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.feature_settings import settings_of
from llama_stack_responses.core.shapes import schema_of
from llama_stack_responses.items.kind import ToolType
from llama_stack_responses.items.registry import HOSTED_TOOL_NAMES
from llama_stack_responses.requests.request import parse_create
from tests.support.forks import Forks
from tests.support.own_types import own_tools
from tests.support.script import reply, text
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream
from tests.support.variants import responses_config, variant

Json = dict[str, Any]

pytestmark = pytest.mark.live

SETTINGS: Final = {
    feature: keys
    for feature, module in modules_of_features("settings").items()
    if (keys := [each.key for each in settings_of(module)])
}
"""The settings of each feature that has any."""


def commands_of(module: Any) -> list[str]:
    """Return the commands that a feature's `commands.py` adds."""
    commands = argparse.ArgumentParser().add_subparsers()
    module.add_commands(commands)
    return list(commands.choices)


COMMANDS: Final = {feature: commands_of(module) for feature, module in modules_of_features("commands").items()}
"""The commands of each feature that has any."""

TOOLS: Final[dict[str, ToolType]] = {
    feature: module.KINDS.tools[0] for feature, module in modules_of_features("kinds").items() if module.KINDS.tools
}
"""A tool of each feature that has any."""

REFUSED: Final[dict[str, tuple[Json, str, str, str]]] = {
    "moderation": (
        {"extra_body": {"moderation": {"model": "m"}}},
        "moderation",
        "unsupported_parameter",
        "Unsupported parameter: 'moderation' needs a moderation provider, and this stack has none. Its operator can add "
        "a safety provider, or set 'moderation.url' in the configuration of the responses provider.",
    ),
}
"""A request that needs a feature without a tool, and the parameter, code and message of its refusal."""

PATHS: Final = {
    "page": ("/ui", "/v1/ui/session"),
    "scores": ("/v1/responses/x/score",),
    "webhooks": ("/v1/webhook_endpoints", "/v1/webhook_event_types"),
    "batches": ("/v1/batches",),
}
"""Paths of routes that the feature brings."""

OF_HOSTS: Final = ("moderation", "page")
"""Features for which there is code of the hosts: their safety providers, and their pages."""

OF_SETTINGS: Final = {"cold": "archive"}
"""Settings of features that bring nothing else."""

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
    # With the compiled modules: to compile them takes most of the processor time of a start.
    # What another process writes there at this moment is left out.
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("*.pyc.*"))
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
        for key in SETTINGS.get(feature, ()):
            responses_config(config).pop(key, None)

    return change


def spoiled_tools(tool: ToolType) -> list[Json]:
    """Return tools of this type, under the last of its names, that the feature itself would refuse."""
    name = [name for name, of in HOSTED_TOOL_NAMES.items() if of == tool.type][-1]
    fields = {key: {"no": "such"} for key in schema_of(tool.declaration).get("properties", {})}
    return [{"type": name, **fields}] * (1 + tool.single)


def refusal(feature: str) -> tuple[Json, str, str, str] | None:
    """Return a request that needs the feature, and the parameter, code and message of its refusal."""
    if feature not in TOOLS:
        return REFUSED.get(feature)
    tools = spoiled_tools(TOOLS[feature])
    name, kind = tools[0]["type"], TOOLS[feature].type
    message = (
        f"This stack has no provider for tools of the type '{name}'. Its operator can configure one, or leave such tools "
        f"out with the setting 'unavailable_tools: {{{kind}: omit}}': see docs/guides/tools.md."
    )
    if kind in own_tools():
        return {"tools": tools}, "tools[0].type", "invalid_value", f"Invalid value: '{name}'."
    return {"tools": tools}, "tools[0].type", "unsupported_value", message


def test_every_feature_has_a_request_command_or_path_that_needs_it() -> None:
    assert TOOLS.keys() | REFUSED.keys() | COMMANDS.keys() | PATHS.keys() | OF_SETTINGS.keys() == set(feature_names())


@pytest.mark.one_host
@pytest.mark.parametrize("feature", TOOLS)
def test_feature_refuses_its_tool_for_what_is_wrong_in_it(feature: str) -> None:
    with pytest.raises(ApiError) as raised:
        parse_create({"model": "m", "input": "Hi", "tools": spoiled_tools(TOOLS[feature])}, refuse_unknown=True)
    assert "no provider" not in raised.value.message


@pytest.fixture(scope="module")
def folder_and_forks(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Forks]]:
    """A folder for the package, and stacks that find it there: they are forked with the host imported, and no more."""
    folder = tmp_path_factory.mktemp("package")
    with Forks.of_host(
        host, os.environ | path_of(folder), tmp_path_factory.mktemp("forks") / "log", bare=True
    ) as forks:
        yield folder, forks


@pytest.mark.extended  # each is a stack of its own
@pytest.mark.parametrize(
    "feature",
    [pytest.param(name, marks=() if name in OF_HOSTS else pytest.mark.one_host) for name in feature_names()],
)
def test_stack_without_feature_answers_and_refuses_what_needs_it(
    feature: str, host: Host, upstream: Upstream, folder_and_forks: tuple[Path, Forks], tmp_path: Path
) -> None:
    folder, forks = folder_and_forks
    shutil.rmtree(folder / llama_stack_responses.__name__, ignore_errors=True)
    without(feature, folder)
    config = variant(STARTER, tmp_path / "config.yaml", leaving_out(feature))
    env = {**path_of(folder), "INFERENCE_URL": upstream.base_url, "UNAVAILABLE_TOOLS": "refuse"}
    upstream.script("local", reply(text("Hello")))
    with LiveStack(config, env, tmp_path / "state", host=host, forks=forks) as stack, stack.client() as client:
        assert not forks.refusals
        assert client.responses.create(model="local/local", input="Hi").output_text == "Hello"
        for path in PATHS.get(feature, ()):
            assert httpx.get(f"{stack.base_url}{path}", timeout=60, trust_env=False).status_code == 404
        if (refused := refusal(feature)) is None:
            return
        more, param, code, message = refused
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model="local/local", input="Hi", **more)
    error: Any = raised.value.body
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"].startswith(message)


@pytest.mark.one_host
@pytest.mark.parametrize("feature", COMMANDS)
def test_command_of_absent_feature_is_named(feature: str, tmp_path: Path) -> None:
    folder = without(feature, tmp_path / "package")
    (folder / "templates").symlink_to(REPOSITORY / "templates")
    code = "import sys; from llama_stack_responses.cli import main; sys.exit(main({}))"
    command = COMMANDS[feature][0]
    left = [name for other, names in COMMANDS.items() if other != feature for name in names]
    ended = python(folder, code.format([command, "--config", str(STARTER)]))
    others = ", ".join(name for name in feature_names() if name != feature)
    here = f"the commands of this installation are {', '.join(['init', 'check', 'import', *left])}"
    said = f"llama-stack-responses: There is no command '{command}': {here}, and its features are {others}.\n"
    assert (ended.returncode, ended.stderr) == (2, said)
    ended = python(folder, code.format(["init", "starter", str(tmp_path / "new")]))
    assert (ended.returncode, (tmp_path / "new" / "config.yaml").exists()) == (0, True), ended.stderr


@pytest.mark.one_host
@pytest.mark.parametrize(
    "feature",
    [pytest.param(name, marks=pytest.mark.extended if name != "usage" else ()) for name in SETTINGS],
)
def test_setting_of_absent_feature_is_named(feature: str, tmp_path: Path) -> None:
    key = SETTINGS[feature][0]
    code = f"from llama_stack_responses.config import ResponsesConfig; ResponsesConfig(**{{{key!r}: {{}}}})"
    ended = python(without(feature, tmp_path), code)
    others = ", ".join(name for name in feature_names() if name != feature)
    said = f"{key}\n  there is no such setting here, take it out; the features of this installation are {others}"
    assert (ended.returncode, said in ended.stderr) == (1, True), ended.stderr


@pytest.mark.one_host
def test_stored_item_of_absent_feature_is_replayed_as_a_whole(tmp_path: Path) -> None:
    ended = python(without("images", tmp_path), REPLAY)
    assert ended.returncode == 0, ended.stderr
