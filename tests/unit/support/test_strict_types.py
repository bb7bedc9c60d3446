"""The type checker refuses objects that the openai package itself accepts."""

from typing import Any

import pytest

from tests.support.strict import WireError, validate_event, validate_response
from tests.unit.support.streams import call, message, numbered, reasoning, response, search, shell, stream


def changed(value: Any, path: str, new: Any) -> Any:
    """Change one place in `value`, such as `output.0.content`, and return it; ... removes the key."""
    *parents, last = path.split(".")
    place = value
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    if new is ...:
        del place[last]
    else:
        place[last] = new
    return value


def whole() -> dict[str, Any]:
    """Return a completed response with items of several kinds."""
    final: dict[str, Any] = stream(reasoning(0), message(1, logprobs=True), call(2), search(3), shell(4))[-1][
        "response"
    ]
    return final


def test_complete_response_passes() -> None:
    validate_response(whole())


@pytest.mark.parametrize(
    ("path", "new", "says"),
    [
        ("id", ..., "response.id: missing"),
        ("output", ..., "response.output: missing"),
        ("tools", None, "response.tools"),
        ("status", "done", "response.status"),
        ("created_at", "1700000000", "response.created_at"),
        ("parallel_tool_calls", 1, "response.parallel_tool_calls"),
        ("sequence", 1, "response.sequence: Response has no such key"),
        ("usage.total_tokens", "7", "response.usage.total_tokens"),
        ("usage.input_tokens_details.cache_write_tokens", ..., "cache_write_tokens: missing"),
        ("usage.prompt_tokens", 3, "response.usage.prompt_tokens: ResponseUsage has no such key"),
        ("metadata", {"a": 1}, "response.metadata.a"),
        ("tool_choice", "maybe", "response.tool_choice"),
        ("tool_choice", {"type": "function", "name": "f", "extra": 1}, "tool_choice.extra: ToolChoiceFunction"),
        ("tools.0.type", "fun", "response.tools[0]"),
        ("tools.0.description_", "x", "response.tools[0].description_: FunctionTool has no such key"),
        ("output.0.summary.0.type", "text", "response.output[0].summary[0].type"),
        ("output.1.content.0.annotations", ..., "response.output[1].content[0].annotations: missing"),
        ("output.1.content.0.annotations.0.type", "note", "response.output[1].content[0].annotations[0]"),
        ("output.1.content.0.annotations.0.url", "x", "AnnotationFilePath has no such key"),
        ("output.1.content.0.logprobs.0.bytes", ..., "logprobs[0].bytes: missing"),
        ("output.1.content.0.type", "text", "response.output[1].content[0]"),
        ("output.2.type", "tool_call", "is none of the union's members"),
        ("output.2.arguments", {}, "response.output[2].arguments"),
        ("output.2.role", "assistant", "ResponseFunctionToolCall has no such key"),
        ("output.3.action.type", "find", "response.output[3].action"),
        ("output.4.action.commands", "ls", "response.output[4].action.commands"),
        ("output.1", None, "response.output[1]"),
        ("error", {"code": "boom", "message": "x"}, "response.error.code"),
        ("error", {"code": [], "message": "x"}, "response.error.code"),
        ("instructions", [{"type": "message", "role": "robot", "content": "x"}], "response.instructions[0]"),
    ],
)
def test_single_fault_in_response_is_found(path: str, new: Any, says: str) -> None:
    final = whole()
    place, last = path.rpartition(".")[0], path.rpartition(".")[2]
    if last.isdigit():
        parent = final
        for key in place.split("."):
            parent = parent[key]
        parent[int(last)] = new  # type: ignore[index]
    else:
        changed(final, path, new)
    with pytest.raises(WireError) as raised:
        validate_response(final)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "allowed",
    [
        {"error": {"code": "context_length_exceeded", "message": "too long"}},
        {"instructions": [{"type": "message", "role": "user", "content": "x"}, {"role": "user", "content": "y"}]},
        {"tool_choice": {"type": "function", "name": "f"}},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
        {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object", "x": [1, None]}}}},
        {"tools": [{"type": "mcp", "server_label": "s", "server_url": "http://x", "require_approval": "never"}]},
    ],
)
def test_allowed_variants_pass(allowed: dict[str, Any]) -> None:
    validate_response(response(**allowed))


def test_every_event_of_complete_items_passes() -> None:
    for event in stream(reasoning(0), message(1, logprobs=True), call(2), search(3), shell(4)):
        validate_event(event)


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"type": "response.text.delta"}, "is none of the union's members"),
        ({}, "is none of the union's members"),
        ({"type": "error", "message": "x"}, "sequence_number: missing"),
        ({"type": "error", "error": {"message": "x"}, "sequence_number": 1}, "ResponseErrorEvent has no such key"),
    ],
)
def test_single_fault_in_event_is_found(event: dict[str, Any], says: str) -> None:
    with pytest.raises(WireError) as raised:
        validate_event(event)
    assert says in str(raised.value)


def test_deep_fault_in_event_is_found() -> None:
    event = numbered(*message())[-1]
    event["item"]["content"][0]["extra"] = 1
    with pytest.raises(WireError, match=r"item\.content\[0\]\.extra: ResponseOutputText has no such key"):
        validate_event(event)
