"""Notices an engine that answers questions but computes nothing for its requests."""

import time
from collections.abc import Callable

from ..engine.engine import Metrics


class StepWatch:
    """Compares the metrics that an engine sends. Requests whose grammar is being compiled do not count as work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps: int | None = None  # of the last metrics with work
        self._since = 0.0

    def observe(self, metrics: Metrics) -> None:
        busy = metrics.running + metrics.waiting > 0
        if not busy or metrics.steps != self._steps:
            self._steps = metrics.steps if busy else None
            self._since = self._clock()

    @property
    def seconds(self) -> float:
        """For how long the engine has had work and computed no step; 0 if it has no work."""
        return 0.0 if self._steps is None else self._clock() - self._since
