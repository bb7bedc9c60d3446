"""Items of requests, for tests of what the model is sent."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]


def message(role: str, text: str, **more: Any) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **more}


def called(call_id: str) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": '{"a":1}'}


def call_output(call_id: str, output: Any = "Snow.") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


NO: Final[Json] = {
    "type": "message",
    "role": "assistant",
    "status": "incomplete",
    "content": [{"type": "refusal", "refusal": "No."}],
}
