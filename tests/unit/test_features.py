"""docs/reference/features.md has a line for each feature of OpenAI's API, and each line matches the code."""

from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import Response, ResponsesClientEvent, ResponsesServerEvent, ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming, ToolChoice
from openai.types.responses.response_includable import ResponseIncludable
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_choice_options import ToolChoiceOptions
from openai.types.responses.tool_param import ToolParam

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.requests import request
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream import transcript
from llama_stack_responses.stream.events import TERMINAL
from llama_stack_responses.stream.response import new_response
from tests.support.features import features, refused, section
from tests.support.own_types import event_types, events_of_kinds, own_events, own_tools, types, words

type Json = dict[str, Any]


def error_of(**fields: Any) -> ApiError | None:
    """Return the error that refuses a request, if any."""
    try:
        parse_create({"model": "m", "input": "hi", **fields})
    except ApiError as error:
        return error
    return None


def is_unknown(error: ApiError | None) -> bool:
    """Return whether a feature was refused as a whole, not for its content."""
    return error is not None and error.message.startswith("Unsupported")


def test_request_fields_table_matches_code() -> None:
    table = features("Fields of a request")
    assert table.keys() == get_type_hints(ResponseCreateParamsNonStreaming).keys() | request.FIELDS
    assert refused(table) == set()
    assert {name for name, each in table.items() if each.state == "partly"} == {
        name for name, each in request.REQUEST_FIELDS.items() if each.unsupported
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", {"context_compression": "enabled"}),
    ],
)
def test_refused_field_has_documented_code(field: str, value: Any) -> None:
    error = error_of(**{field: value})
    feature = features("Fields of a request")[field]
    assert (error is not None) == (feature.state in ("no", "partly"))
    assert error is None or f"`{error.code}`" in feature.note


def test_tools_table_matches_code() -> None:
    table = features("Tools")
    assert table.keys() == types(ToolParam) | own_tools()
    errors = {name: error_of(tools=[{"type": name}]) for name in table}
    assert refused(table) == {name for name, error in errors.items() if is_unknown(error)}
    assert all(table[name].code == error.code for name, error in errors.items() if error and is_unknown(error))


MCP: Json = {"type": "mcp", "server_label": "a"}


@pytest.mark.parametrize(
    ("tool", "param", "documented"),
    [
        (MCP | {"tunnel_id": "t"}, "tunnel_id", "tunnel_id"),
        ({"type": "image_generation", "svg": {"model": "m"}}, "svg", "svg"),
        ({"type": "image_generation", "output_format": "svg"}, "output_format", "output_format"),
    ],
)
def test_tool_with_refused_field_is_documented_as_partly_supported(tool: Json, param: str, documented: str) -> None:
    feature, error = features("Tools")[tool["type"]], error_of(tools=[tool])
    assert error
    assert error.param == f"tools[0].{param}"
    assert feature.state == "partly"
    assert f"`{documented}`" in feature.note


FUNCTION: Json = {"type": "function", "name": "f"}
CUSTOM: Json = {"type": "custom", "name": "c"}


@pytest.mark.parametrize(
    ("tool", "field", "value"),
    [
        (FUNCTION, "async", True),
        (CUSTOM, "async", True),
        ({"type": "web_search"}, "search_content_types", ["image"]),
        ({"type": "web_search"}, "return_token_budget", "unlimited"),
        (MCP | {"server_url": "https://example.com/mcp"}, "defer_loading", True),
    ],
)
def test_tool_field_without_effect_is_echoed_and_documented(tool: Json, field: str, value: Any) -> None:
    request = parse_create({"model": "m", "input": "hi", "tools": [tool | {field: value}]})
    [echoed] = new_response(request, id="resp_1", created_at=0)["tools"]
    assert echoed[field] == value
    assert f"`{field}`" in section("Tools")


def test_tool_choices_table_matches_code() -> None:
    table = features("Choices of a tool")
    modes = set(get_args(ToolChoiceOptions))
    objects = [member for member in get_args(ToolChoice) if member is not ToolChoiceOptions]
    assert table.keys() == modes | {word for each in objects for word in words(get_type_hints(each)["type"])}
    errors = {name: error_of(tool_choice={"type": name}) for name in table.keys() - modes}
    assert refused(table) == {name for name, error in errors.items() if is_unknown(error)}
    assert all(table[name].code == error.code for name, error in errors.items() if error and is_unknown(error))


def test_input_items_table_matches_code() -> None:
    table = features("Items of an input")
    assert table.keys() == types(ResponseInputItemParam)
    errors = {name: error_of(input=[{"type": name}]) for name in table}
    assert refused(table) == {name for name, error in errors.items() if is_unknown(error)}
    assert all(table[name].code == error.code for name, error in errors.items() if error and is_unknown(error))


def test_include_table_matches_code() -> None:
    table = features("What can be included")
    assert table.keys() == set(get_args(ResponseIncludable))
    assert refused(table) == {name for name in table if error_of(include=[name])}


def test_events_table_matches_code() -> None:
    table = features("Events")
    assert table.keys() == event_types(ResponseStreamEvent) | own_events().keys()
    of_items = {event["type"] for event in events_of_kinds()}
    assert table.keys() - refused(table) == {*transcript.SHORT_TYPES, *of_items, *TERMINAL, "error"}


def test_response_fields_table_matches_code() -> None:
    table = features("Fields of a response")
    of_request = get_type_hints(ResponseCreateParamsNonStreaming).keys()
    assert table.keys() == Response.model_fields.keys() - of_request
    response = new_response(parse_create({"model": "m", "input": "hi"}), id="resp_1", created_at=0)
    assert table.keys() <= response.keys()
    assert {name: response[name] for name in refused(table)} == dict.fromkeys(refused(table))
    not_repeated = [f"`{name}`" for name in sorted(of_request | {"stream"}) if name not in response]
    sentence = f"except {', '.join(not_repeated[:-1])} and {not_repeated[-1]}."
    assert sentence in " ".join(section("Fields of a response").split())


def test_websocket_events_table_matches_code() -> None:
    table = features("Events of a WebSocket")
    of_socket = event_types(ResponsesClientEvent) | event_types(ResponsesServerEvent)
    assert table.keys() == of_socket - event_types(ResponseStreamEvent)
    assert not refused(table)
