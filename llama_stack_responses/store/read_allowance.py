"""Limits on reading stored values, and work on large ones outside the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from ..core.json_values import is_large
from .codec import TooLarge

INLINE_BYTES: Final = 32_768
"""Bytes that the event loop encodes or decodes at a time; more is left to a thread."""

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


class Computation:
    """Several calls on the same JSON values, which are measured once.

    Args:
        of: the values.
    """

    def __init__(self, *of: Any) -> None:
        self._large = is_large(of, INLINE_BYTES)

    async def run[Result](self, call: Callable[[], Result]) -> Result:
        """Return the result of a call on the values; run it in a thread if they are large."""
        return await asyncio.to_thread(call) if self._large else call()


async def computed[Result](call: Callable[[], Result], *of: Any) -> Result:
    """Return the result of a call on these JSON values; run it in a thread if they are large."""
    return await Computation(*of).run(call)


async def computed_each[Value](values: Iterable[Value], *of: Any) -> list[Value]:
    """Return the values of an iterable that computes them from these JSON values, as `computed` does."""
    return await asyncio.to_thread(list_yielding_lock, values) if is_large(of, INLINE_BYTES) else list(values)


def list_yielding_lock[Value](values: Iterable[Value]) -> list[Value]:
    """Return all values, from a thread that yields the interpreter lock after each.

    Otherwise the event loop would repeatedly wait for it, up to the switch interval of five milliseconds.
    """
    read = []
    for value in values:
        read.append(value)
        time.sleep(0)
    return read
