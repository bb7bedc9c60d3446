"""Access to the connections of a pool, for which users take turns, with a maximum wait.

`redis.asyncio.BlockingConnectionPool` does not keep the order: a task that returns a connection and asks for one at
once gets the same connection, and the task that was woken waits again behind all others. With more tasks than
connections, some tasks never get one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ..concurrency.fair_budget import FairBudget
from ..concurrency.share import Share
from ..core.errors import ApiError
from .records import CLOSED

_BUSY: Final = "The response store is busy: all its connections are in use."


class NotSent(ApiError):  # noqa: N818 - a kind of 503
    """A call got no connection; nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, retry_after=1)


def shared_connections(connections: int) -> FairBudget:
    """Return the budget of the connections of a pool: one authenticated user leaves a quarter of them to others."""
    return FairBudget(connections, max(1, connections * 3 // 4))


class ConnectionSlots:
    """Admits as many calls at a time as there are connections, in one event loop.

    Args:
        connections: the number of connections.
        seconds: maximum wait of a call.

    Attributes:
        closed: whether `close` was called.
    """

    def __init__(self, connections: int, seconds: float) -> None:
        self._seconds = seconds
        self._free = shared_connections(connections)
        self.closed = False

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait for a connection, which is this call's for the block.

        Raises:
            NotSent: no connection became free in time, or `close` was called.
        """
        share = await self._take()
        try:
            if self.closed:
                raise NotSent(CLOSED)
            yield
        finally:
            self._free.leave(share)

    async def close(self) -> None:
        """Let waiting calls fail, and wait until the others have ended."""
        self.closed = True
        await self._free.enter(self._free.total)

    async def _take(self) -> Share:
        if self.closed:
            raise NotSent(CLOSED)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._free.enter()
        except TimeoutError as error:
            raise NotSent(_BUSY) from error
