"""Messages in the form of span attributes of OpenTelemetry's GenAI conventions.

They are private, so they are recorded only if the operator enables it. Media are named, never copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

type Json = Mapping[str, Any]

SWITCH: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable with which operators enable it."""

_YES: Final = frozenset({"true", "1", "span_only", "span_and_event"})


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether the operator wants contents on spans."""
    return environment.get(SWITCH, "").strip().lower() in _YES


def input_messages(messages: Sequence[Json]) -> str:
    """Return the messages of a chat request, as JSON."""
    return _dumps([{"role": message["role"], "parts": _parts_of_message(message)} for message in messages])


def output_messages(items: Sequence[Json], finish_reason: str) -> str:
    """Return the items that a model generated in one round, as JSON."""
    parts = [part for item in items for part in _parts_of_item(item)]
    return _dumps([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}])


def tool_result(output: str | Sequence[Json]) -> str:
    """Return a tool's output: a text unchanged, and content parts as JSON."""
    if isinstance(output, str):
        return output
    return _dumps([part if "text" in part else {"type": part["type"]} for part in output])


def _parts_of_message(message: Json) -> list[Json]:
    content = message.get("content")
    if message["role"] == "tool":
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": _texts(content)}]
    parts: list[Json] = [_text(content)] if isinstance(content, str) and content else []
    if isinstance(content, list):
        parts = [_text(part["text"]) if "text" in part else {"type": part["type"]} for part in content]
    calls = [_call(each["id"], each.get("function") or each.get("custom") or {}) for each in _calls(message)]
    return [*parts, *calls]


def _calls(message: Json) -> Sequence[Json]:
    return message.get("tool_calls") or ()


def _call(call_id: str, called: Json) -> Json:
    arguments = called.get("arguments", called.get("input"))
    return {"type": "tool_call", "id": call_id, "name": called.get("name"), "arguments": arguments}


def _parts_of_item(item: Json) -> list[Json]:
    match item["type"]:
        case "message":
            return [_text(part.get("text") or part.get("refusal") or "") for part in item["content"]]
        case "reasoning":
            texts = [*(item.get("content") or ()), *(item.get("summary") or ())]
            return [{"type": "reasoning", "content": part["text"]} for part in texts]
    if "call_id" in item and "name" in item:
        return [_call(item["call_id"], item)]
    return [{"type": item["type"], "id": item.get("id")}]


def _texts(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _text(content: str) -> Json:
    return {"type": "text", "content": content}


def _dumps(value: Any) -> str:
    """Return JSON in which an unpaired surrogate, which a model server can send, is escaped."""
    return json.dumps(value, ensure_ascii=True)
