"""Comparison of this machine's clock with the store's."""

from __future__ import annotations

from ..intervals import Intervals
from ..logs import get_logger
from ..store.clock import StoreClock
from .periodic import Periodic

logger = get_logger(__name__)


class ClockCheck(Periodic):
    """Reads the store's clock at intervals, and logs an error when this machine's clock differs from it.

    Args:
        clock: the store's clock.
        intervals: how often to read it.
    """

    def __init__(self, clock: StoreClock, intervals: Intervals) -> None:
        pauses = intervals.clock_check_seconds, intervals.store_retry_seconds
        super().__init__(self.check, "could not read the clock of the store", logger, *pauses)
        self._clock = clock
        self._was_wrong = False

    async def check(self) -> None:
        """Read the store's clock, and log changes.

        Raises:
            ApiError: 503, the store does not answer.
        """
        await self._clock.read()
        if self._clock.is_wrong and not self._was_wrong:
            logger.error(
                "the clock of this machine %s: this server is not ready, and deletes no expired responses, until %s",
                _jumped(self._clock.difference) if self._clock.jumped else _differs(self._clock.difference),
                "the clock is back, or all servers of this store are stopped and started, if the new time is right"
                if self._clock.jumped
                else "both agree within a minute",
            )
        elif self._was_wrong and not self._clock.is_wrong:
            logger.info("the clock of this machine is right again")
        self._was_wrong = self._clock.is_wrong


def _jumped(seconds: float) -> str:
    return f"jumped {abs(seconds):.0f} seconds {'ahead' if seconds > 0 else 'back'}"


def _differs(seconds: float) -> str:
    return f"is {abs(seconds):.0f} seconds {'ahead of' if seconds > 0 else 'behind'} the clock of the store"
