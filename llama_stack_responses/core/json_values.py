"""The size of a JSON document in values and in depth, measured before it is decoded.

Decoded, an empty array takes 64 bytes where it took two as text, and a small object more than 200. Megabytes of
brackets take seconds to decode.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import Final

VALUE_BYTES: Final = 160
"""Bytes that a value takes once it is decoded, about: half an object of one member."""

_SLICE: Final = 2**16
"""Bytes that one call works on, so that no thread holds the interpreter for long."""

_OPENING: Final = (b"[", b"{", b",")
_STRUCTURE: Final = b'[{,"'
_OTHERS: Final = bytes(set(range(256)) - set(_STRUCTURE))

_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - _STEPS.keys())


def fits(body: bytes, values: int, depth: int) -> bool:
    """Whether a JSON document has at most so many values, and arrays and objects nested at most so deep.

    An empty array or object counts as two values. What is not JSON may pass; the decoder refuses it. Takes time in
    proportion to the length.
    """
    return count_values(body, values - 1) < values and _nests_at_most(body, depth)


def count_values(body: bytes, limit: int) -> int:
    """The number of arrays, objects and commas in a JSON document: at least half of its values.

    The count is exact where it is over `limit`; below that, characters within strings may be counted too. What is no
    JSON gets some number. Takes time in proportion to the length, and little memory.
    """
    at_most = sum(body.count(mark, start, start + _SLICE) for start in range(0, len(body), _SLICE) for mark in _OPENING)
    return at_most if at_most <= limit else _count_outside_strings(body, limit)


def _nests_at_most(body: bytes, depth: int) -> bool:
    if body.count(b"[") + body.count(b"{") <= depth:
        return True
    outside_strings = b"".join(_without_escapes(body, odd=False)[0].split(b'"')[::2])
    return max(accumulate(map(_STEPS.__getitem__, outside_strings.translate(None, _NO_BRACKETS))), default=0) <= depth


def _count_outside_strings(body: bytes, limit: int) -> int:
    """The same without what stands in strings; it stops soon after `limit`."""
    found, in_string, odd = 0, False, False
    for start in range(0, len(body), _SLICE):
        piece, odd = _without_escapes(body[start : start + _SLICE], odd=odd)
        structure = piece.translate(None, _OTHERS)
        parts = structure.split(b'"')
        # Every second part stands between quotation marks.
        found += sum(map(len, islice(parts, in_string, None, 2)))
        in_string ^= len(parts) % 2 == 0
        if found > limit:
            break
    return found


def _without_escapes(piece: bytes, *, odd: bool) -> tuple[bytes, bool]:
    r"""The piece without `\\` and `\"`, and whether its last character begins an escape of the next piece.

    Args:
        odd: whether the first character belongs to such an escape.
    """
    piece = piece[odd:]
    ends_in_escape = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
    return piece.replace(b"\\\\", b"").replace(b'\\"', b""), ends_in_escape
