"""The tools of a request and the choice among them."""

from __future__ import annotations

from typing import Any, Final, get_args, get_type_hints

import pytest
from openai.types.responses import (
    ApplyPatchToolParam,
    ComputerToolParam,
    ComputerUsePreviewToolParam,
    CustomToolParam,
    FunctionShellToolParam,
    FunctionToolParam,
    NamespaceToolParam,
    ToolParam,
    ToolSearchToolParam,
)
from openai.types.responses.response_create_params import ToolChoice
from openai.types.responses.tool_param import LocalShell

from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.shapes import DEFAULT_LIMITS, RequestLimits
from llama_stack_responses.inputs.request_parser import RequestParser
from llama_stack_responses.items.registry import HOSTED_TOOL_NAMES
from llama_stack_responses.requests.client_tools import CLIENT_TOOL_NAMES
from llama_stack_responses.requests.request import parse_create

Json = dict[str, Any]

TAKEN: Final = {
    *CLIENT_TOOL_NAMES,
    *HOSTED_TOOL_NAMES,
}
"""The tool types that are accepted; no others are."""

MCP_SERVER: Final[Json] = {"type": "mcp", "server_label": "s", "server_url": "https://example.com"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WHOLE: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "parameters": SCHEMA,
    "strict": True,
    "allowed_callers": ["direct", "programmatic"],
    "async": False,
    "defer_loading": False,
    "output_schema": SCHEMA,
}


def function(name: str) -> Json:
    return {"type": "function", "name": name}


def tools(*declared: Any) -> list[Json]:
    """Return the tools as they are kept: a background response parses them again."""
    kept = parse_create({"model": "m", "input": "hi", "tools": list(declared)}).tools
    assert parse_create({"model": "m", "input": "hi", "tools": kept}).tools == kept
    return kept


def choice(chosen: Any, *declared: Json) -> Any:
    return parse_create({"model": "m", "input": "hi", "tools": list(declared), "tool_choice": chosen}).tool_choice


def refused(declared: Any, chosen: Any = None, **limits: Any) -> ApiError:
    body = {"model": "m", "input": "hi", "tools": declared, "tool_choice": chosen}
    with pytest.raises(ApiError) as caught:
        parse_create(body, limits=RequestLimits(**limits))
    assert caught.value.status == 400
    return caught.value


def types_of(member: Any) -> tuple[str, ...]:
    return get_args(get_type_hints(member)["type"])


def test_function_with_every_declared_key_stays_unchanged() -> None:
    assert tools(WHOLE) == [WHOLE]
    assert WHOLE.keys() == get_type_hints(FunctionToolParam).keys()


def test_function_always_has_parameters_and_strict() -> None:
    assert tools({**function("f"), "evil": 1, "description": None}) == [
        {"type": "function", "name": "f", "parameters": None, "strict": None}
    ]


@pytest.mark.parametrize("name", ["a", "a" * 128, "get-weather_2", "files.read"])
def test_valid_tool_names_are_accepted(name: str) -> None:
    assert tools(function(name))[0]["name"] == name


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ("function", "", "invalid_type"),
        ({}, ".type", "missing_required_parameter"),
        ({"type": None}, ".type", "invalid_type"),
        ({"type": "retrieval"}, ".type", "invalid_value"),
        ({"type": "function", "function": {"name": "f"}}, ".name", "missing_required_parameter"),
        (function(""), ".name", "empty_string"),
        (function("a" * 129), ".name", "string_above_max_length"),
        (function("get weather"), ".name", "invalid_value"),
        (function("f\n"), ".name", "invalid_value"),
        (function("e"), ".name", "invalid_value"),
        ({**function("f"), "parameters": "{}"}, ".parameters", "invalid_type"),
        ({**function("f"), "strict": "yes"}, ".strict", "invalid_type"),
        ({**function("f"), "description": 1}, ".description", "invalid_type"),
        ({**function("f"), "allowed_callers": ["x"]}, ".allowed_callers[0]", "invalid_value"),
        ({**function("f"), "output_schema": []}, ".output_schema", "invalid_type"),
    ],
)
def test_invalid_tool_is_refused_with_its_position(tool: Any, param: str, code: str) -> None:
    error = refused([function("e"), tool])
    assert (error.param, error.code) == (f"tools[1]{param}", code)


