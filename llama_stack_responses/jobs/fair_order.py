"""The order of waiting jobs: owners take turns, however many jobs each of them has in the queue.

Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996). A job's turn is its start tag, a point in virtual time: the
turn of its owner's previous job plus one share, but not before the present (the system's virtual time). The present
advances with each claim, not with the clock, so that a queue that grows faster than it is processed stays fair.

    u/<owner>    the turn of the owner's last job
    z/turn       the present: just after the turn of the last claimed job

Both are hints (`hints.py`): two processes that queue or claim jobs at the same moment may not see each other's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..store.records import Put, Record

PRESENT: Final = "z/turn"

_FAIR_SHARE_SECONDS: Final = 10.0
"""Virtual seconds between two waiting jobs of one owner."""

_STEP_SECONDS: Final = _FAIR_SHARE_SECONDS / 64
"""Minimum advance of the present with each claim, in virtual seconds. Without it, a steady arrival of new owners with
one job each would starve the second job of another owner."""

_DAY_SECONDS: Final = 86_400.0
_KEPT_SECONDS: Final = 2 * _DAY_SECONDS
"""Seconds for which the present is kept after the queueing of the job that advanced it. When it has expired, virtual
time starts again from the clock."""

_DIGITS: Final = 12


class FairOrder:
    """Assigns turns to jobs. Jobs of one process see each other's turns before these are in the store."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}

    def give(self, owner_key: str, records: Mapping[str, Record], now: float) -> tuple[str, list[Put]]:
        """Return the order of the owner's next job, and the hints that record it.

        Args:
            owner_key: the owner's name in keys.
            records: the records of the keys `last_of(owner_key)` and `PRESENT`, if they exist.
            now: seconds since the epoch, on the store's clock.
        """
        row, present = last_of(owner_key), _read(records, PRESENT)
        hints = [] if present is not None else [Put(PRESENT, _written(now), expires_at=now + _KEPT_SECONDS)]
        present = now if present is None else present
        self._given = {each: turn for each, turn in self._given.items() if turn >= present}
        last = max(_read(records, row) or 0.0, self._given.get(owner_key, 0.0))
        turn = self._given[owner_key] = last + _FAIR_SHARE_SECONDS if last >= present else present
        return at(turn) + at(now), [*hints, Put(row, _written(turn), expires_at=now + _DAY_SECONDS)]


def taken(order: str, records: Mapping[str, Record]) -> Put:
    """Return the put that advances the present when the job of this order is claimed."""
    turn = int(order[:_DIGITS], 16) / 1000
    present = _read(records, PRESENT) or turn
    present = max(present, min(max(present, turn) + _STEP_SECONDS, turn + _FAIR_SHARE_SECONDS))
    return Put(PRESENT, _written(present), expires_at=queued_at(order) + _KEPT_SECONDS)


def last_of(owner_key: str) -> str:
    """Return the key of the turn of the owner's last job."""
    return f"u/{owner_key}"


def at(turn: float) -> str:
    """Return a turn as the first part of an order: milliseconds in hex with a fixed width, so that orders sort."""
    return f"{int(turn * 1000):0{_DIGITS}x}"


def queued_at(order: str) -> float:
    """Return when the job of this order was queued, in seconds since the epoch.

    An order of an earlier version consists of that time alone.
    """
    return int(order[_DIGITS:] or order, 16) / 1000


def _read(records: Mapping[str, Record], key: str) -> float | None:
    record = records.get(key)
    return float(record.value) if record else None


def _written(turn: float) -> bytes:
    return repr(turn).encode()
