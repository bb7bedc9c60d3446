"""The order of waiting jobs within a class: fair among owners, however many jobs each of them has in it.

Jobs with a completion window are ordered by their deadlines. In the other classes, the order is that of start-time
fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996). A job's start tag is a point in virtual time: the start tag of its
owner's previous job plus `_FAIR_SHARE_SECONDS` by the owner's weight, but not before the virtual time of the class.
That advances with each claim, not with the clock, so that a queue that grows faster than it is processed stays fair.

All but deadlines are kept for each partition, whose number is the tag at the end of the key (`store/routing.py`): each
partition is fair by itself.

    u/<owner><class>    the start tag of the owner's last job
    u/<owner>w<name>    the deadline of the first job of the owner that has this name for what it continues
    z/turn<class>       the virtual time of the class: just after the start tag of the last claimed job

All are hints (`hints.py`): two processes that queue or claim jobs at the same moment may not see each other's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from ..store.layout import with_tag
from ..store.records import Put, Record
from .work_class import BACKGROUND, Work, WorkClass

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
    """Assigns orders to jobs. Jobs of one process see each other's start tags before these are in the store."""

    def __init__(self) -> None:
        self._start_tags: dict[tuple[WorkClass, int], dict[str, float]] = {}

    def assign(
        self,
        owner_key: str,
        records: Mapping[str, Record],
        now: float,
        weight: float = 1.0,
        work: Work = BACKGROUND,
        number: int = 0,
    ) -> tuple[str, list[Put]]:
        """Return the order of the owner's next job, and the hints that record it.

        Args:
            owner_key: the owner's name in keys.
            records: the records of the keys `rows_of(owner_key, work, number)`, if they exist.
            now: seconds since the epoch, on the store's clock.
            weight: of the owner, in comparison with the 1 of others.
            work: what the job is queued as.
            number: the partition of its response.
        """
        if work.kind is WorkClass.WINDOW:
            return _by_deadline(owner_key, records, now, work)
        row, turn = last_of(owner_key, work.kind, number), virtual_time_of(work.kind, number)
        virtual_time = _read(records, turn)
        hints = [] if virtual_time is not None else [Put(turn, _written(now), expires_at=now + _KEPT_SECONDS)]
        virtual_time = now if virtual_time is None else virtual_time
        known = self._start_tags.get((work.kind, number), {})
        current = self._start_tags[work.kind, number] = {of: each for of, each in known.items() if each >= virtual_time}
        last = max(_read(records, row) or 0.0, current.get(owner_key, 0.0))
        start_tag = last + _FAIR_SHARE_SECONDS / weight if last >= virtual_time else virtual_time
        current[owner_key] = start_tag
        order = work.kind + encoded(start_tag) + encoded(now)
        return order, [*hints, Put(row, _written(start_tag), expires_at=now + _DAY_SECONDS)]


def _by_deadline(owner_key: str, records: Mapping[str, Record], now: float, work: Work) -> tuple[str, list[Put]]:
    """Return the order of a job with a completion window, and the hints that record it."""
    deadline, hints = now + work.window, []
    if work.continues:
        row = _continued(owner_key, work)
        deadline = min(deadline, _read(records, row) or deadline)
        hints = [Put(row, _written(deadline), expires_at=now + work.window + _DAY_SECONDS)]
    return work.kind + encoded(deadline) + encoded(now), hints


def rows_of(owner_key: str, work: Work, number: int = 0) -> list[str]:
    """Return the keys of the hints that the order of an owner's next job depends on."""
    if work.kind is WorkClass.WINDOW:
        return [_continued(owner_key, work)] if work.continues else []
    return [last_of(owner_key, work.kind, number), virtual_time_of(work.kind, number)]


def _continued(owner_key: str, work: Work) -> str:
    return f"{last_of(owner_key, work.kind)}{sha256(work.continues.encode()).hexdigest()[:32]}"


def advanced(order: str, records: Mapping[str, Record], number: int = 0) -> list[Put]:
    """Return the hints that advance the virtual time of its class when the job of this order is claimed."""
    kind = WorkClass.of(order)
    if kind is WorkClass.WINDOW:
        return []
    turn, start_tag = virtual_time_of(kind, number), start_tag_of(order)
    virtual_time = _read(records, turn) or start_tag
    virtual_time = max(virtual_time, min(max(virtual_time, start_tag) + _STEP_SECONDS, start_tag + _FAIR_SHARE_SECONDS))
    return [Put(turn, _written(virtual_time), expires_at=queued_at(order) + _KEPT_SECONDS)]


def last_of(owner_key: str, kind: WorkClass, number: int = 0) -> str:
    """Return the key of the start tag of the owner's last job in a class."""
    return with_tag(f"u/{owner_key}{kind}", number)


def virtual_time_of(kind: WorkClass, number: int = 0) -> str:
    """Return the key of the virtual time of a class."""
    return with_tag(f"z/turn{kind}", number)


def start_tag_of(order: str) -> float:
    """Return the start tag of the job of this order; of a job with a completion window, its deadline."""
    digits = order.removeprefix(WorkClass.of(order))
    return int(digits[:_DIGITS], 16) / 1000


def encoded(start_tag: float) -> str:
    """Return a start tag as the first part of an order: milliseconds in hex with a fixed width, so that orders sort."""
    return f"{int(start_tag * 1000):0{_DIGITS}x}"


def queued_at(order: str) -> float:
    """Return when the job of this order was queued, in seconds since the epoch.

    The order of a job that a worker held from the start consists of that time alone.
    """
    return int(order[-_DIGITS:], 16) / 1000


def _read(records: Mapping[str, Record], key: str) -> float | None:
    record = records.get(key)
    return float(record.value) if record else None


def _written(start_tag: float) -> bytes:
    return repr(start_tag).encode()
