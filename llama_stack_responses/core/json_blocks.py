"""JSON encoded in blocks. A large value is never encoded whole, so a stalled client costs the memory of one block."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson

from .json_values import is_large

BLOCK_BYTES: Final = 65_536
"""Approximate bytes of one block."""

_BLOCK_VALUES: Final = 512
"""Maximum values in one block, since a small value takes longer to encode here than its size suggests."""

_TEXT_CHARACTERS: Final = 16_384
"""Characters of a string that are encoded at once."""

_CHECKED_BYTES: Final = 2**20
"""Approximate bytes that `check` encodes at once."""

_DEPTH: Final = 32
"""Levels of nesting that are split; large values below them are encoded whole."""


def dumps(value: Any) -> bytes:
    """Return the value as JSON without spaces.

    Python's encoder writes what `orjson` refuses: lone surrogates, which result when a server cuts a character in two,
    as escapes, and integers over 64 bits.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def ordered_dumps(value: Any) -> bytes:
    """Return what `dumps` returns, with sorted names."""
    try:
        return _strict(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def blocks(value: Any, block: int = BLOCK_BYTES, text: int = _TEXT_CHARACTERS) -> Iterator[bytes]:
    """Yield the value as JSON in blocks; each is encoded after the previous one has been taken."""
    return _joined(_pieces(value, _Form(dumps, block, text)), block)


def strict_blocks(value: Any) -> Iterator[bytes]:
    """Yield the value as JSON in blocks, as `orjson` encodes it.

    Raises:
        TypeError: it holds what `orjson` does not encode.
    """
    return _joined(_pieces(value, _Form(orjson.dumps, BLOCK_BYTES, _TEXT_CHARACTERS)), BLOCK_BYTES)


def ordered_blocks(value: Any, block: int = BLOCK_BYTES, text: int = _TEXT_CHARACTERS) -> Iterator[bytes]:
    """Yield the value as JSON with sorted names, in blocks, as `ordered_dumps` encodes it.

    That encodes a whole value differently if it has a lone surrogate or a very large number.
    """
    try:
        for _ in _pieces(value, _Form(_strict, block, text)):
            pass
    except TypeError:
        encoder = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
        return _joined((piece.encode() for piece in encoder.iterencode(value)), block)
    return _joined(_pieces(value, _Form(_strict, block, text, ordered=True)), block)


def check(value: Any, depth: int = 0) -> None:
    """Encode the value in pieces, and drop them.

    Args:
        depth: how deep it is nested in another one.

    Raises:
        TypeError: it holds what `orjson` does not encode: a lone surrogate, a very large number, too many levels.
    """
    if depth == _DEPTH or not is_large(value, _CHECKED_BYTES):
        for _ in range(depth):
            value = [value]
        orjson.dumps(value)
    elif isinstance(value, str):
        for start in range(0, len(value), _TEXT_CHARACTERS):
            orjson.dumps(value[start : start + _TEXT_CHARACTERS])
    else:
        for member in chain(value, value.values()) if isinstance(value, dict) else value:
            check(member, depth + 1)


def _strict(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True, slots=True)
class _Form:
    """How a value is encoded.

    Attributes:
        dumps: encodes what is not split.
        block: bytes from which a value is split.
        text: characters of a string that are encoded at once.
        ordered: whether names are sorted.
    """

    dumps: Callable[[Any], bytes]
    block: int
    text: int
    ordered: bool = False


def _joined(pieces: Iterable[bytes], block: int) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= block or len(gathered) >= _BLOCK_VALUES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _pieces(value: Any, form: _Form, depth: int = _DEPTH) -> Iterator[bytes]:
    if not depth or not is_large(value, form.block):
        yield form.dumps(value)
    elif isinstance(value, str):
        yield b'"'
        yield from (form.dumps(value[start : start + form.text])[1:-1] for start in range(0, len(value), form.text))
        yield b'"'
    elif isinstance(value, dict):
        for number, name in enumerate(sorted(value) if form.ordered else value):
            yield b"%b%b:" % (b"," if number else b"{", form.dumps(name))
            yield from _pieces(value[name], form, depth - 1)
        yield b"}"
    else:
        for number, member in enumerate(value):
            yield b"," if number else b"["
            yield from _pieces(member, form, depth - 1)
        yield b"]"
