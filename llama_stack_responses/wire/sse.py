"""Server-sent events as bytes (WHATWG HTML, section "Server-sent events")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import methodcaller
from typing import Any, Final

from ..core import json_blocks
from ..core.json_blocks import BLOCK_BYTES, dumps
from ..core.json_values import is_large
from ..stream.delta_forms import delta_form, literal

_IS_DELTA: Final = methodcaller("__contains__", "delta")
DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence after which a stream sends a keep-alive comment."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
_LINE_SEPARATORS: Final = tuple((chr(code).encode(), b"\\u%04x" % code) for code in (0x85, 0x2028, 0x2029))
"""Non-ASCII line ends of Python's `str.splitlines` and similar functions, in UTF-8 and as JSON escapes."""


def comment(sentence: str) -> bytes:
    """Return a comment, which clients ignore, for people who read the stream itself."""
    return b": %b\n\n" % " ".join(sentence.split()).encode()


def encode(events: Iterable[dict[str, Any]]) -> bytes:
    """Return the frames of several events as one piece: `event:` with the type, `data:` with the JSON."""
    return _framed((event, dumps(event)) for event in events)


def _framed(events: Iterable[tuple[dict[str, Any], bytes]]) -> bytes:
    frames = b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), text) for event, text in events])
    return frames if frames.isascii() else without_line_separators(frames)


def named(name: str, data: dict[str, Any]) -> bytes:
    """Return the frame of one event that has no `type`."""
    frame = b"event: %b\ndata: %b\n\n" % (name.encode(), dumps(data))
    return frame if frame.isascii() else without_line_separators(frame)


def without_line_separators(frames: bytes) -> bytes:
    """Escape Unicode line separators, which occur in strings only: some clients split lines at them."""
    for separator, escaped in _LINE_SEPARATORS:
        if separator in frames:
            frames = frames.replace(separator, escaped)
    return frames


def frame_form(event: dict[str, Any]) -> bytes:
    """Return the frame of a delta as a format of its number and its text as JSON, for deltas that differ only in them.

    A text that is not ASCII may leave line separators in the frame.
    """
    return b"event: %b\ndata: %b\n\n" % (literal(event["type"].encode()), delta_form(event))


def pieces(events: Sequence[dict[str, Any]]) -> Iterable[bytes]:
    """Return the frames of several events as one piece, or as blocks if that would be large."""
    # A delta is small, and there are many: only other events are measured before they are encoded.
    if any(is_large(event, BLOCK_BYTES) for event in events if not _IS_DELTA(event)):
        return _blocks(events)
    whole = encode(events)
    return (whole,) if len(whole) <= 2 * BLOCK_BYTES else _blocks(events)


def deltas(events: Sequence[dict[str, Any]], texts: Iterable[bytes] | None = None) -> bytes | None:
    """Return the frames of several deltas as one piece; None if there is another event, or if they are large.

    Args:
        texts: each event as JSON.
    """
    if not all(map(_IS_DELTA, events)):
        return None
    whole = encode(events) if texts is None else _framed(zip(events, texts, strict=True))
    return whole if len(whole) <= 2 * BLOCK_BYTES else None


def small(frames: bytes) -> bytes | None:
    """Return frames without line separators; None if they are large."""
    if len(frames) > 2 * BLOCK_BYTES:
        return None
    return frames if frames.isascii() else without_line_separators(frames)


def run(kind: str, texts: Sequence[bytes]) -> bytes | None:
    """Return the frames of deltas of one type, given each as JSON; None if they are large."""
    head = b"event: %b\ndata: " % kind.encode()
    return small(b"%b%b\n\n" % (head, (b"\n\n%b" % head).join(texts)))


def _blocks(events: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Yield the frames in blocks; each is encoded after the previous one has been taken."""
    frames: list[bytes] = []
    size = 0
    for event in events:
        large = is_large(event, BLOCK_BYTES)
        if not large:
            frames.append(encode((event,)))
            size += len(frames[-1])
        if frames and (large or size >= BLOCK_BYTES):
            yield b"".join(frames)
            frames, size = [], 0
        if large:
            yield from _frame_in_blocks(event)
    if frames:
        yield b"".join(frames)


def _frame_in_blocks(event: dict[str, Any]) -> Iterator[bytes]:
    yield b"event: %b\ndata: " % event["type"].encode()
    yield from json_blocks.blocks(event)
    yield b"\n\n"
