"""JSON encoded in blocks. A large value is never encoded whole, so a stalled client costs the memory of one block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import orjson

from llama_stack_responses.core.json_values import is_large

BLOCK: Final = 65_536
"""Approximate bytes of one block."""

_PIECES: Final = 512
"""Maximum values in one block, since a small value takes longer to encode here than its size suggests."""

_TEXT: Final = 16_384
"""Characters of a string that are encoded at once."""

_DEPTH: Final = 32
"""Levels of nesting that are split; large values below them are encoded whole."""


def dumps(value: Any) -> bytes:
    """Return the value as JSON. A lone surrogate, which results when a server cuts a character in two, is escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def blocks(value: Any, block: int = BLOCK, text: int = _TEXT) -> Iterator[bytes]:
    """Yield the value as JSON in blocks; each is encoded after the previous one has been taken."""
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(value, _DEPTH, block, text):
        pieces.append(piece)
        size += len(piece)
        if size >= block or len(pieces) >= _PIECES:
            yield b"".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


def _pieces(value: Any, depth: int, block: int, text: int) -> Iterator[bytes]:
    if not depth or not is_large(value, block):
        yield dumps(value)
    elif isinstance(value, str):
        yield b'"'
        yield from (dumps(value[start : start + text])[1:-1] for start in range(0, len(value), text))
        yield b'"'
    elif isinstance(value, dict):
        for number, (name, member) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if number else b"{", dumps(name))
            yield from _pieces(member, depth - 1, block, text)
        yield b"}"
    else:
        for number, member in enumerate(value):
            yield b"," if number else b"["
            yield from _pieces(member, depth - 1, block, text)
        yield b"]"
