"""Lets streams that could go on and on take turns, with everything else in between."""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    """Lets one stream through in each turn of the event loop, in the order in which they came.

    A model server that is fast has always something for its stream to do. If all such streams went on in every turn of
    the loop, a new request, which takes about ten turns until its first word, would wait for all of them ten times.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def through(self) -> None:
        """Waits for its turn."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._let_one_through)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _let_one_through(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_one_through)
