"""How long responses are kept."""

from __future__ import annotations

from collections.abc import Callable

from .layout import second


class Retention:
    """Decides which responses have expired.

    Args:
        seconds: seconds from a response's creation until it expires; None keeps it until it is deleted.
        clock: returns seconds since the epoch.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock

    def oldest(self) -> str:
        """Return the least order of a response that has not expired."""
        return second(0 if self._seconds is None else self._clock() - self._seconds)
