"""Server-sent events out of bytes as they come: each byte is looked at a bounded number of times.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .failure import Failure, too_large

_LONGEST_NAME: Final = 1_024
"""Bytes of an event's name or id."""

_RETRY_MS: Final = range(500, 30_001)
"""How soon a stream may be asked for again."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        name: its kind; `message` where the server does not say.
        data: its lines, joined by a space: line breaks within JSON are spaces.
        id: where the stream can be taken up again; empty if it cannot.
        retry_ms: how long to wait before it is; None if the server does not say.
    """

    name: bytes
    data: bytes
    id: bytes = b""
    retry_ms: int | None = None

    def encoded(self) -> bytes:
        """The event as bytes, in the fewest lines."""
        lines = [b"event: " + self.name, b"data: " + self.data]
        if self.id:
            lines.append(b"id: " + self.id)
        if self.retry_ms is not None:
            lines.append(b"retry: %d" % self.retry_ms)
        return b"\n".join([*lines, b"", b""])


class EventReader:
    """Splits a stream into events.

    Args:
        max_bytes: size of one event, comments included.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._line = bytearray()
        self._after_cr = False
        self._name = self._id = b""
        self._data: list[bytes] = []
        self._retry_ms: int | None = None

    def feed(self, chunk: bytes) -> Iterator[Event | None]:
        """The events that a chunk completes; None for each line that completes none.

        Raises:
            Failure: an event is too large.
        """
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        for line in chunk.splitlines(keepends=True):
            self._size += len(line)
            if self._size > self._max_bytes:
                raise too_large()
            self._line += line
            if line.endswith((b"\n", b"\r")):
                whole = bytes(self._line).rstrip(b"\r\n")
                self._line.clear()
                yield self._taken(whole)

    def _taken(self, line: bytes) -> Event | None:
        if not line:
            return self._ended()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._data.append(value)
            case b"event":
                self._name = _bounded(value)
            case b"id" if b"\0" not in value:
                # It goes back in a header, which takes no other characters.
                self._id = _bounded(value) if value.isascii() else b""
            case b"retry" if value.isdigit():
                self._retry_ms = min(max(int(value[:9]), _RETRY_MS[0]), _RETRY_MS[-1])
        return None

    def _ended(self) -> Event | None:
        event = Event(self._name or b"message", b" ".join(self._data), self._id, self._retry_ms)
        has_any = bool(self._data or self._id or self._retry_ms is not None)
        self._size = 0
        self._name = self._id = b""
        self._data = []
        self._retry_ms = None
        return event if has_any else None


def _bounded(value: bytes) -> bytes:
    if len(value) > _LONGEST_NAME:
        raise Failure(502, "The server's events have names or ids that are longer than this server takes.")
    return value
