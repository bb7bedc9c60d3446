"""Answers in one piece, for model servers that do not stream, or not with tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .adaptation import Adaptation
from .refusal import Refusal

_UNSTREAMED: Final = LatePattern(
    r"\bstream(?:ing)?\b(?: mode| responses?)?[^.]{0,40}(?:not (?:\w+ )?support|unsupported|not allowed|disabled)"
    r"|(?:not|n't) support\b[^.]{0,40}\bstreaming\b"
    r"|not (?:\w+ )?(?:support|allow|accept|available)\w*\b[^.]{0,24}\b(?:when|while|if|with|during) stream",
    re.IGNORECASE,
)
_TOOLS: Final = LatePattern(r"\b(?:tools?|functions?)\b", re.IGNORECASE)


def _refuses_stream(refusal: Refusal, chat: Json) -> bool:
    if not chat.get("stream") or refusal.names("stream_options"):
        return False
    return bool(_UNSTREAMED.search(refusal.subject)) or (refusal.says_unsupported and "stream" in refusal.places)


def _asks_no_stream(refusal: Refusal, chat: Json) -> Iterator[None]:
    if _refuses_stream(refusal, chat) and not _TOOLS.search(refusal.words):
        yield None


def _asks_no_stream_with_tools(refusal: Refusal, chat: Json) -> Iterator[None]:
    if _refuses_stream(refusal, chat) and _TOOLS.search(refusal.words) and chat.get("tools"):
        yield None


def in_one_piece(chat: Json) -> Json:
    """Return a chat request whose answer is not streamed."""
    return {name: value for name, value in chat.items() if name != "stream_options"} | {"stream": False}


def _no_stream(chat: Json, _: Any) -> Json:
    return in_one_piece(chat) if chat.get("stream") else chat


def _no_stream_with_tools(chat: Json, argument: Any) -> Json:
    return _no_stream(chat, argument) if chat.get("tools") else chat


UNSTREAMED: Final = ("no_stream", "no_stream_with_tools")
"""The kinds with which the answer is the same."""

STREAMING: Final = (
    Adaptation("no_stream", _asks_no_stream, _no_stream),
    Adaptation("no_stream_with_tools", _asks_no_stream_with_tools, _no_stream_with_tools),
)
