"""Turns of streams that always have data, and of requests that arrive together."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from .share import Share, current_share
from .waiting_work import WaitingWork


class FairYield:
    """Lets one piece of work continue in each iteration of the event loop; users take turns, and so does their work.

    The streams of a fast model server always have data to process. If all of them continued in every iteration of the
    loop, a new request, which takes about ten iterations until its first token, would wait for all of them ten times.

    Args:
        pause: iterations of the loop in which no other work of the same user continues.
    """

    def __init__(self, pause: int = 0) -> None:
        self._pause = pause
        self._waiting: WaitingWork[asyncio.Future[None]] = WaitingWork()
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the next turn
        self._iteration = 0
        self._pauses_until: dict[Hashable, int] = {}

    async def wait_turn(self, share: Share | None = None) -> None:
        """Wait until the caller may continue, as work of a user, by default that of the current task."""
        granted = self._plan().create_future()
        self._waiting.add(granted, share or current_share())
        await granted

    async def wait_behind_others(self, share: Share) -> None:
        """Wait as `wait_turn` does, unless no work waits or has just continued."""
        if self._loop is asyncio.get_running_loop():
            await self.wait_turn(share)
        else:
            self._plan()
            self._note(share)

    def _plan(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            loop.call_soon(self._let_one_through)
        return loop

    def _let_one_through(self) -> None:
        self._loop = None
        self._iteration += 1
        while (turn := self._waiting.next(fits=self._may_go)) is not None:
            share, granted = turn
            self._waiting.take(share.user)
            if not granted.done():
                granted.set_result(None)
                self._note(share)
                break
        # Only work that pauses has to know that other work has just continued.
        if self._waiting or (turn and self._pause):
            self._plan()
        else:
            self._pauses_until.clear()

    def _note(self, share: Share) -> None:
        if self._pause:
            self._pauses_until[share.user] = self._iteration + self._pause

    def _may_go(self, share: Share, _: object) -> bool:
        return self._pauses_until.get(share.user, 0) <= self._iteration
