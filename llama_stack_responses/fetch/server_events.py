"""An incremental parser of server-sent events that reads each byte a bounded number of times.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_NAME_BYTES: Final = 1_024
"""Maximum length of an event's name or id, in bytes."""

_FIELD_BYTES: Final = 6
"""Bytes of the longest field's name, and the colon."""

_RETRY_MS: Final = range(500, 30_001)
"""Bounds on a stream's reconnection time."""


class EventTooLarge(ValueError):  # noqa: N818 (a property of the event)
    """An event exceeds its limit."""


class NameTooLong(EventTooLarge):
    """The name or the id of an event exceeds its limit."""


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event.

    Attributes:
        name: event type; `message` by default.
        data: its lines, joined by spaces: equivalent to line breaks between JSON tokens.
        id: position from which the stream can be resumed; empty if there is none.
        retry_ms: reconnection time; None if the server sends none.
    """

    name: bytes
    data: bytes | bytearray
    id: bytes = b""
    retry_ms: int | None = None

    def encoded(self) -> bytes:
        """Encode the event in as few lines as possible."""
        lines = [b"event: " + self.name, b"data: " + self.data]
        if self.id:
            lines.append(b"id: " + self.id)
        if self.retry_ms is not None:
            lines.append(b"retry: %d" % self.retry_ms)
        return b"\n".join([*lines, b"", b""])


class EventParser:
    """A parser that splits a stream into events. It holds the data of one event, and copies it once, as it arrives.

    Args:
        max_bytes: maximum size of one event, including comments.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._line = bytearray()
        self._after_cr = False
        self._name = self._id = b""
        self._data: list[bytearray] = []
        self._retry_ms: int | None = None

    def feed(self, chunk: bytes) -> Iterator[Event | None]:
        """Yield the event that a line completes, or None for a line that completes none.

        Raises:
            EventTooLarge: an event, or its name, is too large.
        """
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        for piece in chunk.splitlines(keepends=True):
            self._size += len(piece)
            if self._size > self._max_bytes:
                raise EventTooLarge(f"An event is larger than {self._max_bytes} bytes.")
            self._line += piece
            if piece.endswith((b"\n", b"\r")):
                line, self._line = self._line, bytearray()
                del line[-2 if piece.endswith(b"\r\n") else -1 :]
                yield self._taken(line)

    def _taken(self, line: bytearray) -> Event | None:
        """Take a line, which may be large: its begin and end are cut off in place."""
        if not line:
            return self._ended()
        colon = line.find(b":", 0, _FIELD_BYTES)
        field = line[:colon] if colon >= 0 else line[:_FIELD_BYTES]
        start = len(field) + 1
        del line[: start + line.startswith(b" ", start)]
        match field:
            case b"data":
                self._data.append(line)
            case b"event":
                self._name = _bounded(line)
            case b"id" if b"\0" not in line:
                # The id is sent back in a header, which must be ASCII.
                self._id = _bounded(line) if line.isascii() else b""
            case b"retry" if line.isdigit():
                self._retry_ms = min(max(int(line[:9]), _RETRY_MS[0]), _RETRY_MS[-1])
        return None

    def _ended(self) -> Event | None:
        data: bytes | bytearray = self._data[0] if len(self._data) == 1 else b" ".join(self._data)
        event = Event(self._name or b"message", data, self._id, self._retry_ms)
        has_any = bool(self._data or self._id or self._retry_ms is not None)
        self._size = 0
        self._name = self._id = b""
        self._data = []
        self._retry_ms = None
        return event if has_any else None


def _bounded(value: bytearray) -> bytes:
    if len(value) > _NAME_BYTES:
        raise NameTooLong(f"The name or id of an event is longer than {_NAME_BYTES} bytes.")
    return bytes(value)
