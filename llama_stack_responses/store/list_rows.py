"""The rows of an owner's list. They have all fields that a list shows, so that no response is read for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from ..core.json_blocks import dumps
from ..core.types import Json
from ..items.registry import ITEM_KINDS, REPLIES, REQUESTS
from . import codec
from .content_names import canonical, name_of

type Row = Json
"""The data of a response in a list: the fields of `_DEFAULTS`, its `id`, and the `version` of the row."""

_EXCERPT_CHARACTERS: Final = 120
"""Characters of a text that a row holds."""

METADATA_BYTES: Final = 2048
"""Bytes of metadata that a row holds, as JSON."""

_READ_CHARACTERS: Final = 1024
"""Characters of a text that are read for its first words."""

_CALLS: Final = frozenset(name for name, kind in ITEM_KINDS.items() if kind.call or kind.exchange)

_OF_SERVER: Final[Mapping[str, str]] = {name: reply.to for name, reply in REPLIES.items() if reply.waits_for is None}
"""The types of calls of this server that have items of their own for their outputs, by the types of these."""

_NAMED_CALLS: Final = ("function", "custom_tool")
"""Calls of tools that have no type of their own."""

_CALL_IDS: Final = 16
"""Calls and approvals that a row names as open, and as answered."""

_CALL_BYTES: Final = 9
"""Bytes of the name of a call."""

_TOOL_NAMES: Final = 16
_TOOL_CHARACTERS: Final = 64
"""Names of tools that a row holds, and characters of one."""

_UNEQUAL: Final = object()

_DEFAULTS: Final[Mapping[str, Any]] = {
    "status": "completed",
    "model": "",
    "created_at": 0,
    "seconds": None,
    "words": "",
    "answer": "",
    "input_tokens": None,
    "output_tokens": None,
    "cached_tokens": None,
    "reasoning_tokens": None,
    "tool_calls": 0,
    "failed_tool_calls": 0,
    "tools": [],
    "waits_for": None,
    "asks": [],
    "answers": [],
    "error": None,
    "conversation": None,
    "previous_response_id": None,
    "background": False,
    "metadata": {},
}
"""The fields of a row; a row leaves out those that have these values."""


def first_words(items: Sequence[Mapping[str, Any]]) -> str:
    """Return the first words of the last user message; an empty string if there is none with text."""
    for item in reversed(items):
        if item.get("role") == "user" and (excerpt := _excerpt(item.get("content"))):
            return excerpt
    return ""


def answered(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the newest calls and requests for approval that are answered among these items.

    A message may come without a `type`. A client that sends its whole history repeats the call before its output. A
    name stands for the whole call: many model servers number their calls anew in each answer.
    """
    replies = ((each, REPLIES.get(each.get("type", ""))) for each in items)
    names = {each.get(reply.names) for each, reply in replies if reply and reply.waits_for}
    asked = [each for each in items if each.get("type") in REQUESTS and _request_id(each) in names]
    return [_name(each) for each in asked[-_CALL_IDS:]]


def list_row(
    response: Mapping[str, Any], excerpt: str, timing: Mapping[str, Any] | None, answers: Sequence[str] = ()
) -> bytes:
    """Return the value of a response's row; the arguments are those of `row_of`."""
    row = row_of(response, excerpt, timing, answers)
    return codec.encode({name: value for name, value in row.items() if value != _DEFAULTS.get(name, _UNEQUAL)})


def row_of(
    response: Mapping[str, Any], excerpt: str, timing: Mapping[str, Any] | None, answers: Sequence[str] = ()
) -> Row:
    """Return the fields of a list's row, without the id and the version.

    Args:
        response: the whole response.
        excerpt: the first words of its input.
        timing: the recorded times of the response, if there are any.
        answers: the names of the calls that its input answers, from `answered`.
    """
    waits_for, asked = _open_requests(response)
    calls = _calls(response["output"])
    error, conversation = response.get("error"), response.get("conversation")
    return {
        "status": response["status"],
        "model": response["model"],
        "created_at": response["created_at"],
        "seconds": _seconds(response, timing),
        "words": excerpt,
        "answer": _answer_excerpt(response["output"]),
        **_tokens(response.get("usage")),
        "tool_calls": len(calls),
        "failed_tool_calls": len(failed_calls(calls, timing)),
        "tools": _tools(calls),
        "waits_for": waits_for,
        "asks": [_name(each) for each in asked[:_CALL_IDS]],
        "answers": list(answers),
        "error": error["code"] if error else None,
        "conversation": conversation["id"] if conversation else None,
        "previous_response_id": response.get("previous_response_id"),
        "background": bool(response.get("background")),
        "metadata": _metadata(response.get("metadata") or {}),
    }


