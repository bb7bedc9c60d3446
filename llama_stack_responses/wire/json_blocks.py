"""A JSON value as bytes in blocks: a large one is never encoded whole, so that a client that stalls costs one block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import orjson

BLOCK: Final = 65_536
"""Bytes that are sent at a time, about."""

_TEXT: Final = 16_384
"""Characters of a text that are encoded at a time."""

_VALUE: Final = 8
"""Bytes that a value takes at least, about."""

_DEPTH: Final = 32
"""Levels of nesting that are opened; what is large below them is encoded whole."""


def dumps(value: Any) -> bytes:
    """JSON. A lone surrogate, which a server can send when it cuts a character in two, is escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def blocks(value: Any) -> Iterator[bytes]:
    """The value as JSON, in pieces of about a block, each made when the one before it has been taken."""
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(value, _DEPTH):
        pieces.append(piece)
        size += len(piece)
        if size >= BLOCK:
            yield b"".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    if not depth or not _is_large(value):
        yield dumps(value)
    elif isinstance(value, str):
        yield b'"'
        yield from (dumps(value[start : start + _TEXT])[1:-1] for start in range(0, len(value), _TEXT))
        yield b'"'
    elif isinstance(value, dict):
        for number, (name, member) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if number else b"{", dumps(name))
            yield from _pieces(member, depth - 1)
        yield b"}"
    else:
        for number, member in enumerate(value):
            yield b"," if number else b"["
            yield from _pieces(member, depth - 1)
        yield b"]"


def _is_large(value: Any) -> bool:
    """Whether a value takes more than a block; stops as soon as that is known."""
    left, waiting = BLOCK, [value]
    while waiting and left >= 0:
        each = waiting.pop()
        if isinstance(each, str):
            left -= len(each)
        elif isinstance(each, dict | list):
            left -= _VALUE * len(each)
            if left >= 0:
                waiting += each.values() if isinstance(each, dict) else each
    return left < 0
