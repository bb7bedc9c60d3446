"""The order of waiting jobs: fair among owners, however many jobs each of them has in the queue.

Start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996). A job's start tag is a point in virtual time: the start tag
of its owner's previous job plus `_FAIR_SHARE_SECONDS` by the owner's weight, but not before the virtual time of the
queue. That advances with each claim, not with the clock, so that a queue that grows faster than it is processed stays
fair.

    u/<owner>    the start tag of the owner's last job
    z/turn       the virtual time of the queue: just after the start tag of the last claimed job

Both are hints (`hints.py`): two processes that queue or claim jobs at the same moment may not see each other's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..store.records import Put, Record

VIRTUAL_TIME: Final = "z/turn"

_FAIR_SHARE_SECONDS: Final = 10.0
"""Virtual seconds between two waiting jobs of one owner whose weight is 1."""

_STEP_SECONDS: Final = _FAIR_SHARE_SECONDS / 64
"""Minimum advance of the virtual time with each claim, in virtual seconds. Without it, a steady arrival of new owners
with one job each would starve the second job of another owner."""

_DAY_SECONDS: Final = 86_400.0
_KEPT_SECONDS: Final = 2 * _DAY_SECONDS
"""Seconds for which the virtual time is kept after the queueing of the job that advanced it. When it has expired, it
starts again from the clock."""

_DIGITS: Final = 12


class FairOrder:
    """Assigns start tags to jobs. Jobs of one process see each other's start tags before these are in the store."""

    def __init__(self) -> None:
        self._start_tags: dict[str, float] = {}

    def assign(
        self, owner_key: str, records: Mapping[str, Record], now: float, weight: float = 1.0
    ) -> tuple[str, list[Put]]:
        """Return the order of the owner's next job, and the hints that record it.

        Args:
            owner_key: the owner's name in keys.
            records: the records of the keys `last_of(owner_key)` and `VIRTUAL_TIME`, if they exist.
            now: seconds since the epoch, on the store's clock.
            weight: of the owner, in comparison with the 1 of others.
        """
        row, virtual_time = last_of(owner_key), _read(records, VIRTUAL_TIME)
        hints = [] if virtual_time is not None else [Put(VIRTUAL_TIME, _written(now), expires_at=now + _KEPT_SECONDS)]
        virtual_time = now if virtual_time is None else virtual_time
        self._start_tags = {
            each: start_tag for each, start_tag in self._start_tags.items() if start_tag >= virtual_time
        }
        last = max(_read(records, row) or 0.0, self._start_tags.get(owner_key, 0.0))
        start_tag = last + _FAIR_SHARE_SECONDS / weight if last >= virtual_time else virtual_time
        self._start_tags[owner_key] = start_tag
        return encoded(start_tag) + encoded(now), [*hints, Put(row, _written(start_tag), expires_at=now + _DAY_SECONDS)]


def advanced(order: str, records: Mapping[str, Record]) -> Put:
    """Return the put that advances the virtual time when the job of this order is claimed."""
    start_tag = int(order[:_DIGITS], 16) / 1000
    virtual_time = _read(records, VIRTUAL_TIME) or start_tag
    virtual_time = max(virtual_time, min(max(virtual_time, start_tag) + _STEP_SECONDS, start_tag + _FAIR_SHARE_SECONDS))
    return Put(VIRTUAL_TIME, _written(virtual_time), expires_at=queued_at(order) + _KEPT_SECONDS)


def last_of(owner_key: str) -> str:
    """Return the key of the start tag of the owner's last job."""
    return f"u/{owner_key}"


def encoded(start_tag: float) -> str:
    """Return a start tag as the first part of an order: milliseconds in hex with a fixed width, so that orders sort."""
    return f"{int(start_tag * 1000):0{_DIGITS}x}"


def queued_at(order: str) -> float:
    """Return when the job of this order was queued, in seconds since the epoch.

    The order of a job that a worker held from the start consists of that time alone.
    """
    return int(order[_DIGITS:] or order, 16) / 1000


def _read(records: Mapping[str, Record], key: str) -> float | None:
    record = records.get(key)
    return float(record.value) if record else None


def _written(start_tag: float) -> bytes:
    return repr(start_tag).encode()
