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

    __slots__ = (
        "_before",
        "_behind",
        "_frame_before",
        "_frame_behind",
        "_frame_end",
        "_frame_start",
        "_misses",
        "_one_line",
        "_rest",
        "_size",
        "_start",
    )

    def __init__(self) -> None:
        self._before = self._behind = b""
        self._frame_before = self._frame_behind = b""
        self._frame_start = self._frame_end = 0
        self._size = self._start = self._rest = 0
        self._one_line = False
        self._misses = 0

    def text(self, data: bytes) -> str | None:
        """Return the text of an event; None if the event differs in anything else, or nothing was learned."""
        if not 0 < self._size <= len(data) or not (data.startswith(self._before) and data.endswith(self._behind)):
            return None
        try:
            # What begins with a quotation mark, as this does, is a string.
            text: str = orjson.loads(data[self._start : len(data) - self._rest])
        except orjson.JSONDecodeError:
            return None
        self._misses = 0
        return text

    @property
    def is_one_line(self) -> bool:
        """Whether an event was learned that takes one line of a stream."""
        return self._size > 0 and self._one_line

    def only_text(self, piece: bytes) -> str | None:
        """Return the text of a piece of the stream that is exactly one event; None as for `text`.

        The learned event takes one line, and the piece begins where an event can begin.
        """
        if not (piece.startswith(self._frame_before) and piece.endswith(self._frame_behind)):
            return None
        try:
            # A JSON string has no line ends, so there is only one event.
            text: str = orjson.loads(piece[self._frame_start : self._frame_end])
        except orjson.JSONDecodeError:
            return None
        self._misses = 0
        return text

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
            self._frame_before, self._frame_behind = b"data: " + self._before, self._behind + b"\n\n"
            self._one_line = b"\n" not in data
            self._frame_start, self._frame_end = len(self._frame_before) - 1, 1 - len(self._frame_behind)

    def forget(self) -> None:
        """Forget what was learned: another event came in between."""
        self._size = 0


def _is_text(text: str, data: bytes, text_of: Callable[[Any], str | None]) -> bool:
    """Return whether an event has this text; False if it is not JSON: the bytes of `","` also separate two strings."""
    try:
        return text_of(loads(data)) == text
    except ValueError:
        return False
