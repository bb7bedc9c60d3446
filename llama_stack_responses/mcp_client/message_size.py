"""What a JSON text holds, counted before it is decoded: megabytes of brackets cost seconds to decode and check."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - _STEPS.keys())


def has_room(text: bytes, values: int, depth: int) -> bool:
    """Whether a JSON text has at most so many values, and arrays and objects at most so deep in one another.

    The work is linear in the text. What is no JSON may pass; the decoder refuses it.
    """
    if text.count(b",") + text.count(b"[") + text.count(b"{") >= values:
        text = _without_strings(text)
        if text.count(b",") + text.count(b"[") + text.count(b"{") >= values:
            return False
    if text.count(b"[") + text.count(b"{") <= depth:
        return True
    brackets = _without_strings(text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) <= depth


def _without_strings(text: bytes) -> bytes:
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2])
