"""Periodic deletion of expired responses."""

from __future__ import annotations

import asyncio
import random

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
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start in the running event loop; do nothing if the sweeper was started in it before."""
        if self._task is None or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, and wait until the sweeper's task has ended."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

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
