"""Short windows at whose end several jobs of a process store their events together."""

from __future__ import annotations

import asyncio
from typing import Final

_JOBS: Final = 16
"""Maximum jobs of one window: each takes a part of a millisecond."""


class _Window:
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


class BatchWindows:
    """Wakes jobs together, so that a store can write the batches of several jobs in one commit.

    Args:
        seconds: duration of a window.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._window: _Window | None = None

    async def wait(self) -> None:
        """Wait for the end of the current window, or of a new one if there is none or it has enough jobs."""
        loop, window = asyncio.get_running_loop(), self._window
        if window is None or window.loop is not loop or not window.is_open:
            self._window = window = _Window(loop, self._seconds)
        await window.ended()
