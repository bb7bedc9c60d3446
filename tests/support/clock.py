"""The clock of the running event loop, put forward by a test: what takes long takes no time, and a busy machine nothing away.

clock = LoopClock(monkeypatch)
with Watchdog(60.0):
    await clock.passes(50.0)                   # whatever was due by then has happened
await clock.passes_until(task.done)
"""

import asyncio
import time
from collections.abc import Callable

import pytest

TURNS = 10


class LoopClock:
    """It goes as always, and may be put forward; limits of minutes are then as good as limits of milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on until `monkeypatch` is undone."""
        self._ahead = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + self._ahead)

    async def passes(self, seconds: float) -> None:
        """Puts it forward and lets all tasks run until they wait again."""
        self._ahead += seconds
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def passes_until(self, holds: Callable[[], bool]) -> None:
        """Puts it forward again and again, five seconds each time, until it holds."""
        for _ in range(1000):
            if holds():
                return
            await self.passes(5.0)
            await asyncio.sleep(0.005)
        raise AssertionError("still not so after more than an hour")
