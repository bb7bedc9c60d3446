"""A budget of bytes, or of another unit, for pieces of work that run at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Budget:
    """Units that concurrent pieces of work of one event loop may hold. Waiting work is admitted in order.

    Args:
        total: units. Work that needs more is admitted alone.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._left = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def left(self) -> int:
        """Units that are not held."""
        return self._left

    def has_room(self, size: int) -> bool:
        """Return whether `hold` would not wait."""
        return not self._waiting and min(size, self.total) <= self._left

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold `size` units during the block, and wait until they are free."""
        size = min(size, self.total)
        if self.has_room(size):
            self._left -= size
        else:
            await self._wait(size)
        try:
            yield
        finally:
            self._give_back(size)

    async def _wait(self, size: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        self._waiting.append(entry)
        try:
            await granted
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._admit()
            else:
                self._give_back(size)
            raise

    def _give_back(self, size: int) -> None:
        self._left += size
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._left:
            size, granted = self._waiting.popleft()
            self._left -= size
            if granted.done():  # cancelled, but its task has not run yet: `_wait` gives its units back
                continue
            granted.set_result(None)
