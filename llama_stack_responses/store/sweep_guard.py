"""Stops a deletion of expired responses that would delete far more than usual.

    sw/reached          how far the last deletion of responses of any server went (`Horizon`)
    sw/reached/held     what a deletion of responses that is held back would delete of how many, by the last count; or
                        of how many there were before, if there are more by now (`Counts`)
    sw/conversations, sw/conversations/held    the same of conversations

Servers delete every few minutes, so each deletion goes a few minutes further than the last one. One that goes more than
a day further comes after a long outage, or because the retention was lowered or a backup was restored, or because a
clock is wrong. If it would also delete much of the store, however small that is, a person has to decide: until then,
all servers hold it back, also those that start later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from ..logs import get_logger
from .conversation_store import ConversationStore
from .records import Delete, Put, Records
from .retention import NOTHING, Counts, Horizon

logger = get_logger(__name__)

REACHED: Final = "sw/reached"
CONVERSATIONS: Final = "sw/conversations"

_WORDS: Final = {
    REACHED: ("responses", "retention_days"),
    CONVERSATIONS: ("conversations", "conversation_retention_days"),
}

_RECOUNT_SECONDS: Final = 3600.0
"""Interval of counts while a deletion waits for a person. Each reads all rows of lists."""


def held_row(reached: str) -> str:
    """Return the row of a deletion that is held back."""
    return f"{reached}/held"


async def held_back(records: Records) -> int:
    """Return how many responses and conversations the deletions would delete that servers of the store hold back.

    Raises:
        ApiError: 503, the store does not answer.
    """
    rows = await records.get_many([held_row(REACHED), held_row(CONVERSATIONS)])
    return sum(Counts.decode(row.value).expired for row in rows.values())


class SweepGuard:
    """Says how far a deletion of expired responses may go.

    Args:
        records: the store.
        count: counts the responses that a deletion up to a horizon would delete.
        max_share: a deletion far beyond the last one may delete this share of all responses.
        clock: returns seconds.
        reached: the row that holds how far deletions went.

    Attributes:
        held: what the deletion that waits for a person would delete; None if none waits.
    """

    def __init__(
        self,
        records: Records,
        count: Callable[[Horizon], Awaitable[Counts]],
        max_share: float,
        clock: Callable[[], float] = monotonic,
        reached: str = REACHED,
    ) -> None:
        self._row = reached
        self._records = records
        self._count = count
        self._max_share = max_share
        self._clock = clock
        self._reached = NOTHING
        self._recount_at = 0.0
        self.held: Counts | None = None

    async def allowed(self, due: Horizon) -> Horizon:
        """Return how far a deletion may go that is due up to `due`: as far, or no further than the last one.

        Raises:
            ApiError: 503, the store does not answer.
        """
        rows = await self._records.get_many([self._row, held_row(self._row)])
        record, hold = rows.get(self._row), rows.get(held_row(self._row))
        reached = Horizon.decode(record.value) if record else NOTHING
        if not reached.is_far_before(due):
            if self.held and reached.oldest > self._reached.oldest:
                self._log_confirmed(self.held)
            self.held = None
        elif self.held is None or reached.oldest != self._reached.oldest or self._clock() >= self._recount_at:
            await self._decide(due, Counts.decode(hold.value) if hold else None)
        self._reached = reached
        return reached.clipped(due) if self.held else due

    async def _decide(self, due: Horizon, hold: Counts | None) -> None:
        """Hold the deletion back, or not; `hold` is what its row says, if it is held back already."""
        counts = await self._count(due)
        # What is stored meanwhile, perhaps by a wrong clock, makes the share smaller, and confirms nothing.
        stored = min(counts.stored, hold.stored) if hold else counts.stored
        self.held = counts if min(counts.expired, stored) > self._max_share * stored else None
        noted = Counts(counts.expired, stored)
        if self.held and hold != noted:
            await self._records.commit([Put(held_row(self._row), noted.encode())])
        self._recount_at = self._clock() + _RECOUNT_SECONDS
        self._log()

    async def went(self, horizon: Horizon) -> None:
        """Record how far a deletion went. If none is held back here, this releases it on all servers.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if horizon != self._reached:
            released = [] if self.held else [Delete(held_row(self._row))]
            await self._records.commit([Put(self._row, horizon.encode(), uses_reserve=True), *released])

    def _log_confirmed(self, counts: Counts) -> None:
        """Log that a deletion is held back no longer; who confirmed it, such as a command, has another log."""
        logger.info(
            "the deletion of expired %s that was held back was confirmed: %d of %d are deleted",
            *_WORDS[self._row][:1],
            *counts,
        )

    def _log(self) -> None:
        if self.held:
            logger.warning(
                "held back the deletion of expired %s, which would delete %d of %d: if the clock and the setting '%s' "
                "are right, run `llama-stack-responses sweep --yes`; 'max_swept_share' is the share that needs no "
                "confirmation",
                *_WORDS[self._row][:1],
                *self.held,
                *_WORDS[self._row][1:],
            )


def conversation_guard(
    records: Records, conversations: ConversationStore, max_share: float, clock: Callable[[], float] = monotonic
) -> SweepGuard:
    """Return what says how far a deletion of expired conversations may go."""
    return SweepGuard(
        records, lambda horizon: conversations.count(horizon.oldest), max_share, clock, reached=CONVERSATIONS
    )
