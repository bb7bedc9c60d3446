"""Which refusals are of a model, so that what they ask for is remembered, and which of one request or one moment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ...core.types import Json
from .message_edits import parts_of
from .refusal import Refusal

_PASSING: Final = re.compile(
    r"\b(?:busy|overload\w*|temporar\w*|maintenance|warming up|right now|at the moment|quota"
    r"|(?:at|over|out of) capacity"
    r"|service (?:is )?unavailable|(?:retry|try again) (?:later|in|after)|rate.?limit\w*)\b|\bplease retry\b(?! with)",
    re.IGNORECASE,
)
"""Words about the state of a server or of an account, which passes."""

_TOGETHER: Final = re.compile(
    r"\b(?:together|combin\w+|conjunction|simultaneous\w*|at the same time|both|alongside|while|when|if|unless"
    r"|incompatible|mutually|only one)\b"
    r"|\bwith\b(?! (?:(?:this|the|your|these|that|an?) )?(?:(?:current|selected|chosen|given) )?"
    r"(?:model|request|endpoint|api|server|provider|version)s?\b)",
    re.IGNORECASE,
)
"""Words that say that things are refused together."""
_REFUSES: Final = re.compile(
    r"\b(?:does not|doesn't|do not|don't|cannot|can't) (?:support|accept|allow|use|work)", re.IGNORECASE
)

_WORDS: Final = {
    "tools": r"\b(?:tools?|functions?)\b(?![ _-]choice)",
    "response_format": (
        r"\bresponse[ _](?:format|mime)|\bjson[ _-]?(?:schema|mode|object)|\bstructured output|\bapplication/json"
    ),
    "image_url": r"\bimages?\b|\bimage_url\b|\bmulti-?modal|\bvision\b",
    "reasoning_effort": r"(?<![a-z])(?:reasoning|thinking)(?!_content|_details)",
    "stream": r"\bstream(?:ing)?\b",
    "parallel_tool_calls": r"\bparallel[ _]tool[ _]calls?\b|\bparallel\b",
}
"""How servers name the parts of a request that have other names in texts."""
_OF_TOOLS: Final = frozenset({"tool_choice", "parallel_tool_calls", "strict"})
_UNNAMED: Final = frozenset({"messages", "model", "n", "stream_options", "tools", "top_logprobs"})
"""Members of a request that are no parts of their own, or are looked for otherwise."""


def is_general(refusal: Refusal, chat: Json) -> bool:
    """Return whether a refusal is of what it names alone, at any time: not of two parts of a request together."""
    return not (is_passing(refusal) or is_of_two(refusal, chat))


def is_passing(refusal: Refusal) -> bool:
    """Return whether a refusal speaks of a state that passes."""
    return _PASSING.search(refusal.words) is not None


def is_of_two(refusal: Refusal, chat: Json) -> bool:
    """Return whether a refusal says that parts of a request, which it has, are refused together."""
    text = refusal.subject
    found = {name: at for name in _parts(chat) if (at := _place(name, text)) is not None}
    if not _OF_TOOLS.isdisjoint(found):
        found.pop("tools", None)
    if len(found) < 2:
        return False
    refuses = _REFUSES.search(text)
    across = refuses and min(found.values()) < refuses.start() < max(found.values())
    return bool(across or _TOGETHER.search(text))


def _place(name: str, text: str) -> int | None:
    match = re.search(_WORDS.get(name, rf"(?<![a-z_]){re.escape(name)}(?![a-z_])"), text, re.IGNORECASE)
    return match.start() if match else None


def _parts(chat: Json) -> Iterator[str]:
    """Yield the names of the parts of a request."""
    yield from (name for name, value in chat.items() if name not in _UNNAMED and value not in (None, False, "auto"))
    if chat.get("tools"):
        yield "tools"
        if any(_members(tool).get("strict") for tool in chat["tools"]):
            yield "strict"
    if any(kind == "image_url" for kind, *_ in media_marks(chat)):
        yield "image_url"


def _members(tool: Any) -> Json:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function if isinstance(function, dict) else {}


_MARK_CHARACTERS: Final = 64
_DATA: Final = {"image_url": "url", "input_audio": "data"}
"""The member that has the data of a part, or its address, by the type of the part."""


type Mark = tuple[str, int, str, str]


def media_marks(chat: Json) -> Iterator[Mark]:
    """Yield what tells the images and recordings of a chat request apart: their types, lengths, beginnings and ends."""
    for message in chat.get("messages") or ():
        content = message.get("content")
        for part in parts_of(content) if isinstance(content, list) else ():
            kind = str(part.get("type"))
            held = part.get(kind) if kind in _DATA else None
            data = held.get(_DATA[kind]) if isinstance(held, dict) else None
            if isinstance(data, str):
                yield kind, len(data), data[:_MARK_CHARACTERS], data[-_MARK_CHARACTERS:]
