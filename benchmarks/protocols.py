"""What a model server sends, as bytes: chat completions, and responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

type Json = dict[str, Any]

KINDS: Final[dict[str, Callable[[str], Json]]] = {
    "text": lambda said: {"content": said},
    "reasoning": lambda said: {"reasoning_content": said},
    "arguments": lambda said: {"tool_calls": [{"index": 0, "function": {"arguments": said}}]},
}
"""The delta of a chunk of chat completions, by what the model says."""
_FINISH: Final = {"arguments": "tool_calls"}
_STAMP: Final = "#stamp#"
_ID: Final = "#id#"
_TEXT: Final = "#text#"


@dataclass(frozen=True, slots=True)
class Encoding:
    """An answer as bytes.

    Attributes:
        before: the frames of a stream before its tokens.
        token: that of a token, with `%d` for what it says.
        after: the frames after them.
        whole: the answer to a request that does not stream.
    """

    before: bytes
    token: bytes
    after: bytes
    whole: bytes


def filled(data: bytes, number: int, text: str) -> bytes:
    """Return what is sent of the frames `data`: with the number of the answer in its ids, and with its whole text."""
    return data.replace(_ID.encode(), b"%d" % number).replace(_TEXT.encode(), text.encode())


def _encoded(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _token(frame: bytes) -> bytes:
    return frame.replace(b"%", b"%%").replace(_STAMP.encode(), b"%d")


def chat(model: str, kind: str, tokens: int, function: str | None = None) -> Encoding:
    """Return an answer of chat completions.

    Args:
        kind: one of `KINDS`.
        function: the name of the called tool, for arguments.
    """

    def frame(**fields: Any) -> bytes:
        chunk = {"id": f"chatcmpl-{_ID}", "object": "chat.completion.chunk", "created": 1, "model": model, **fields}
        return b"data: %b\n\n" % _encoded(chunk)

    def choice(delta: Json, reason: str | None = None) -> list[Json]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]

    opening: Json = {"role": "assistant"}
    if kind == "arguments":
        opening["tool_calls"] = [{"index": 0, "id": "call_1", "type": "function", "function": {"name": function}}]
    reason = _FINISH.get(kind, "stop")
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    ended = frame(choices=choice({}, reason)) + frame(choices=[], usage=usage) + b"data: [DONE]\n\n"
    said = {"role": "assistant", "content": _TEXT}
    whole = {"id": f"chatcmpl-{_ID}", "object": "chat.completion", "created": 1, "model": model, "usage": usage}
    whole["choices"] = [{"index": 0, "message": said, "logprobs": None, "finish_reason": reason}]
    token = _token(frame(choices=choice(KINDS[kind](f"{_STAMP} "))))
    return Encoding(frame(choices=choice(opening)), token, ended, _encoded(whole))


def responses(model: str, tokens: int) -> Encoding:
    """Return an answer of responses: one message with a text.

    All tokens have the same `sequence_number`, so that the frame of a token is made only once.
    """
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 1,
    }
    part = {"type": "output_text", "text": _TEXT, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": f"msg_{_ID}", "role": "assistant", "status": "completed", "content": [part]}
    begun = {**item, "status": "in_progress", "content": []}
    started = _response(model, "in_progress", [], None)
    ended = _response(model, "completed", [item], usage)
    place = {"item_id": f"msg_{_ID}", "output_index": 0, "content_index": 0}
    before: list[Json] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
    ]
    after: list[Json] = [
        {"type": "response.output_text.done", **place, "text": _TEXT, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": ended},
    ]
    delta = {"type": "response.output_text.delta", **place, "delta": f"{_STAMP} ", "logprobs": []}
    token = _token(_events([delta], len(before)))
    return Encoding(_events(before), token, _events(after, len(before) + 1), _encoded(ended))


def _events(events: Iterable[Json], first: int = 0) -> bytes:
    numbered = ({**event, "sequence_number": number} for number, event in enumerate(events, first))
    return b"".join(b"event: %b\ndata: %b\n\n" % (each["type"].encode(), _encoded(each)) for each in numbered)


def _response(model: str, status: str, output: list[Json], usage: Json | None) -> Json:
    return {
        "id": f"resp_{_ID}",
        "object": "response",
        "created_at": 1,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "user": None,
    }
