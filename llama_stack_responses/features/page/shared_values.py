"""Values that several streams of one user share, so that a second window costs the store nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

_MAX_KEPT: Final = 64
"""Values that are kept before old ones are dropped."""


class SharedValues[Value]:
    """Makes each value at most once in a period, however many callers need it.

    Args:
        seconds: how long a value is passed on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._futures: dict[Hashable, tuple[float, asyncio.Future[Value]]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[Value]]) -> Value:
        """Return the value of a key; make it if it is old."""
        now = asyncio.get_running_loop().time()
        known = self._futures.get(key)
        if known is None or now - known[0] >= self._seconds:
            self._drop_old(now)
            known = (now, asyncio.ensure_future(make()))
            self._futures[key] = known
        # A stream that ends must not end the work that others wait for.
        return await asyncio.shield(known[1])

    def _drop_old(self, now: float) -> None:
        if len(self._futures) >= _MAX_KEPT:
            self._futures = {key: each for key, each in self._futures.items() if now - each[0] < self._seconds}
