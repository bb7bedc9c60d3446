"""A simulated clock of the running event loop: long timeouts take no time, and a busy machine has no effect.

clock = LoopClock(monkeypatch)
with Watchdog(60.0, SharedTimer()):
    await clock.passes(50.0)                   # everything due by then has happened
await clock.passes_until(task.done)
"""

import asyncio
import time
from collections.abc import Callable

import pytest

TURNS = 10


class LoopClock:
    """The event loop's clock, which runs normally and can be advanced. Limits of minutes then work in tests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the clock until `monkeypatch` is undone."""
        self._ahead = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + self._ahead)

    async def passes(self, seconds: float) -> None:
        """Advance the clock and let all tasks run until they wait again."""
        self._ahead += seconds
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def passes_until(self, holds: Callable[[], bool]) -> None:
        """Advance the clock by five seconds at a time until `holds` returns true."""
        for _ in range(1000):
            if holds():
                return
            await self.passes(5.0)
            await asyncio.sleep(0.005)
        raise AssertionError("still not so after more than an hour")
