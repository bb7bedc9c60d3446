"""Encoding of a `Reply`: as the SSE frames of a stream, encoded once, or as the equivalent whole completion."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.script import Chunk, Reply

DONE = "data: [DONE]\n\n"
CREATED = 1_700_000_000  # a fixed Unix time, so that the same script gives the same bytes
PROMPT_TOKENS = 10  # the prompt tokens of a "counted" usage


@dataclass(frozen=True, slots=True)
class Frames:
    """A stream whose elements are ready for the socket: SSE within chunks of `Transfer-Encoding: chunked`."""

    opening: bytes  # the chunk with the role
    chunks: tuple[bytes, ...]  # one for each chunk of the script
    closing: bytes  # finish reason, usage, [DONE] or the error; empty for a stream that drops or hangs


def http_chunk(payload: str) -> bytes:
    """Encode one chunk of a chunked HTTP body."""
    encoded = payload.encode()
    return b"%x\r\n%b\r\n" % (len(encoded), encoded) if encoded else b""


def frames(reply: Reply, model: str, include_usage: bool) -> Frames:
    """Return the frames of a streamed reply; `include_usage` is the request's option."""
    usage = _usage(reply)
    choices = [chunk if "raw" in chunk else _envelope(chunk, model) for chunk in reply.chunks]
    tail = list(_tail(reply, model))
    if usage and reply.usage_mode == "every_chunk":
        _spread(usage, [chunk for chunk in [*choices, *tail] if "raw" not in chunk])
    elif usage and reply.usage_mode == "last_chunk":
        [*choices, *tail][-1]["usage"] = usage
    elif usage and reply.usage_mode == "own_chunk" and include_usage and reply.end in ("done", "no_finish"):
        tail.append(_envelope({"choices": [], "usage": usage}, model))
    whole = any("object" in chunk or "choices" in chunk for chunk in reply.chunks[:1])
    opening = "" if whole else _frame(_envelope({"role": "assistant", "content": ""}, model))
    closing = "".join(_frame(chunk) for chunk in tail) + _last(reply)
    return Frames(http_chunk(opening), tuple(http_chunk(_frame(chunk)) for chunk in choices), http_chunk(closing))


def completion(reply: Reply, model: str) -> dict[str, Any]:
    """Return the chat.completion with the message that the stream's deltas form."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    tokens: list[Any] = []
    finish_reason = None
    for choice in _choices(reply, model):
        merge(message, choice["delta"])
        tokens += (choice.get("logprobs") or {}).get("content") or []
        finish_reason = choice.get("finish_reason") or finish_reason
    for call in message.get("tool_calls", []):
        del call["index"]
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
    if tokens:
        choice["logprobs"] = {"content": tokens, "refusal": None}
    whole = _envelope({"choices": [choice], "usage": _usage(reply)}, model)
    return {**whole, "object": "chat.completion"}


def merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    """Merge a delta: strings are appended, calls are merged by index, other lists are concatenated."""
    for key, value in delta.items():
        if key == "tool_calls":
            _merge_calls(into.setdefault(key, []), value)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        elif isinstance(value, str | list) and into.get(key) and key not in ("role", "id", "type", "name"):
            into[key] = into[key] + value
        elif value is not None:
            into[key] = json.loads(json.dumps(value))  # a copy, so that the script's dicts stay unchanged


def _merge_calls(into: list[dict[str, Any]], fragments: list[dict[str, Any]]) -> None:
    for fragment in fragments:
        known = next((call for call in into if call["index"] == fragment["index"]), None)
        if known is None:
            into.append(known := {})
        merge(known, fragment)


def _choices(reply: Reply, model: str) -> Iterator[dict[str, Any]]:
    scripted = [_envelope(chunk, model) for chunk in reply.chunks if "raw" not in chunk]
    for chunk in [*scripted, *_tail(reply, model)]:
        yield from chunk["choices"]


def _envelope(chunk: Chunk, model: str) -> dict[str, Any]:
    """Wrap a chunk of the script in a whole chat.completion.chunk; all chats of a model have one id."""
    head = {"id": f"chatcmpl-{model}", "object": "chat.completion.chunk", "created": CREATED, "model": model}
    if "choices" in chunk or "object" in chunk:
        return {**head, **chunk}
    choice = chunk if "delta" in chunk or "finish_reason" in chunk else {"delta": chunk}
    return {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": None, **choice}]}


def _tail(reply: Reply, model: str) -> Iterator[dict[str, Any]]:
    """Yield the finish reason, if the script has none."""
    choices = [choice for chunk in reply.chunks if "raw" not in chunk for choice in _envelope(chunk, model)["choices"]]
    if reply.end != "done" or any(choice.get("finish_reason") for choice in choices):
        return
    called = any(choice["delta"].get("tool_calls") for choice in choices)
    yield _envelope({"finish_reason": "tool_calls" if called else "stop"}, model)


def _usage(reply: Reply) -> dict[str, Any] | None:
    if reply.usage != "counted":
        return None if reply.usage is None else dict(reply.usage)
    return _tokens(PROMPT_TOKENS, len(reply.chunks))


def _tokens(prompt: int, completion_tokens: int) -> dict[str, Any]:
    total = prompt + completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion_tokens, "total_tokens": total}


def _spread(usage: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    """Add a growing usage to each chunk, and the final one to the last, to catch clients that sum or keep the first."""
    prompt, generated = usage["prompt_tokens"], usage["completion_tokens"]
    for count, chunk in enumerate(chunks):
        chunk["usage"] = usage if chunk is chunks[-1] else _tokens(prompt, min(count, generated))


def _last(reply: Reply) -> str:
    if reply.end == "error_frame":
        scripted = {"error": {"message": "scripted error", "type": "server_error", "param": None, "code": 500}}
        return _frame(reply.body or scripted)
    return DONE if reply.end in ("done", "no_finish") else ""


def _frame(chunk: dict[str, Any]) -> str:
    if "raw" in chunk:
        return str(chunk["raw"])
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
