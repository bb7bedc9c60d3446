"""The time limit shared by all documents of one request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeBudget:
    """A budget of seconds of work, without the time in queues.

    Concurrent work may each spend what is left, so the sum is bounded by `seconds` times the number of tasks that one
    owner may run at once.

    Attributes:
        seconds: the initial budget.
        left: the rest, negative if overspent.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.left = seconds
        self._clock = clock

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Charge the duration of the block to the budget."""
        begun = self._clock()
        try:
            yield
        finally:
            self.left -= self._clock() - begun
