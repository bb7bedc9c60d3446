"""Periodic deletion of expired responses."""

from __future__ import annotations

import asyncio
import random

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..logs import get_logger
from ..store.archive import Archive

logger = get_logger(__name__)


class Sweeper:
    """Deletes the archive's expired responses at intervals.

    Args:
        archive: the archive to sweep.
        interval: mean interval in seconds. Each is 50% to 150% of it, so that several servers do not sweep at once.
    """

    def __init__(self, archive: Archive, interval: float) -> None:
        self._archive = archive
        self._interval = interval
        self._task = LoopTask(self._run)

    def start(self) -> None:
        """Start in the running event loop; do nothing if the sweeper runs in it already."""
        self._task.start()

    async def stop(self) -> None:
        """Stop, and wait until the sweeper's task has ended."""
        await self._task.stop()

    async def _run(self) -> None:
        while True:
            try:
                while await self._archive.sweep():
                    pass
            except ApiError as error:
                logger.warning("could not delete expired responses: %s", error)
            except Exception:
                logger.exception("could not delete expired responses")
            await asyncio.sleep(self._interval * random.uniform(0.5, 1.5))  # noqa: S311 (no secret)
