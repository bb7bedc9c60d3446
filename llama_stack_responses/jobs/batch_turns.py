"""Turns in which the jobs of a process store their events."""

from __future__ import annotations

import asyncio
from typing import Final

_JOBS: Final = 16
"""Maximum jobs of one turn: each takes a part of a millisecond."""


class _Turn:
    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop = loop
        self.jobs = 0
        self._ended = asyncio.Event()
        loop.call_later(seconds, self._ended.set)

    @property
    def is_open(self) -> bool:
        """Whether another job may join."""
        return not self._ended.is_set() and self.jobs < _JOBS

    async def ended(self) -> None:
        """Wait for the end."""
        self.jobs += 1
        await self._ended.wait()


class BatchTurns:
    """Wakes jobs together, so that a store can write the batches of several jobs in one commit.

    Args:
        seconds: duration of a turn.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn: _Turn | None = None

    async def wait(self) -> None:
        """Wait for the end of the present turn, or of a new one if there is none or it has enough jobs."""
        loop, turn = asyncio.get_running_loop(), self._turn
        if turn is None or turn.loop is not loop or not turn.is_open:
            self._turn = turn = _Turn(loop, self._seconds)
        await turn.ended()
