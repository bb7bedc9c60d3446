"""Measure the number of values and the depth of a JSON document before it is decoded.

An empty array of two bytes takes 64 bytes when decoded, a small object more than 200. Megabytes of brackets take
seconds to decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Any, Final

VALUE_BYTES: Final = 160
"""Approximate bytes of a decoded value: half an object with one member."""

_MIN_VALUE_BYTES: Final = 8
"""Approximate minimum bytes of a value as JSON."""

_CONTAINERS: Final = (dict, list, tuple)

_SLICE_BYTES: Final = 2**16
"""Bytes that one call processes, so that no thread holds the interpreter lock for long."""

_DEPTH_SLICE_BYTES: Final = 2**13
"""The same for the depth, which takes longer for each byte."""

_OPENING_BRACKETS: Final = (b"[", b"{")
_OPENING: Final = (b"[", b"{", b",")
_STRUCTURE: Final = b'[{,"'
_OTHERS: Final = bytes(set(range(256)) - set(_STRUCTURE))

_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - _STEPS.keys() - {ord('"')})


def decoded_bytes(body: bytes | bytearray) -> int:
    """Return the approximate bytes of a JSON document once it is decoded. Takes linear time."""
    return len(body) + VALUE_BYTES * _count_outside_strings(body, len(body), _SLICE_BYTES)


def is_large(value: Any, max_bytes: int) -> bool:
    """Return whether a decoded value takes more than about `max_bytes` as JSON; stop as soon as this is known."""
    return bytes_left(value, max_bytes) < 0


def bytes_left(value: Any, max_bytes: int) -> int:
    """Return how much is left of `max_bytes` after a value, as `is_large` counts; less than 0 if it is larger.

    The provider `remote::openai-chat`, which does not depend on this package, has a count of its own.
    """
    waiting: list[Iterable[Any]] = [(value,)]
    left = max_bytes
    while waiting and left >= 0:
        for each in waiting.pop():
            if isinstance(each, str):
                left -= len(each)
            elif each and isinstance(each, _CONTAINERS):
                left -= _MIN_VALUE_BYTES * len(each)
                if left < 0:
                    break
                if isinstance(each, dict):
                    # Without a loop or a call in Python: they would take longer than all the rest.
                    try:
                        left -= sum(map(len, each))
                    except TypeError:  # a name that is not a string, which is encoded as one
                        left -= sum(len(name) for name in each if isinstance(name, str))
                    waiting.append(each.values())
                else:
                    waiting.append(each)
    return left


def fits(body: bytes | bytearray, values: int, depth: int, slice_bytes: int = _DEPTH_SLICE_BYTES) -> bool:
    """Return whether a JSON document has at most this many values, nested at most this deep.

    An empty array or object counts as two values. Invalid JSON may pass; the decoder rejects it. Takes linear time.
    """
    return count_values(body, values - 1) < values and _fits_depth(body, depth, slice_bytes)


def count_values(body: bytes | bytearray, limit: int, slice_bytes: int = _SLICE_BYTES) -> int:
    """Return the number of arrays, objects and commas in a JSON document: at least half of its values.

    The count is exact if it is over `limit`; below that, it may include characters within strings. For invalid JSON,
    the number has no meaning. Takes linear time and little memory.
    """
    at_most = _count(body, _OPENING, slice_bytes)
    return at_most if at_most <= limit else _count_outside_strings(body, limit, slice_bytes)


def _count(body: bytes | bytearray, marks: Iterable[bytes], slice_bytes: int) -> int:
    starts = range(0, len(body), slice_bytes)
    return sum(body.count(mark, start, start + slice_bytes) for start in starts for mark in marks)


def _fits_depth(body: bytes | bytearray, depth: int, slice_bytes: int) -> bool:
    if _count(body, _OPENING_BRACKETS, _SLICE_BYTES) <= depth:
        return True
    level = 0
    for brackets in map(b"".join, _outside_strings(body, _NO_BRACKETS, slice_bytes)):
        if max(accumulate(map(_STEPS.__getitem__, brackets), initial=level)) > depth:
            return False
        level += 2 * sum(map(brackets.count, _OPENING_BRACKETS)) - len(brackets)
    return True


def _count_outside_strings(body: bytes | bytearray, limit: int, slice_bytes: int) -> int:
    """Return the same count without characters in strings; stop soon after `limit`."""
    count = 0
    for parts in _outside_strings(body, _OTHERS, slice_bytes):
        count += sum(map(len, parts))
        if count > limit:
            break
    return count


def _outside_strings(body: bytes | bytearray, others: bytes, slice_bytes: int) -> Iterator[Iterable[bytes | bytearray]]:
    """Yield the characters outside strings, without `others`: a slice of the document at a time, in parts."""
    in_string, odd = False, False
    for start in range(0, len(body), slice_bytes):
        piece, odd = _without_escapes(body[start : start + slice_bytes], odd=odd)
        parts = piece.translate(None, others).split(b'"')
        # Every second part is outside quotation marks.
        yield islice(parts, in_string, None, 2)
        in_string ^= len(parts) % 2 == 0


def _without_escapes(piece: bytes | bytearray, *, odd: bool) -> tuple[bytes | bytearray, bool]:
    r"""Return the piece without `\\` and `\"`, and whether its last character begins an escape of the next piece.

    Args:
        odd: whether the first character belongs to such an escape.
    """
    piece = piece[odd:]
    if b"\\" not in piece:  # far faster than the replacements
        return piece, False
    ends_in_escape = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
    return piece.replace(b"\\\\", b"").replace(b'\\"', b""), ends_in_escape
