"""Periodic deletion of expired responses and conversations."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

from ..logs import DELETED, Logger, get_logger
from ..store.archive import Archive
from ..store.clock import StoreClock
from ..store.conversation_store import ConversationStore
from ..store.retention import NOTHING, Counts, Retention
from ..store.sweep_guard import SweepGuard
from .periodic import Periodic

logger = get_logger(DELETED)

_HELD_SECONDS: Final = 10.0
"""Longest interval while a deletion waits for a person, so that the servers soon go on by themselves."""


class Sweeper(Periodic):
    """Deletes what has expired at intervals, by the store's clock.

    Args:
        work, failure, logger: as for `Periodic`.
        clock: the store's clock. While it and this machine's differ, nothing expires.
        guard: says how far a sweep may go.
        interval: mean interval in seconds. Each is 50% to 150% of it, so that several servers do not sweep at once.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[None]],
        failure: str,
        logger: Logger,
        clock: StoreClock,
        guard: SweepGuard,
        interval: float,
    ) -> None:
        super().__init__(work, failure, logger, interval)
        self._clock = clock
        self._guard = guard

    @property
    def held(self) -> Counts | None:
        """What a sweep would delete that waits for a person; None if none waits."""
        return self._guard.held

    def _pause(self, seconds: float) -> float:
        return (min(seconds, _HELD_SECONDS) if self.held else seconds) * random.uniform(0.5, 1.5)  # noqa: S311 (no secret)


class ResponseSweeper(Sweeper):
    """Deletes the archive's expired responses, and finishes interrupted deletions.

    Args:
        archive: the archive to sweep.
        clock, guard, interval: as for `Sweeper`.
    """

    def __init__(self, archive: Archive, clock: StoreClock, guard: SweepGuard, interval: float) -> None:
        super().__init__(self.sweep, "could not delete expired responses", logger, clock, guard, interval)
        self._archive = archive

    async def sweep(self) -> None:
        """Delete all that has expired, as far as the clocks and the guard allow, and finish interrupted deletions.

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


class ConversationSweeper(Sweeper):
    """Deletes conversations that were not changed for long.

    Args:
        conversations: the store of conversations.
        retention: how long after its last change a conversation is kept.
        clock, guard, interval: as for `Sweeper`.
    """

    def __init__(
        self,
        conversations: ConversationStore,
        retention: Retention,
        clock: StoreClock,
        guard: SweepGuard,
        interval: float,
    ) -> None:
        super().__init__(self.sweep, "could not delete expired conversations", logger, clock, guard, interval)
        self._conversations = conversations
        self._retention = retention

    async def sweep(self) -> None:
        """Delete all that has expired, as far as the clocks and the guard allow.

        Raises:
            ApiError: 503, the store does not answer.
        """
        due = self._retention.horizon(await self._clock.read())
        if self._clock.is_wrong:
            return
        allowed = await self._guard.allowed(due)
        if deleted := await self._conversations.expire(allowed.oldest):
            logger.info("deleted expired conversations: %d", deleted)
        await self._guard.went(allowed)
