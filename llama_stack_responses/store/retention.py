"""How long responses are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Self

from . import codec
from .layout import second

_DAY_SECONDS: Final = 86_400.0


class Horizon(NamedTuple):
    """How far a deletion of what has expired goes.

    Attributes:
        at: rows that expired until then are deleted, in seconds since the epoch on the store's clock.
        oldest: responses with a lesser order are deleted.
    """

    at: float
    oldest: str

    def is_far_before(self, later: Horizon) -> bool:
        """Whether more than a day is between the two, in one of both."""
        return later.at - self.at > _DAY_SECONDS or self._second_before(later) > _DAY_SECONDS

    def clipped(self, due: Horizon) -> Horizon:
        """Return how far a deletion may go that must delete no more responses than one to this horizon."""
        # After a long time without a deletion, the time itself may be wrong.
        return Horizon(self.at if due.at - self.at > _DAY_SECONDS else due.at, min(self.oldest, due.oldest))

    def encode(self) -> bytes:
        """Return the value of its row."""
        return codec.encode({"at": self.at, "oldest": self.oldest})

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the result of `encode`."""
        stored = codec.decode(value)
        return cls(stored["at"], stored["oldest"])

    def _second_before(self, later: Horizon) -> int:
        return int(later.oldest, 16) - int(self.oldest, 16)


class Counts(NamedTuple):
    """How many responses or conversations are stored.

    Attributes:
        expired: those that a deletion would delete.
        stored: all.
    """

    expired: int
    stored: int

    def encode(self) -> bytes:
        """Return the value of its row."""
        return codec.encode({"expired": self.expired, "stored": self.stored})

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the result of `encode`."""
        stored = codec.decode(value)
        return cls(stored["expired"], stored["stored"])


NOTHING: Final = Horizon(0.0, second(0))
"""The horizon of a deletion of nothing."""


class Retention:
    """Decides which responses have expired.

    Args:
        seconds: seconds from a response's creation until it expires; None keeps it until it is deleted.
        clock: returns seconds since the epoch.
        knows_time: returns whether that is the time of the store. As long as it is not, nothing counts as expired: an
            expired response that is found does less harm than a stored one that is not.
    """

    def __init__(
        self, seconds: float | None, clock: Callable[[], float], knows_time: Callable[[], bool] = lambda: True
    ) -> None:
        self._seconds = seconds
        self._clock, self._knows_time = clock, knows_time

    def oldest(self) -> str:
        """Return the least order of a response that has not expired."""
        return self.horizon(self._clock()).oldest if self._knows_time() else NOTHING.oldest

    def horizon(self, now: float) -> Horizon:
        """Return how far a deletion goes at this time, in seconds since the epoch."""
        return Horizon(now, second(0 if self._seconds is None else now - self._seconds))