def test_tool_errors_are_worded_like_openais() -> None:
    assert refused([{"type": "x"}]).message.startswith(
        "Invalid value: 'x'. Supported values are: 'function', 'custom', "
    )
    assert refused([{"type": "function", "function": {"name": "f"}}]).message == (
        "Missing required parameter: 'tools[0].name'."
    )
    assert refused([function("f")] * 2).message == "Invalid 'tools[1].name': another tool has the name 'f' already."
    assert refused([function("a b")]).message == (
        "Invalid 'tools[0].name': string does not match pattern. "
        "Expected a string that matches the pattern '^[a-zA-Z0-9_.-]+$'."
    )


LARK: Final[Json] = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
CUSTOM: Final[Json] = {
    "type": "custom",
    "name": "c",
    "description": "d",
    "format": LARK,
    "allowed_callers": ["direct"],
    "async": False,
    "defer_loading": True,
}
NAMESPACE: Final[Json] = {"type": "namespace", "name": "n", "description": "d", "tools": [WHOLE, CUSTOM]}
SHELL: Final[Json] = {
    "type": "shell",
    "environment": {"type": "local", "skills": [{"name": "s", "description": "d", "path": "/s"}]},
    "allowed_callers": ["direct"],
}
DISPLAY: Final[Json] = {
    "type": "computer_use_preview",
    "display_height": 1,
    "display_width": 2,
    "environment": "browser",
}


@pytest.mark.parametrize(
    ("tool", "declared"),
    [
        (CUSTOM, CustomToolParam),
        (NAMESPACE, NamespaceToolParam),
        (
            {"type": "tool_search", "description": "d", "execution": "client", "parameters": {}},
            ToolSearchToolParam,
        ),
        ({"type": "local_shell"}, LocalShell),
        (SHELL, FunctionShellToolParam),
        ({"type": "apply_patch", "allowed_callers": ["direct"]}, ApplyPatchToolParam),
        ({"type": "computer"}, ComputerToolParam),
        (DISPLAY, ComputerUsePreviewToolParam),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_client_tool_with_every_declared_key_stays_unchanged(tool: Json, declared: Any) -> None:
    assert tools(tool) == [tool]
    assert tool.keys() == get_type_hints(declared).keys()


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ({"type": "custom"}, ".name", "missing_required_parameter"),
        ({**CUSTOM, "format": {**LARK, "syntax": "gbnf"}}, ".format.syntax", "invalid_value"),
        ({**NAMESPACE, "tools": [{"type": "mcp"}]}, ".tools[0].type", "invalid_value"),
        ({**NAMESPACE, "tools": [WHOLE, WHOLE]}, ".tools[1].name", "invalid_value"),
        ({"type": "tool_search", "execution": "both"}, ".execution", "invalid_value"),
        ({"type": "shell", "environment": {"type": "cloud"}}, ".environment.type", "invalid_value"),
        ({**DISPLAY, "environment": "phone"}, ".environment", "invalid_value"),
    ],
)
def test_invalid_client_tool_is_refused_with_its_position(tool: Json, param: str, code: str) -> None:
    error = refused([tool])
    assert (error.param, error.code) == (f"tools[0]{param}", code)


def test_namespace_may_share_name_with_tool() -> None:
    assert tools(function("n"), NAMESPACE)


@pytest.mark.parametrize("declared", [{}, "function", 1])
def test_tools_must_be_array(declared: Any) -> None:
    assert refused(declared).param == "tools"


def test_too_many_tools_are_refused() -> None:
    assert refused([function("a"), function("b")], max_tools=1).code == "array_above_max_length"


