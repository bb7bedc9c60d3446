"""JSON for and from the model server: encoded in pieces, decoded within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson
from pydantic import BaseModel

_OPENING: Final = (b"[", b"{", b",")
_OTHERS: Final = bytes(set(range(256)) - set(b'[{,"'))
_SLICE_BYTES: Final = 1 << 16
_MAX_DIGITS: Final = 20

_PIECE_BYTES: Final = 1 << 16
"""Approximate bytes of a value that is encoded in one call."""
_MIN_VALUE_BYTES: Final = 8
"""Approximate minimum bytes of a value as JSON."""


def pieces(value: Any) -> Iterator[bytes]:
    """Yield a value as JSON in pieces."""
    if not is_large(value, _PIECE_BYTES):
        yield dumps(value)
    elif isinstance(value, str):
        yield b'"'
        yield from (dumps(value[start : start + _PIECE_BYTES])[1:-1] for start in range(0, len(value), _PIECE_BYTES))
        yield b'"'
    elif isinstance(value, dict):
        for number, name in enumerate(value):
            yield b"%b%b:" % (b"," if number else b"{", dumps(name))
            yield from pieces(value[name])
        yield b"}"
    else:
        for number, member in enumerate(value):
            yield b"," if number else b"["
            yield from pieces(member)
        yield b"]"


def is_large(value: Any, limit: int) -> bool:
    """Return whether a value takes more than about `limit` bytes as JSON; stop as soon as this is known."""
    waiting: list[Iterable[Any]] = [(value,)]
    left = limit
    while waiting and left >= 0:
        for each in waiting.pop():
            if isinstance(each, str):
                left -= len(each)
            elif isinstance(each, (dict, list)):
                left -= _MIN_VALUE_BYTES * len(each)
                if left < 0:
                    break
                waiting.append(each)
                if isinstance(each, dict):
                    waiting.append(each.values())
    return left < 0


def dumps(value: Any) -> bytes:
    """Encode JSON. Lone surrogates, which a client can send, are escaped; integers may have any size."""
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def loads(data: bytes | bytearray) -> Any:
    """Decode JSON, including NaN, infinities and lone surrogates, which some servers send.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("It is nested too deeply.") from error


def loads_few(data: bytes, limit: int) -> Any:
    """Decode JSON of at most `limit` arrays, objects and commas outside strings, which are counted in linear time.

    Raises:
        ValueError: it is not JSON, or has more.
    """
    if sum(map(data.count, _OPENING)) > limit and _has_more(data, limit):
        raise ValueError("The model server's answer has too many values.")
    return loads(data)


def _has_more(data: bytes, limit: int) -> bool:
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    count, in_string = 0, False
    for start in range(0, len(plain), _SLICE_BYTES):
        parts = plain[start : start + _SLICE_BYTES].translate(None, _OTHERS).split(b'"')
        # Every second part is outside quotation marks.
        count += sum(map(len, parts[in_string::2]))
        in_string ^= len(parts) % 2 == 0
        if count > limit:
            return True
    return False


def _integer(digits: str) -> int | float:
    """Return an integer; a float for one of more digits than 64 bits have, since long ones take quadratic time."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    raise TypeError(f"a request cannot carry {value!r:.100}")