def read_list_row(key: str, value: Json, version: int) -> Row:
    """Return the fields of a stored row.

    Args:
        key: the key of the row.
        value: its decoded value.
        version: the version of its record.
    """
    return {"id": key.rpartition("/")[2], **_DEFAULTS, **value, "version": version}


def _excerpt(content: Any) -> str:
    if isinstance(content, str):
        return " ".join(content[:_READ_CHARACTERS].split())[:_EXCERPT_CHARACTERS]
    for part in content or ():
        text = part.get("text") or part.get("refusal")
        if isinstance(text, str) and (excerpt := " ".join(text[:_READ_CHARACTERS].split())):
            return excerpt[:_EXCERPT_CHARACTERS]
    return ""


def _answer_excerpt(output: Sequence[Mapping[str, Any]]) -> str:
    for item in reversed(output):
        if item["type"] == "message" and (excerpt := _excerpt(item.get("content"))):
            return excerpt
    return ""


def _seconds(response: Mapping[str, Any], timing: Mapping[str, Any] | None) -> float | None:
    if timing and timing.get("total_ms") is not None:
        return float(timing["total_ms"]) / 1000
    ended = response.get("completed_at")
    return float(ended - response["created_at"]) if ended else None


def _tokens(usage: Mapping[str, Any] | None) -> Json:
    if not usage:
        return dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"))
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "cached_tokens": (usage.get("input_tokens_details") or {}).get("cached_tokens", 0),
        "reasoning_tokens": (usage.get("output_tokens_details") or {}).get("reasoning_tokens", 0),
    }


def failed_calls(items: Sequence[Mapping[str, Any]], timing: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the calls of tools that failed, also those whose item says `completed`: code that raised an error.

    Args:
        items: items of an output.
        timing: the recorded times of the response, if there are any.
    """
    # A call that was cut off is recorded as failed, and again when the next worker repeats it: the last one counts.
    recorded = {tool[2]: tool[5] for tool in (timing or {}).get("tools", ())}
    return [item for item in items if _failed(item) or (_completed(item) and recorded.get(item.get("id")))]


def _open_requests(response: Mapping[str, Any]) -> tuple[str | None, Sequence[Mapping[str, Any]]]:
    """Return what a completed response waits for, `approval` of calls or `client` for outputs, and these items.

    It is nothing in a conversation, whose later items are not known here.
    """
    if response["status"] != "completed" or response.get("conversation"):
        return None, ()
    output = response["output"]
    replied = {(item["type"], item.get(REPLIES[item["type"]].names)) for item in output if item["type"] in REPLIES}
    waiting: dict[str | None, list[Mapping[str, Any]]] = defaultdict(list)
    for item in output:
        kind, reply = REQUESTS.get(item["type"], (None, None))
        if reply and (kind, item.get(reply.named_by)) not in replied:
            waiting[reply.waits_for].append(item)
    waits_for = next((each for each in ("approval", "client") if each in waiting), None)
    return waits_for, waiting[waits_for]


def _request_id(item: Mapping[str, Any]) -> Any:
    _, reply = REQUESTS[item["type"]]
    return item.get(reply.named_by)


def _name(item: Mapping[str, Any]) -> str:
    """Return a short name of a call, the same if the client sends it back."""
    return name_of(blake2b(canonical(item), digest_size=_CALL_BYTES).digest())


def _calls(output: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the calls of an output; the output of what an earlier response began is the call here."""
    begun = {(item["type"], item.get("call_id")) for item in output}
    return [
        item
        for item in output
        if item["type"] in _CALLS
        or (item["type"] in _OF_SERVER and (_OF_SERVER[item["type"]], item["call_id"]) not in begun)
    ]


def _tools(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tools that were called: the types of tools of the server and of MCP, and the names of the others."""
    names = dict[str, None]()
    for call in calls:
        name = call["type"].removesuffix("_output").removesuffix("_call")
        own = call.get("name") if isinstance(call.get("name"), str) else None
        for each in (own,) if own and name in _NAMED_CALLS else (name, own):
            if each and len(names) < _TOOL_NAMES:
                names[each[:_TOOL_CHARACTERS]] = None
    return list(names)


def _failed(call: Mapping[str, Any]) -> bool:
    if call["type"] in _OF_SERVER:
        return bool(call["status"] == "incomplete")
    return call.get("status") == "failed" or bool(call.get("error"))


def _completed(call: Mapping[str, Any]) -> bool:
    return bool(call.get("status", "completed") == "completed")  # a program has none


def _metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    listed, left = {}, METADATA_BYTES
    for name, value in metadata.items():
        left -= len(dumps([name, value]))
        if left < 0:
            break
        listed[name] = value
    return listed
