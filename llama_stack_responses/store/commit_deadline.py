"""Until when a server of a store applies a commit, so that none comes in after its sender has given it up for long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..core.errors import ApiError
from .clock import elapsed

TOO_LATE: Final = -1
"""In place of the number of a condition that does not hold: the commit came after its deadline."""

APPLIED_SECONDS: Final = 30.0
"""A commit that was sent is applied within these seconds on the store's clock, or never.

It is more than a call takes, with its waits for connections and its retries, and less than the minute for which a store
remembers the ids of commits.
"""

TRIES: Final = 2
"""Tries of a commit: one may come too late because the store's clock has jumped, which its answer then tells."""


class CommitDeadline:
    """The deadline of the next commit, on the store's clock, which is known from the store's answers.

    Args:
        seconds: a commit is applied within these.
        elapsed: returns seconds of a monotonic clock.
    """

    def __init__(self, seconds: float = APPLIED_SECONDS, elapsed: Callable[[], float] = elapsed) -> None:
        self._seconds = seconds
        self._elapsed = elapsed
        self._ahead: float | None = None

    @property
    def known(self) -> bool:
        """Whether the store has told its time."""
        return self._ahead is not None

    def told(self, now: float) -> None:
        """Note the time that an answer of the store has."""
        self._ahead = now - self._elapsed()

    def next(self) -> float | None:
        """Return the deadline of a commit that is sent now, in seconds since the epoch; None if no time was told."""
        return None if self._ahead is None else self._ahead + self._elapsed() + self._seconds


def too_late() -> ApiError:
    """Return the error for a commit that was refused each time because it came too late. Nothing was written."""
    return ApiError(503, "The response store is too slow, or its server's clock jumps.", retry_after=1)