def test_tools_of_namespaces_count() -> None:
    members = [function(f"f{number}") for number in range(2)]
    declared = [{"type": "namespace", "name": each, "description": "", "tools": members} for each in "ab"]
    assert len(tools(*declared)) == 2
    error = refused(declared, max_tools=3)
    assert (error.param, error.code) == ("tools", "array_above_max_length")


@pytest.mark.parametrize(
    "headers", [{f"x-{number}": "" for number in range(65)}, {f"x-{n}": "x" * 16_384 for n in range(4)}]
)
def test_too_many_or_long_headers_of_mcp_server_are_refused(headers: Json) -> None:
    server = {"type": "mcp", "server_label": "s", "server_url": "https://example.com"}
    accepted = {name: headers[name] for name in list(headers)[:-1]}
    assert tools({**server, "headers": accepted})[0]["headers"] == accepted
    assert refused([{**server, "headers": headers}]).param == "tools[0].headers"


def test_long_description_of_mcp_server_is_refused() -> None:
    server = {"type": "mcp", "server_label": "s", "server_url": "https://example.com"}
    assert tools({**server, "server_description": "x" * 4_096})
    error = refused([{**server, "server_description": "x" * 4_097}])
    assert (error.param, error.code) == ("tools[0].server_description", "string_above_max_length")


def test_too_many_domains_are_refused() -> None:
    def search(count: int) -> Json:
        return {"type": "web_search", "filters": {"allowed_domains": ["a.example"] * count}}

    assert tools(search(100))
    assert refused([search(101)]).param == "tools[0].filters.allowed_domains"


@pytest.mark.parametrize(
    "stored",
    [
        [{**MCP_SERVER, "headers": {f"x-{number}": "" for number in range(65)}}],
        [{**MCP_SERVER, "headers": {f"x-{n}": "x" * 16_384 for n in range(5)}}],
        [{**MCP_SERVER, "server_description": "x" * 4_097}],
        [{"type": "web_search", "filters": {"allowed_domains": ["a.example"] * 101}}],
        [{"type": "apply_patch"}] * 17,
        [{"type": "tool_search"}, {"type": "tool_search", "description": "b"}],
        [{**MCP_SERVER, "server_label": f"s{number}"} for number in range(33)],
        [function(f"f{number}") for number in range(1_025)],
    ],
    ids=lambda stored: f"{stored[0]['type']} {len(stored)}",
)
def test_stored_request_over_limits_of_new_ones_is_accepted(stored: list[Json]) -> None:
    refused(stored)
    parser = RequestParser(frozenset(), DEFAULT_LIMITS, LargeWork(), refuse_unknown=True)
    assert parser.parse_stored({"model": "m", "input": "x", "tools": stored}).tools == [
        each if each["type"] != "function" else {**each, "parameters": None, "strict": None} for each in stored
    ]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ([{"type": "apply_patch"}] * 17, "a response can have 16"),
        ([{"type": "tool_search", "description": "a"}, {"type": "tool_search"}], "one tool of the type 'tool_search'"),
    ],
)
def test_too_many_tools_without_name_are_refused(declared: list[Json], words: str) -> None:
    assert tools(*declared[1:])
    error = refused(declared)
    assert error.param == f"tools[{len(declared) - 1}].type"
    assert words in error.message


def test_too_many_mcp_servers_are_refused() -> None:
    servers = [{"type": "mcp", "server_label": label, "server_url": "https://a.example/mcp"} for label in "abc"]
    assert tools(*servers[:2], function("f"))
    error = refused([*servers, function("f")], max_mcp_servers=2)
    assert (error.param, error.code) == ("tools", "array_above_max_length")
    assert "at most 2, but got 3" in error.message


@pytest.mark.parametrize("member", get_args(ToolParam), ids=lambda member: member.__name__)
def test_every_openai_tool_is_known(member: Any) -> None:
    assert set(types_of(member)) <= TAKEN


# Tool choice


