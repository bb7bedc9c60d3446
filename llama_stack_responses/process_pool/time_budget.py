"""The time that the documents of one request may take together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeBudget:
    """Seconds of work, without the time in queues.

    Work that runs at the same time may spend what is left more than once, so the sum is bounded by `seconds` times
    the number of tasks that one owner may have at once.

    Attributes:
        seconds: what there was.
        left: what is left, negative if more was spent.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.left = seconds
        self._clock = clock

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Spends the time that the block takes."""
        begun = self._clock()
        try:
            yield
        finally:
            self.left -= self._clock() - begun
