"""Drops expired responses, a few at a time, for as long as the server runs."""

from __future__ import annotations

import asyncio
import random

from ..core.errors import ApiError
from ..logs import get_logger
from ..store.archive import Archive

logger = get_logger(__name__)


class Sweeper:
    """Sweeps the archive now and then.

    Args:
        archive: what is swept.
        interval: seconds between two sweeps, give or take half, so that several servers take turns.
    """

    def __init__(self, archive: Archive, interval: float) -> None:
        self._archive = archive
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins in the running event loop; does nothing when it has begun before."""
        if self._task is None or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends the sweeping and waits for it."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                while await self._archive.sweep():
                    pass
            except ApiError as error:
                logger.warning("expired responses could not be dropped: %s", error)
            except Exception:
                logger.exception("expired responses could not be dropped")
            await asyncio.sleep(self._interval * random.uniform(0.5, 1.5))  # noqa: S311 (no secret)
