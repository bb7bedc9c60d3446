"""A parser of server-sent events: bytes in, the data of events out."""

from __future__ import annotations

from typing import Final

from .json_encoding import dumps, loads

_OPENING: Final = (b"{", b"<")
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"
_EVENT_BYTES: Final = 1 << 20
"""Maximum size of one event, in bytes."""
_SILENT_BYTES: Final = 1 << 20
"""Maximum bytes of comments, blank lines and events without data between two events."""


class FrameSplitter:
    """A parser of one stream (HTML standard, section 9.2.6).

    Lines end with CR, LF or both; a blank line ends an event; the data lines of an event are joined by LF. Comments,
    ids, names of events and events without data are ignored. What some model servers send instead becomes an event:
    lines `error: {...}` (llama.cpp), events with the name `error`, and JSON or HTML without a field name, which is the
    rest of the stream.

    Attributes:
        is_cut: whether the stream has ended within an event.
    """

    __slots__ = ("_after_cr", "_at_start", "_bare", "_data", "_failed", "_held", "_parts", "_rest", "_silent", "is_cut")

    def __init__(self) -> None:
        self.is_cut = False
        self._rest = b""
        self._parts: list[bytes] = []  # the pieces that continue the incomplete line in `_rest`
        self._held = 0
        self._silent = 0
        self._data: list[bytes] = []
        self._bare: list[bytes] = []  # lines of a body that is no event stream
        self._failed = False  # whether the event has the name of an error
        self._after_cr = False
        self._at_start = True

    @property
    def between_events(self) -> bool:
        """Whether nothing of an event has arrived yet, nor anything but events since the last one."""
        return not (
            self._rest or self._parts or self._data or self._held or self._silent or self._after_cr or self._bare
        )

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that this piece completes.

        Raises:
            ValueError: an event, or the bytes without data between two events, exceed their limit.
        """
        if self._parts or self._data or self._after_cr or piece.find(b"\r") >= 0:
            return self._lines(piece)
        # Fast path: nearly every piece consists of complete events of one line each.
        text = self._rest + piece
        end = text.rfind(b"\n\n")
        events = text[6:end].split(b"\n\ndata: ")
        if end < 0 or not text.startswith(b"data: ") or text.count(b"\n") != 2 * len(events):
            return self._lines(piece)
        self._at_start, self._rest, self._silent = False, text[end + 2 :], 0
        return events

    def end(self) -> list[bytes]:
        """Return the data of a last event without its blank line. A truncated line only sets `is_cut`."""
        rest = b"".join((self._rest, *self._parts))
        events: list[bytes] = []
        if self._bare or rest.lstrip().startswith(_OPENING):
            self._bare.append(rest)
        elif rest.startswith(_DATA) and _is_whole(rest.removeprefix(_DATA).strip()):
            self._line(rest, events)
        else:
            self.is_cut = bool(rest) and (rest.startswith(_DATA) or _DATA.startswith(rest))
        self._bare_event(events)
        return self._finish(events)

    def _lines(self, piece: bytes) -> list[bytes]:
        if not piece:
            return []
        if self._after_cr:
            # A CR LF was split between two pieces.
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if self._at_start:
            piece, self._rest = self._rest + piece, b""
            if len(piece) < len(_BOM) and _BOM.startswith(piece):
                self._rest = piece
                return []
            piece = piece.removeprefix(_BOM)
            self._at_start = False
        self._held += len(piece)
        if self._held > _EVENT_BYTES:
            raise ValueError("The model server's stream has an event that is too long.")
        if piece.find(b"\n") < 0 and piece.find(b"\r") < 0:
            # A long line is joined once, when its end has arrived.
            self._parts.append(piece)
            return []
        text = b"".join((self._rest, *self._parts, piece))
        self._parts.clear()
        self._after_cr = text.endswith(b"\r")
        # `bytes.splitlines` splits only at CR, LF and CR LF.
        lines = text.splitlines()
        self._rest = b"" if not lines or text.endswith((b"\n", b"\r")) else lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._line(line, events)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if not self._bare:
                self._finish(events)
        elif line.startswith(b"data:"):
            self._bare_event(events)
            self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
        elif line == b"data":
            self._data.append(b"")
        else:
            self._other(line, events)

    def _other(self, line: bytes, events: list[bytes]) -> None:
        """Take a line that is no data, which some servers send in place of data."""
        if self._bare or line.lstrip().startswith(_OPENING):
            self._bare.append(line)
            if len(self._bare) == 1 and _is_json(line):
                self._bare_event(events)
        elif line.startswith(b"error:"):
            self._failed = True
            self._data.append(line[6:].strip())
        elif line.startswith(b"event:") and line[6:].strip() == b"error":
            self._failed = True

    def _bare_event(self, events: list[bytes]) -> None:
        """Make an event of lines without a field name."""
        if self._bare:
            events.append(b"\n".join(self._bare))
            self._bare.clear()
            self._held = 0

    def _finish(self, events: list[bytes]) -> list[bytes]:
        self._silent = 0 if self._data else self._silent + self._held
        self._held = 0
        if self._silent > _SILENT_BYTES:
            raise ValueError("The model server's stream has too many lines without data.")
        if self._data:
            data = b"\n".join(self._data)
            self._data.clear()
            events.append(_as_error(data) if self._failed else data)
        self._failed = False
        return events


def _is_whole(data: bytes) -> bool:
    return data == _DONE or _is_json(data)


def _is_json(line: bytes) -> bool:
    if not line.rstrip().endswith(b"}"):
        return False
    try:
        loads(line)
    except ValueError:
        return False
    return True


def _as_error(data: bytes) -> bytes:
    """Return the data of an event that reports an error, as JSON with the member `error`."""
    try:
        value = loads(data)
    except ValueError:
        value = data.decode(errors="replace")
    return dumps(value if isinstance(value, dict) and value.get("error") else {"error": value or "unknown"})
