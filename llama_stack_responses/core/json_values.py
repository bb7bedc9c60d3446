"""Measure the number of values and the depth of a JSON document before it is decoded.

An empty array of two bytes takes 64 bytes when decoded, a small object more than 200. Megabytes of brackets take
seconds to decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any, Final

VALUE_BYTES: Final = 160
"""Approximate bytes of a decoded value: half an object with one member."""

_MIN_VALUE_BYTES: Final = 8
"""Approximate minimum bytes of a value as JSON."""

_CONTAINERS: Final = (dict, list, tuple)

_SLICE_BYTES: Final = 2**16
"""Bytes that one call processes, so that no thread holds the interpreter lock for long."""

_OPENING: Final = (b"[", b"{", b",")
_STRUCTURE: Final = b'[{,"'
_OTHERS: Final = bytes(set(range(256)) - set(_STRUCTURE))

_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - _STEPS.keys())


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


def fits(body: bytes | bytearray, values: int, depth: int) -> bool:
    """Return whether a JSON document has at most this many values, nested at most this deep.

    An empty array or object counts as two values. Invalid JSON may pass; the decoder rejects it. Takes linear time.
    """
    return count_values(body, values - 1) < values and _fits_depth(body, depth)


def count_values(body: bytes | bytearray, limit: int, slice_bytes: int = _SLICE_BYTES) -> int:
    """Return the number of arrays, objects and commas in a JSON document: at least half of its values.

    The count is exact if it is over `limit`; below that, it may include characters within strings. For invalid JSON,
    the number has no meaning. Takes linear time and little memory.
    """
    starts = range(0, len(body), slice_bytes)
    at_most = sum(body.count(mark, start, start + slice_bytes) for start in starts for mark in _OPENING)
    return at_most if at_most <= limit else _count_outside_strings(body, limit, slice_bytes)


def _fits_depth(body: bytes | bytearray, depth: int) -> bool:
    if body.count(b"[") + body.count(b"{") <= depth:
        return True
    outside_strings = b"".join(_without_escapes(body, odd=False)[0].split(b'"')[::2])
    return max(accumulate(map(_STEPS.__getitem__, outside_strings.translate(None, _NO_BRACKETS))), default=0) <= depth


def _count_outside_strings(body: bytes | bytearray, limit: int, slice_bytes: int) -> int:
    """Return the same count without characters in strings; stop soon after `limit`."""
    count, in_string, odd = 0, False, False
    for start in range(0, len(body), slice_bytes):
        piece, odd = _without_escapes(body[start : start + slice_bytes], odd=odd)
        structure = piece.translate(None, _OTHERS)
        parts = structure.split(b'"')
        # Every second part is outside quotation marks.
        count += sum(map(len, islice(parts, in_string, None, 2)))
        in_string ^= len(parts) % 2 == 0
        if count > limit:
            break
    return count


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
