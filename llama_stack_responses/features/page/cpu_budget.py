"""A limit on the CPU time of steps that work on foreign content, in the main thread of a worker process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any


class _Expired(BaseException):
    """The time of a step is over. It is no `Exception`: libraries make others of those, and so would not be stopped."""


class CpuBudget:
    """CPU time that several steps share.

    Args:
        seconds: of all steps together.
        step_seconds: of one step.
    """

    def __init__(self, seconds: float, step_seconds: float) -> None:
        self._left, self._step_seconds = seconds, step_seconds

    def run[T](self, step: Callable[[], T]) -> T | None:
        """Return what a step returns; None if it takes too long, or if nothing is left of the budget."""
        seconds = min(self._left, self._step_seconds)
        if seconds <= 0:
            return None
        began = time.process_time()
        before = signal.signal(signal.SIGVTALRM, _expire)  # which interrupts a regular expression too
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            try:
                return step()
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _Expired:
            return None
        finally:
            signal.signal(signal.SIGVTALRM, before)
            self._left -= time.process_time() - began


def _expire(*_: Any) -> None:
    raise _Expired
