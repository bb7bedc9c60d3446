"""The order of waiting jobs: the owners take turns, however many jobs each has waiting.

Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996). A job's turn is a point in virtual time: that at which its
owner's job before it had its turn and one share more, but not before the present. The present moves on with the jobs
that are taken, not with the clock, so that a queue that grows faster than it is worked off stays fair.

    u/<of>    the turn of the owner's last job
    z/turn    the present: just behind the turn of the job that was taken last

Both are a hint (`hints.py`): of two jobs that are queued or taken at once in two processes, one may not see the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..store.records import Put, Record

PRESENT: Final = "z/turn"

_SHARE: Final = 10.0
"""Virtual seconds between two waiting jobs of one owner."""

_STEP: Final = _SHARE / 64
"""By how much the present moves on with each job taken, at least: owners who come anew all the time, each with one job,
do not keep the second job of another waiting for ever."""

_DAY: Final = 86_400.0
_KEPT: Final = 2 * _DAY
"""Seconds for which the present is kept after the job that moved it was queued. Without it, time begins anew."""

_DIGITS: Final = 12


class Turns:
    """Gives jobs their turns. Those of this process see one another before they are in the store."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}

    def give(self, of: str, found: Mapping[str, Record], now: float) -> tuple[str, list[Put]]:
        """The order of the owner's next job, and the hints that note it.

        Args:
            of: the owner's name in keys.
            found: what is stored under `last_of(of)` and `PRESENT`.
            now: seconds since the epoch, on the store's clock.
        """
        row, present = last_of(of), _read(found, PRESENT)
        hints = [] if present is not None else [Put(PRESENT, _written(now), expires_at=now + _KEPT)]
        present = now if present is None else present
        self._given = {each: turn for each, turn in self._given.items() if turn >= present}
        last = max(_read(found, row) or 0.0, self._given.get(of, 0.0))
        turn = self._given[of] = last + _SHARE if last >= present else present
        return at(turn) + at(now), [*hints, Put(row, _written(turn), expires_at=now + _DAY)]


def taken(order: str, found: Mapping[str, Record]) -> Put:
    """What moves the present on when the job of this order is taken."""
    turn = int(order[:_DIGITS], 16) / 1000
    present = _read(found, PRESENT) or turn
    present = max(present, min(max(present, turn) + _STEP, turn + _SHARE))
    return Put(PRESENT, _written(present), expires_at=_queued_at(order) + _KEPT)


def last_of(of: str) -> str:
    """The key of the turn of the owner's last job."""
    return f"u/{of}"


def at(turn: float) -> str:
    """A turn as an order begins with it: milliseconds, so that they sort."""
    return f"{int(turn * 1000):0{_DIGITS}x}"


def _queued_at(order: str) -> float:
    """When the job of this order was queued, in seconds since the epoch; orders of earlier versions are that alone."""
    return int(order[_DIGITS:] or order, 16) / 1000


def _read(found: Mapping[str, Record], key: str) -> float | None:
    record = found.get(key)
    return float(record.value) if record else None


def _written(turn: float) -> bytes:
    return repr(turn).encode()
