"""An incremental parser of server-sent events that reads each byte a bounded number of times.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .failure import Failure, too_large

_NAME_BYTES: Final = 1_024
"""Maximum length of an event's name or id, in bytes."""

_RETRY_MS: Final = range(500, 30_001)
"""Bounds on a stream's reconnection time."""


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
    data: bytes
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


class SseParser:
    """A parser that splits a stream into events.

    Args:
        max_bytes: maximum size of one event, including comments.
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
        """Yield the event that a line completes, or None for a line that completes none.

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
                # The id is sent back in a header, which must be ASCII.
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
    if len(value) > _NAME_BYTES:
        raise Failure(502, "The server's events have names or ids that are longer than this server allows.")
    return value
