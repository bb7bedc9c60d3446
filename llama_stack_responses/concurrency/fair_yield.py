"""Turns of streams that always have data."""

from __future__ import annotations

import asyncio
from collections import deque


class FairYield:
    """Lets one waiting stream continue in each iteration of the event loop, first come, first served.

    The streams of a fast model server always have data to process. If all of them continued in every iteration of the
    loop, a new request, which takes about ten iterations until its first token, would wait for all of them ten times.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_turn(self) -> None:
        """Wait until the caller may continue."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._let_one_through)
        granted = loop.create_future()
        self._waiting.append(granted)
        await granted

    def _let_one_through(self) -> None:
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_one_through)
