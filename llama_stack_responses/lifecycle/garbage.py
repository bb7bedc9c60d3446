"""When Python collects reference cycles: often among new objects, and among old ones only while that is short.

By default, Python visits all old objects, in the event loop, whenever their number has grown by a quarter. With 3,000
open streams that took 0.2 s. Nearly all that a response has made is freed without it. What is left are few cycles, such
as those of a client that left during an answer.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final

from ..logs import get_logger
from .periodic import Periodic

logger = get_logger(__name__)

THRESHOLDS: Final = (4_000, 4, 2**31 - 1)
"""The thresholds of Python's garbage collector: of new objects, of passes over them, and of passes over both.

At most 20,000 objects are visited at once, about 10 ms. The default of 700 visits the same objects again too often.
"""

_PASSES: Final = 10
"""Passes over younger objects until old ones are visited: as many as by default."""

_MAX_OBJECTS: Final = 50_000
"""Number of old objects up to which they are visited: that takes about 0.1 µs for each."""

_LATEST_SECONDS: Final = 3_600.0
"""Seconds after which they are visited even if they are more. A server that is never quiet would keep all cycles."""


class OldGarbage(Periodic):
    """Collects reference cycles among old objects at intervals.

    Args:
        seconds: the interval.
        clock: returns seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self.check, "could not collect garbage", logger, seconds)
        self._clock = clock
        self._latest = clock() + _LATEST_SECONDS

    async def check(self) -> None:
        """Collect if it is time."""
        _, _, passes = gc.get_count()
        if passes >= _PASSES and (has_few_objects() or self._clock() >= self._latest):
            gc.collect()
            self._latest = self._clock() + _LATEST_SECONDS


def has_few_objects() -> bool:
    """Return whether a collection of all reference cycles is short."""
    return len(gc.get_objects(generation=2)) <= _MAX_OBJECTS
