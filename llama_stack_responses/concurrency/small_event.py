"""An event for objects that are many."""

from __future__ import annotations

import asyncio


class SmallEvent:
    """An `asyncio.Event` without a deque of waiters, for objects that are many and hardly ever waited for.

    Args:
        is_set: whether it is set at first.
    """

    __slots__ = ("_is_set", "_waited")

    def __init__(self, *, is_set: bool) -> None:
        self._is_set = is_set
        self._waited: asyncio.Event | None = None

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._is_set = True
        if self._waited:
            self._waited.set()

    def clear(self) -> None:
        """Reset it."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    async def wait(self) -> bool:
        """Wait until it is set."""
        if not self._is_set:
            if self._waited is None or self._waited.is_set():
                self._waited = asyncio.Event()
            await self._waited.wait()
        return True
