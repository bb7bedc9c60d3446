"""Periodic deletion of expired responses."""

from __future__ import annotations

import asyncio
import random

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..logs import DELETED, get_logger
from ..store.archive import Archive
from ..store.clock import StoreClock
from ..store.expiry import Counts
from ..store.retention import NOTHING
from ..store.sweep_guard import SweepGuard

logger = get_logger(DELETED)


class Sweeper:
    """Deletes the archive's expired responses at intervals, by the store's clock, and finishes interrupted deletions.

    Args:
        archive: the archive to sweep.
        clock: the store's clock. While it and this machine's differ, nothing expires.
        guard: says how far a sweep may go.
        interval: mean interval in seconds. Each is 50% to 150% of it, so that several servers do not sweep at once.
    """

    def __init__(self, archive: Archive, clock: StoreClock, guard: SweepGuard, interval: float) -> None:
        self._archive = archive
        self._clock = clock
        self._guard = guard
        self._interval = interval
        self._task = LoopTask(self._run)

    @property
    def held(self) -> Counts | None:
        """What a sweep would delete that waits for a person; None if none waits."""
        return self._guard.held

    def start(self) -> None:
        """Start in the running event loop; do nothing if the sweeper runs in it already."""
        self._task.start()

    async def stop(self) -> None:
        """Stop, and wait until the sweeper's task has ended."""
        await self._task.stop()

    async def sweep(self) -> None:
        """Delete all that has expired, as far as the clocks and the guard allow.

        Raises:
            ApiError: 503, the store does not answer.
        """
        due = self._archive.horizon(await self._clock.read())
        allowed = NOTHING if self._clock.is_wrong else await self._guard.allowed(due)
        deleted = 0
        try:
            while some := await self._archive.sweep(allowed):
                deleted += some
        finally:
            if deleted:
                logger.info("deleted expired responses: %d", deleted)
        if not self._clock.is_wrong:
            await self._guard.went(allowed)

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
            except ApiError as error:
                logger.warning("could not delete expired responses: %s", error)
            except Exception:
                logger.exception("could not delete expired responses")
            await asyncio.sleep(self._interval * random.uniform(0.5, 1.5))  # noqa: S311 (no secret)