@pytest.mark.parametrize("chosen", ["none", "auto", "required"])
def test_choice_mode_is_accepted(chosen: str) -> None:
    assert choice(chosen, function("f")) == chosen


@pytest.mark.parametrize("chosen", ["none", "auto"])
def test_choice_mode_without_tools_is_accepted(chosen: str) -> None:
    assert choice(chosen) == chosen


def test_choice_of_function_is_accepted() -> None:
    assert choice({**function("f"), "evil": 1}, function("e"), function("f")) == function("f")


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_choice_of_allowed_tools_is_accepted(mode: str) -> None:
    chosen = {"type": "allowed_tools", "mode": mode, "tools": [function("f")]}
    assert choice(chosen, function("e"), function("f")) == chosen


@pytest.mark.parametrize(
    ("chosen", "param", "code"),
    [
        ("any", "tool_choice", "invalid_value"),
        (1, "tool_choice", "invalid_type"),
        (["auto"], "tool_choice", "invalid_type"),
        ({}, "tool_choice.type", "missing_required_parameter"),
        ({"type": "tool"}, "tool_choice.type", "invalid_value"),
        ({"type": "function"}, "tool_choice.name", "missing_required_parameter"),
        ({"type": "function", "function": {"name": "f"}}, "tool_choice.name", "missing_required_parameter"),
        (function("g"), "tool_choice", None),
        ({"type": "allowed_tools", "mode": "none", "tools": [function("f")]}, "tool_choice.mode", "invalid_value"),
        ({"type": "allowed_tools", "tools": [function("f")]}, "tool_choice.mode", "missing_required_parameter"),
        ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools", "missing_required_parameter"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools", "empty_array"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "programmatic_tool_calling"}]},
            "tool_choice",
            None,
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [function("f"), function("g")]}, "tool_choice", None),
    ],
)
def test_invalid_choice_is_refused_with_its_position(chosen: Any, param: str, code: str | None) -> None:
    error = refused([function("f")], chosen)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("chosen", "tool"),
    [
        ({"type": "custom", "name": "c"}, CUSTOM),
        ({"type": "shell"}, SHELL),
        ({"type": "apply_patch"}, {"type": "apply_patch"}),
        ({"type": "computer_use"}, {"type": "computer"}),
        ({"type": "computer"}, DISPLAY),
        ({"type": "custom", "name": "c"}, NAMESPACE),
    ],
)
def test_choice_of_client_tool_requires_that_tool(chosen: Json, tool: Json) -> None:
    assert choice(chosen, tool) == chosen
    error = refused([function("f")], chosen)
    assert (error.param, error.code) == ("tool_choice", None)


@pytest.mark.parametrize(
    ("entry", "tool"),
    [
        ({"type": "custom", "name": "c", "namespace": "n"}, NAMESPACE),
        ({"type": "namespace", "name": "n"}, NAMESPACE),
        ({"type": "local_shell"}, {"type": "local_shell"}),
        ({"type": "tool_search"}, {"type": "tool_search"}),
    ],
)
def test_allowed_client_tool_requires_that_tool(entry: Json, tool: Json) -> None:
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [entry]}
    assert choice(allowed, tool) == allowed
    assert refused([function("f")], allowed).param == "tool_choice"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("required", "Tool choice 'required' must be specified with 'tools' parameter."),
        (function("f"), "Tool choice 'f' not found in 'tools' parameter."),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [function("f")]},
            "Tool choice 'f' not found in 'tools' parameter.",
        ),
    ],
)
def test_choice_without_tools_is_refused(chosen: Any, message: str) -> None:
    error = refused(None, chosen)
    assert (error.param, error.message) == ("tool_choice", message)


CHOICES = [member for member in get_args(ToolChoice) if isinstance(member, type)]


@pytest.mark.parametrize("member", CHOICES, ids=lambda member: member.__name__)
def test_every_openai_choice_is_known(member: Any) -> None:
    assert set(types_of(member)) <= {"allowed_tools", *TAKEN}
