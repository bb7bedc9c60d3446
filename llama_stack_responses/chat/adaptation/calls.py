"""The ids of calls, their arguments and their declarations, as a model server takes them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from string import ascii_letters, digits
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .adaptation import Form, answers
from .message_edits import are_same, each_message, walking, with_instructions, with_messages
from .refusal import Refusal

_LETTERS: Final = digits + ascii_letters
_ID_CHARACTERS: Final = 9
_CALL_NOTHING: Final = "Do not call any tool now."
_ANY_ARGUMENTS: Final[Json] = {"description": "", "parameters": {"type": "object", "properties": {}}}
_SHORT_ID: Final = LatePattern(r"[A-Za-z0-9]{9}")

_ID: Final = LatePattern(r"tool.?call.?ids?\b|tool_calls\b.{0,8}\bid\b|\btool_use(?:_|\.)id\b", re.IGNORECASE)
_ID_PLACES: Final = ("tool_call_id", "tool_calls.id", "tool_use.id", "tool_use_id")
_ID_FORM: Final = LatePattern(r"length|a-z|alphanumeric|too long|characters|pattern|match|format", re.IGNORECASE)
_OBJECTS: Final = LatePattern(
    r"has no attribute '(?:items|get|keys)'|item pairs from a mapping|expected a map\b"
    r"|arguments\b[^.]{0,60}\b(?:must be|should be|expected|not)\b[^.]{0,20}\b(?:objects?|mappings?|dict\w*)\b"
    r"|cannot unmarshal string\b[^.]{0,80}\barguments\b",
    re.IGNORECASE,
)
_NO_DECLARATION: Final = LatePattern(
    r"must define tools|tool_?config field must be defined|without\W{1,3}tools\b|\btools?\W{1,3} param\w* to be passed"
    r"|\btools\b[^.]{0,20}(?:is|are) required\b[^.]{0,60}\bcalls?\b",
    re.IGNORECASE,
)
_NOT_UNIQUE: Final = LatePattern(
    r"\bids?\b[^.]{0,40}\bmust be unique\b|\bduplicate\w*\b[^.]{0,30}\btool.?(?:call|use)\w*.?ids?\b", re.IGNORECASE
)
_NO_NAME: Final = LatePattern(r"\bfunction_?response\.name\b|\bfunction response\b[^.]{0,40}\bname\b", re.IGNORECASE)


# Ids


def short_id(call_id: str) -> str:
    """Return the id that a model server gets in place of a call's: nine letters and digits, always the same."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.blake2b(call_id.encode(errors="replace"), digest_size=8).digest())
    found = ""
    for _ in range(_ID_CHARACTERS):
        number, place = divmod(number, len(_LETTERS))
        found += _LETTERS[place]
    return found


def names_call_ids(refusal: Refusal) -> bool:
    """Return whether a refusal is about the form of the ids of calls."""
    named = _ID.search(refusal.subject) or any(place.endswith(_ID_PLACES) for place in refusal.places)
    return bool(named and _ID_FORM.search(refusal.words))


def names_calls(refusal: Refusal) -> bool:
    """Return whether a refusal is about the ids of calls or the names in their outputs, not about contents."""
    return names_call_ids(refusal) or bool(_NO_NAME.search(refusal.words))


def _asks_short_ids(refusal: Refusal, chat: Json) -> Iterator[None]:
    if names_call_ids(refusal) and each_message(chat, _with_short_ids) is not chat:
        yield None


def _with_short_ids(message: Json) -> Json:
    if "tool_call_id" in message:
        short = short_id(message["tool_call_id"])
        return message if short == message["tool_call_id"] else message | {"tool_call_id": short}
    calls = message.get("tool_calls")
    if not calls or all(short_id(call["id"]) == call["id"] for call in calls):
        return message
    return message | {"tool_calls": [call | {"id": short_id(call["id"])} for call in calls]}


def _with_unique_ids(chat: Json, _: Any) -> Json:
    """Return a chat request in which no two calls have the same id; an output has that of the newest call before it."""
    counts, changed = Counter[str](), list[Json]()

    def current(call_id: str) -> str:
        return call_id if counts[call_id] < 2 else f"{call_id}_{counts[call_id]}"

    for message in chat["messages"]:
        calls, answered = message.get("tool_calls") or (), message.get("tool_call_id", "")
        counts.update(call["id"] for call in calls)
        if any(counts[call["id"]] > 1 for call in calls):
            changed.append(message | {"tool_calls": [call | {"id": current(call["id"])} for call in calls]})
        else:
            changed.append(message | {"tool_call_id": current(answered)} if counts[answered] > 1 else message)
    return with_messages(chat, changed)


# Arguments, names and declarations


def _with_names(chat: Json, _: Any) -> Json:
    """Return a chat request whose outputs of calls have the names of the functions."""
    names, changed = dict[str, str](), list[Json]()
    for message in chat["messages"]:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call[call["type"]]["name"]
        name = names.get(message.get("tool_call_id", ""))
        changed.append(message | {"name": name} if name and not message.get("name") else message)
    return with_messages(chat, changed)


def _as_objects(message: Json) -> Json:
    """Return a message whose calls have their arguments as objects; those that are none are kept as they are."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = [_with_object(call) for call in calls]
    return message if are_same(changed, calls) else {**message, "tool_calls": changed}


def _with_object(call: Json) -> Json:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _declared(chat: Json, _: Any) -> Json:
    """Return a chat request that declares functions, if there are calls in it; the words say not to call any.

    The hosts send no tools to a model that may not call any.
    """
    names = {
        call["function"]["name"]: None
        for message in chat["messages"]
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("function"), dict)
    }
    may_call = bool(chat.get("tools")) and chat.get("tool_choice") != "none"
    if may_call or not names:
        return chat
    made = [{"type": "function", "function": {"name": name, **_ANY_ARGUMENTS}} for name in names]
    offered = {name: value for name, value in chat.items() if name != "tool_choice"}
    return with_instructions(offered | {"tools": chat.get("tools") or made}, _CALL_NOTHING)


_OBJECT_ARGUMENTS: Final = walking(_as_objects)

CALLS: Final = (
    Form("unique_ids", answers(_NOT_UNIQUE, _with_unique_ids), _with_unique_ids, walks_messages=True),
    Form("named_outputs", answers(_NO_NAME, _with_names), _with_names, walks_messages=True),
    Form("nine_character_ids", _asks_short_ids, walking(_with_short_ids), walks_messages=True),
    Form("object_arguments", answers(_OBJECTS, _OBJECT_ARGUMENTS), _OBJECT_ARGUMENTS, walks_messages=True),
    Form("declared_tools", answers(_NO_DECLARATION, _declared), _declared, walks_messages=True),
)
