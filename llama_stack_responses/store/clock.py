"""The clock by which responses are kept: that of the store, which all of its servers share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from .records import Records

MAX_DIFFERENCE_SECONDS: Final = 60.0
"""A clock that differs by more is wrong. Clocks that are kept by NTP differ by milliseconds."""


def elapsed() -> float:
    """Return seconds of a monotonic clock that goes on while the machine sleeps."""
    # Linux stops its monotonic clock meanwhile, other systems do not.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StoreClock:
    """Returns the time of the store's clock without a round trip, and compares this machine's clock with it.

    Between two readings it advances by `elapsed`. A store without a clock of its own has that of this machine, as it is
    or without its jumps. This machine's clock is then compared with the time that has elapsed since the first reading:
    if it jumps, this clock does not follow.

    Args:
        records: the store.
        wall: this machine's clock, in seconds since the epoch.
        elapsed: returns seconds of a monotonic clock.

    Attributes:
        difference: seconds by which this machine's clock was ahead at the last reading; negative if it was behind.
    """

    def __init__(
        self,
        records: Records,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = elapsed,
    ) -> None:
        self._records = records
        self._wall = wall
        self._elapsed = elapsed
        self._offset: float | None = None
        self.difference = 0.0

    def __call__(self) -> float:
        """Return the time, in seconds since the epoch; before the first reading, that of this machine."""
        return self._wall() if self._offset is None else self._elapsed() + self._offset

    @property
    def is_known(self) -> bool:
        """Whether the time is that of the store's clock."""
        return self._offset is not None or not self._records.has_own_clock

    @property
    def is_wrong(self) -> bool:
        """Whether this machine's clock was wrong at the last reading, or the store's: nothing may be deleted by it."""
        return abs(self.difference) > MAX_DIFFERENCE_SECONDS

    @property
    def jumped(self) -> bool:
        """Whether this machine's clock has jumped while it is the only one that the store has."""
        return self.is_wrong and not self._records.has_own_clock

    async def ready(self) -> None:
        """Read the store's clock, unless it was read before: until then, the time may be wrong.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if not self.is_known:
            await self.read()

    async def read(self) -> float:
        """Read the store's clock, and return its time in seconds since the epoch.

        Raises:
            ApiError: 503, the store does not answer.
        """
        before = self._wall()
        now = await self._records.now()
        after, passed = self._wall(), self._elapsed()
        if self._records.has_own_clock:
            # The answer may have taken long: the store's clock was read at some time between.
            self.difference = min(max(now, before), after) - now
            self._offset = now - passed
            return now
        self.difference = after - (now if self._offset is None else passed + self._offset)
        if self._offset is None or not self.is_wrong:
            self._offset = now - passed
        return passed + self._offset
