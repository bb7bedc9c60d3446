"""What a server does at intervals while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..logs import Logger, Outage


class Periodic:
    """Something that is done at intervals in the event loop. Its failures are logged, and it is done again.

    Args:
        work: does it once. It may raise an `ApiError`, 503: the store does not answer.
        failure: what a failure means, the beginning of its log line.
        logger: logs failures.
        seconds: interval between the end of one time and the next.
        retry_seconds: interval after the store has not answered; `seconds` if None.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        failure: str,
        logger: Logger,
        seconds: float,
        retry_seconds: float | None = None,
    ) -> None:
        self._work = work
        self._failure = failure
        self._logger = logger
        self._seconds = seconds
        self._retry_seconds = seconds if retry_seconds is None else retry_seconds
        self._task = LoopTask(self._repeat)
        self._next: float | None = None

    def start(self) -> None:
        """Start in the running event loop; do nothing if it runs in it already."""
        self._task.start()

    async def stop(self) -> None:
        """Stop, and wait until the task has ended."""
        await self._task.stop()

    @property
    def seconds_left(self) -> float | None:
        """The seconds until it is done again; None while it is being done, and before the first time."""
        return None if self._next is None else max(0.0, self._next - time.monotonic())

    def _pause(self, seconds: float) -> float:
        """Return how long to pause, of the interval."""
        return seconds

    async def _repeat(self) -> None:
        outage = Outage()
        while True:
            seconds, self._next = self._seconds, None
            try:
                await self._work()
                outage.over()
            except ApiError as error:
                if outage.should_log(error):
                    self._logger.warning("%s: %s", self._failure, error)
                seconds = self._retry_seconds
            except Exception:
                self._logger.exception(self._failure)
            pause = self._pause(seconds)
            self._next = time.monotonic() + pause
            await asyncio.sleep(pause)
