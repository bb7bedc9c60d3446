"""The time before a shutdown in which running responses may finish."""

from __future__ import annotations

import asyncio
from collections.abc import Collection


class Finishing:
    """Waits until nothing runs any more.

    Args:
        running: what runs now; it changes.
        seconds: how long to wait at most.

    Attributes:
        begun: whether a shutdown was requested.
    """

    def __init__(self, running: Collection[object], seconds: float) -> None:
        self.begun = False
        self._running = running
        self._seconds = seconds
        self._done: asyncio.Future[None] | None = None

    def begin(self) -> asyncio.Future[None] | None:
        """Return a future that is done once nothing runs, and cancelled after the time limit.

        None if nothing runs, the time limit is 0, or a shutdown was requested before.
        """
        before, self.begun = self.begun, True
        if before or not self._running or not self._seconds:
            return None
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        loop.call_later(self._seconds, self._done.cancel)
        return self._done

    def check(self) -> None:
        """End the wait if nothing runs; call it when something has ended."""
        if self._done and not self._done.done() and not self._running:
            self._done.set_result(None)
