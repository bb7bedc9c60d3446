"""Limits on reading stored values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .codec import TooLarge

PAGE_BYTES: Final = 8 * 2**20
"""Bytes with which a page of a list ends, or one step of reading in steps."""


class ReadAllowance:
    """A limit on the bytes that one piece of work may still read from the store.

    Args:
        max_bytes: bytes, as `codec.size` counts them; None for no limit.
        hold: is called with the number of bytes that were read, or are about to be decoded; it may raise.
    """

    def __init__(self, max_bytes: int | None = None, hold: Callable[[int], object] | None = None) -> None:
        self.left = max_bytes
        self._hold = hold
        self._encoded = 0

    @property
    def past(self) -> int | None:
        """The least number of bytes that exceeds the limit."""
        return None if self.left is None else self.left + 1

    def check(self, size: int) -> None:
        """Raise `TooLarge` if this many bytes exceed the limit."""
        if self.left is not None and size > self.left:
            raise TooLarge

    def hold(self, size: int) -> None:
        """Count encoded values of this many bytes as held until `spend` is called; raise what `hold` raises.

        Values wait for a thread before they are decoded.
        """
        if self._hold:
            self._hold(size)
            self._encoded += size

    def spend(self, size: int) -> None:
        """Count this many bytes, which are within the limit, as read; raise what `hold` raises."""
        if self._hold:
            self._hold(max(0, size - self._encoded))
            self._encoded = max(0, self._encoded - size)
        if self.left is not None:
            self.left -= size
