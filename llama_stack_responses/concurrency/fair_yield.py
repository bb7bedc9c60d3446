"""Turns of streams that always have data."""

from __future__ import annotations

import asyncio

from .share import current_share
from .waiting_work import WaitingWork


class FairYield:
    """Lets one waiting stream continue in each iteration of the event loop; users take turns, and so do their streams.

    The streams of a fast model server always have data to process. If all of them continued in every iteration of the
    loop, a new request, which takes about ten iterations until its first token, would wait for all of them ten times.
    """

    def __init__(self) -> None:
        self._waiting: WaitingWork[asyncio.Future[None]] = WaitingWork()

    async def wait_turn(self) -> None:
        """Wait until the caller may continue."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._let_one_through)
        granted = loop.create_future()
        self._waiting.add(granted, current_share())
        await granted

    def _let_one_through(self) -> None:
        while (turn := self._waiting.next()) is not None:
            share, granted = turn
            self._waiting.take(share.user)
            if not granted.done():
                granted.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_one_through)
