"""The sums of days that are over, each in one row: reports of a month read these, not the tables of all users.

    us/s/<kind>/<day>                 what was used on a day, by some of the dimensions; null if that are too many rows

Whatever changes a table of a day deletes its sums in the same commit. They are made again later, and until then the
tables are read. In a store with several partitions, each has the sums of its own tables. A backup is restored without
sums, since the store may have another number of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from ...concurrency.offloading import in_thread_if_large
from ...store import codec
from ...store.decoder import Decoder
from ...store.records import Delete, Op, Put, Records, committed, range_in
from .counted import Counts, Dimensions, add
from .reading import Span, decoded_tables
from .rows import DAYS, SUMS, SumKind, Table, read_unchanged, stored_table

MOST: Final = 2_000
"""Rows of the sums of one kind. A day with more has none."""
_AFTER_SECONDS: Final = 3_600
"""Seconds after its end when a day is summed: what is counted later is an exception."""
_AGAIN_SECONDS: Final = 3_600.0
"""Seconds after which days without sums are looked for again: another process may have deleted some."""
_DAYS: Final = 180
"""Days that are summed at most: those of a page of costs."""


def without_sums(days: Iterable[int], partition: int) -> list[Op]:
    """Return the ops that delete the sums of days whose tables change in a partition, in days since the epoch."""
    return [Delete(kind.key(day, partition)) for day in sorted(set(days)) for kind in SUMS]


class DaySums:
    """Writes the sums of days that are over.

    Args:
        records: the store.
        decoder: decodes the tables.
        retention_days: days for which tables are kept; None for ever.
    """

    def __init__(self, records: Records, decoder: Decoder, retention_days: float | None) -> None:
        self._records, self._decoder, self._retention_days = records, decoder, retention_days
        self._looked: dict[int, tuple[int, float]] = {}

    async def update(self, now: float, partition: int = 0) -> None:
        """Sum the days of a partition that are over and have no sums, the last first, if it is time to look for them.

        Raises:
            ApiError: 503, the store does not answer.
        """
        until = int(now - _AFTER_SECONDS) // DAYS.seconds
        looked_until, again = self._looked.get(partition, (0, -inf))
        if until == looked_until and now < again:
            return
        known = await self._summed_days(partition, until)
        first = await self._first_day(partition, until)
        for day in range(until - 1, first - 1, -1):
            if day not in known and not await self._sum(partition, day):
                return
        self._looked[partition] = until, now + _AGAIN_SECONDS

    async def _summed_days(self, partition: int, until: int) -> set[int]:
        kind = SUMS[0]
        keys = [kind.key(day, partition) for day in range(max(0, until - _DAYS), until)]
        return {kind.day_of(key) for key in await self._records.get_many(keys)}

    async def _first_day(self, partition: int, until: int) -> int:
        """Return the first day that is summed; `until` if there is none."""
        start = max(0, until - _DAYS)
        rows = await range_in(self._records, partition, DAYS.key(start, ""), DAYS.key(until, ""), limit=1)
        return DAYS.start_of(rows[0][0]) // DAYS.seconds if rows else until

    async def _sum(self, partition: int, day: int) -> bool:
        """Sum a day; return False if a table changed meanwhile."""
        sums, unchanged = await read_unchanged(self._records, partition, partial(self._read, partition, day))
        expires_at = DAYS.expires_at(day, self._retention_days)
        ops: list[Op] = []
        for kind, table in sums.tables.items():
            stored = None if table is None else stored_table(table)
            value = await in_thread_if_large(partial(codec.encode, stored), stored)
            ops.append(Put(kind.key(day, partition), value, expires_at))
        return await committed(self._records, ops, [unchanged])

    async def _read(self, partition: int, day: int) -> _Sums:
        sums = _Sums()
        async for tables in decoded_tables(self._records, self._decoder, partition, Span(DAYS, day, day + 1)):
            await in_thread_if_large(partial(sums.add, tables), tables)
        return sums


class _Sums:
    """The sums of a day.

    Attributes:
        tables: the sums, by their kind; None if they have too many rows.
    """

    def __init__(self) -> None:
        self.tables: dict[SumKind, Table | None] = {kind: {} for kind in SUMS}

    def add(self, tables: Sequence[tuple[int, Sequence[Any]]]) -> None:
        """Add stored tables."""
        for _, stored in tables:
            for dimensions, counts in stored:
                self._add(Dimensions(*dimensions), counts)

    def _add(self, dimensions: Dimensions, counts: Counts) -> None:
        for kind, table in self.tables.items():
            if table is not None:
                add(table.setdefault(kind.of(dimensions), {}), counts)
                if len(table) > MOST:
                    self.tables[kind] = None
