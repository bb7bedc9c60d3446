"""The time between failed starts of the engine."""

import math
import time
from collections.abc import Callable
from typing import Final

from ..engine.errors import EngineError

FIRST_SECONDS: Final = 5.0
MAX_SECONDS: Final = 300.0


class StartBackoff:
    """Doubles the wait after each failed start, up to MAX_SECONDS, and forgets the failures after a success."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0  # the last wait
        self._until = 0.0
        self.error: EngineError | None = None  # of the last start, if it failed

    def failed(self, error: EngineError) -> None:
        self.error = error
        self._seconds = min(2 * self._seconds or FIRST_SECONDS, MAX_SECONDS)
        self._until = self._clock() + self._seconds

    def succeeded(self) -> None:
        self.error = None
        self._seconds = 0.0

    def check(self) -> None:
        """Raise an EngineError with the last failure if it is too early for another start."""
        left = self._until - self._clock()
        if self.error is not None and left > 0:
            raise EngineError(f"{self.error}. The engine is not started again for {math.ceil(left)} seconds")
