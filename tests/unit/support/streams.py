"""Valid streams to modify: written by hand, independent of the code under test."""

from copy import deepcopy
from typing import Any

type Event = dict[str, Any]
type Json = dict[str, Any]


def response(status: str = "in_progress", output: list[Json] | None = None, **changes: Any) -> Json:
    """Return a complete response object."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "completed_at": 1_700_000_001 if status == "completed" else None,
        "status": status,
        "model": "local/m",
        "output": output or [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "top_p": 1.0,
        "usage": None,
        **changes,
    }


def usage() -> Json:
    """Return token counts with all details."""
    return {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7,
    }


def numbered(*events: Event) -> list[Event]:
    """Return the events with sequence numbers."""
    return [{**deepcopy(event), "sequence_number": number} for number, event in enumerate(events)]


def stream(*items: list[Event], end: Event | None = None) -> list[Event]:
    """Return a stream of complete items, with its terminal event: completed unless given."""
    body = [event for item in items for event in item]
    output = [event["item"] for event in body if event["type"] == "response.output_item.done"]
    return numbered(
        {"type": "response.created", "response": response()},
        {"type": "response.in_progress", "response": response()},
        *body,
        end or {"type": "response.completed", "response": response("completed", output, usage=usage())},
    )


def message(index: int = 0, *fragments: str, logprobs: bool = False) -> list[Event]:
    """Return the events of one message with one part and an annotation."""
    fragments = fragments or ("Hello", " world")
    at: Json = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
    tokens = [logprob(each) for each in fragments] if logprobs else []
    text, citation = "".join(fragments), {"type": "file_path", "file_id": "file_1", "index": 0}
    blank = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    part = {"type": "output_text", "text": text, "annotations": [citation], "logprobs": tokens}
    item = {"id": at["item_id"], "type": "message", "role": "assistant"}
    deltas = [
        {"type": "response.output_text.delta", **at, "delta": each, "logprobs": [logprob(each)] if logprobs else []}
        for each in fragments
    ]
    note = {"type": "response.output_text.annotation.added", **at, "annotation": citation, "annotation_index": 0}
    return [
        added(index, {**item, "status": "in_progress", "content": []}),
        {"type": "response.content_part.added", **at, "part": blank},
        *deltas,
        note,
        {"type": "response.output_text.done", **at, "text": text, "logprobs": tokens},
        {"type": "response.content_part.done", **at, "part": part},
        done(index, {**item, "status": "completed", "content": [part]}),
    ]


def reasoning(index: int = 0) -> list[Event]:
    """Return the events of a reasoning item with a content part and a summary part."""
    at: Json = {"item_id": f"rs_{index}", "output_index": index}
    content, summary = {"type": "reasoning_text", "text": "hm"}, {"type": "summary_text", "text": "so"}
    item = {"id": at["item_id"], "type": "reasoning"}
    first, second = {**at, "content_index": 0}, {**at, "summary_index": 0}
    return [
        added(index, {**item, "status": "in_progress", "summary": []}),
        {"type": "response.content_part.added", **first, "part": {**content, "text": ""}},
        {"type": "response.reasoning_text.delta", **first, "delta": "hm"},
        {"type": "response.reasoning_text.done", **first, "text": "hm"},
        {"type": "response.content_part.done", **first, "part": content},
        {"type": "response.reasoning_summary_part.added", **second, "part": {**summary, "text": ""}},
        {"type": "response.reasoning_summary_text.delta", **second, "delta": "so"},
        {"type": "response.reasoning_summary_text.done", **second, "text": "so"},
        {"type": "response.reasoning_summary_part.done", **second, "part": summary},
        done(index, {**item, "status": "completed", "summary": [summary], "content": [content]}),
    ]


def call(index: int = 0, *fragments: str) -> list[Event]:
    """Return the events of one function call."""
    fragments = fragments or ('{"a"', ":1}")
    at: Json = {"item_id": f"fc_{index}", "output_index": index}
    item = {"id": at["item_id"], "type": "function_call", "call_id": f"call_{index}", "name": "f"}
    deltas = [{"type": "response.function_call_arguments.delta", **at, "delta": each} for each in fragments]
    return [
        added(index, {**item, "arguments": "", "status": "in_progress"}),
        *deltas,
        {"type": "response.function_call_arguments.done", **at, "name": "f", "arguments": "".join(fragments)},
        done(index, {**item, "arguments": "".join(fragments), "status": "completed"}),
    ]


def search(index: int = 0) -> list[Event]:
    """Return the events of one web search."""
    at: Json = {"item_id": f"ws_{index}", "output_index": index}
    item = {"id": at["item_id"], "type": "web_search_call", "action": {"type": "search", "query": "q"}}
    steps = [{"type": f"response.web_search_call.{step}", **at} for step in ("in_progress", "searching", "completed")]
    return [added(index, {**item, "status": "in_progress"}), *steps, done(index, {**item, "status": "completed"})]


def shell(index: int = 0) -> list[Event]:
    """Return the events of one shell call with two commands."""
    item: Json = {"id": f"sh_{index}", "type": "shell_call", "call_id": "call_s", "environment": None}
    at: Json = {"output_index": index}
    action: Json = {"commands": ["ls -l", "pwd"], "timeout_ms": None, "max_output_length": None}
    return [
        added(index, {**item, "status": "in_progress", "action": {**action, "commands": []}}),
        {"type": "response.shell_call_command.added", **at, "command_index": 0, "command": ""},
        {"type": "response.shell_call_command.delta", **at, "command_index": 0, "delta": "ls -l"},
        {"type": "response.shell_call_command.done", **at, "command_index": 0, "command": "ls -l"},
        {"type": "response.shell_call_command.added", **at, "command_index": 1, "command": "pwd"},
        {"type": "response.shell_call_command.done", **at, "command_index": 1, "command": "pwd"},
        done(index, {**item, "status": "completed", "action": action}),
    ]


def logprob(token: str) -> Json:
    """Return a token's logprob as a part carries it."""
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}


def added(index: int, item: Json) -> Event:
    """Return the event that opens an item."""
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: Json) -> Event:
    """Return the event that closes an item."""
    return {"type": "response.output_item.done", "output_index": index, "item": item}
