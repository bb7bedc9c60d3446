"""Events of which only one text differs: the text is read from the bytes around it, and nothing else is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from .json_encoding import dumps, loads

_MARK: Final = "\N{REPLACEMENT CHARACTER}text\N{REPLACEMENT CHARACTER}"
_MAX_MISSES: Final = 16
"""Events that were decoded although they extended a text, after which a stream is taken to repeat nothing."""


class RepeatedEvent:
    """The bytes before and behind the text of an event, as learned from an earlier event of a stream.

    An event with the same bytes, and any JSON string between them, has the same members except that string.
    """

    def __init__(self) -> None:
        self._before = self._behind = b""
        self._size = self._start = self._rest = 0
        self._misses = 0

    def text(self, data: bytes) -> str | None:
        """Return the text of an event; None if the event differs in anything else, or nothing was learned."""
        if not 0 < self._size <= len(data) or not (data.startswith(self._before) and data.endswith(self._behind)):
            return None
        try:
            text = orjson.loads(data[self._start : len(data) - self._rest])
        except orjson.JSONDecodeError:
            return None
        self._misses = 0
        return text if type(text) is str else None

    def learn(self, data: bytes, text: str, text_of: Callable[[Any], str | None]) -> None:
        """Learn from an event with this text, which `text_of` returns of its JSON."""
        self.forget()
        if self._misses >= _MAX_MISSES:
            return
        self._misses += 1
        before, middle, behind = data.partition(dumps(text))
        if middle and _is_text(_MARK, before + dumps(_MARK) + behind, text_of):
            self._before, self._behind = before + b'"', b'"' + behind
            self._start, self._rest = len(before), len(behind)
            self._size = len(self._before) + len(self._behind)

    def forget(self) -> None:
        """Forget what was learned: another event came in between."""
        self._size = 0


def _is_text(text: str, data: bytes, text_of: Callable[[Any], str | None]) -> bool:
    """Return whether an event has this text; False if it is not JSON: the bytes of `","` also separate two strings."""
    try:
        return text_of(loads(data)) == text
    except ValueError:
        return False
