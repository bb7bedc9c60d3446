"""Adds what responses have used to the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ...concurrency.offloading import in_thread_if_large
from ...intervals import DEFAULT
from ...jobs.served_partitions import ServedPartitions, WatchedRows
from ...lifecycle.periodic import Periodic
from ...logs import get_logger
from ...store import codec
from ...store.decoder import Decoder
from ...store.records import Delete, Op, Put, Record, Records, VersionIs, committed, range_in
from ...store.routing import tag_of_key
from .counted import Counts, Dimensions, add
from .naming import Bounds, Names
from .rows import (
    DAYS,
    MINUTES,
    PENDING,
    UNITS,
    Table,
    Unit,
    changed,
    changes_of,
    part_of,
    pending_until,
    read_pending,
    stored_table,
    table_of,
)
from .sums import DaySums, without_sums

logger = get_logger(__name__)

type _Minutes = Mapping[tuple[int, Dimensions], Counts]
"""What was used, by the minute, in minutes since the epoch, and by whom."""

_SECONDS: Final = 30.0
"""Seconds between two changes of the tables, by whichever server: many responses together cost each one less. Reports
read those too that are not in the tables yet."""
_RESPONSES: Final = 500
"""Responses that one commit adds to the tables."""
WAIT_SECONDS: Final = DEFAULT.unknown_outcome_seconds + 5.0
"""Seconds for which a response waits. Until then, a server may ask whether its row exists."""


class Tables(Periodic):
    """Adds what responses have used to the tables, and deletes their own rows in the same commit.

    Any server may do it. Each commit depends on that no other has changed the tables meanwhile, so nothing counts twice
    or is lost, whenever a server is killed.

    Args:
        records: the store.
        decoder: decodes the tables.
        bounds: how many users and values are counted by their names.
        retention_days: days for which tables are kept; None for ever.
    """

    def __init__(self, records: Records, decoder: Decoder, bounds: Bounds, retention_days: float | None) -> None:
        super().__init__(self.update, "could not add up usage", logger, _SECONDS)
        self._records, self._decoder = records, decoder
        self._bounds, self._retention_days = bounds, retention_days
        self._sums = DaySums(records, decoder, retention_days)
        served = ServedPartitions(records, None)
        self._pending, self._days = served.watched(PENDING), served.watched(DAYS.prefix)

    def work_with(self, watched: Callable[[str], WatchedRows]) -> None:
        """Add up in those partitions of the store that the worker of this server serves, from the start on.

        Args:
            watched: returns in which partitions rows of a prefix may be.
        """
        self._pending, self._days = watched(PENDING), watched(DAYS.prefix)

    async def update(self) -> None:
        """Add all responses that ended long enough ago, and sum the days that are over.

        Raises:
            ApiError: 503, the store, or a partition of it, does not answer.
        """
        now = await self._records.now()
        _, failures = await self._pending.read(partial(self._add_all, now - WAIT_SECONDS))
        _, failed = await self._days.read(partial(self._sum, now))
        if failures := [*failures, *failed]:
            raise failures[0]

    async def _add_all(self, until: float, partition: int) -> Sequence[int]:
        added = list[int]()
        while not added or added[-1] == _RESPONSES:
            added.append(await self.add_some(until, partition))
        return added if any(added) else ()

    async def _sum(self, now: float, partition: int) -> Sequence[int]:
        await self._sums.update(now, partition)
        return ()

    async def add_some(self, until: float, partition: int = 0) -> int:
        """Add a number of a partition's responses that ended before a time, oldest first, unless another server does.

        Returns:
            How many; as many as one commit takes if there may be more.
        """
        version = await changed(self._records, partition)
        rows = await range_in(self._records, partition, PENDING, pending_until(until), limit=_RESPONSES)
        if not rows:
            return 0
        tables = _Changed(self._retention_days)
        by_day = _by_day(_by_minute(rows))
        for (day, part), minutes in by_day.items():
            await self._add(tables, day, part, minutes)
        unsummed = without_sums((day for day, _ in by_day), partition)
        changes = changes_of(partition)
        ops = [*await tables.puts(), *unsummed, *(Delete(key) for key, _ in rows), Put(changes, b"")]
        # After a failover that has lost a change, another one may give the tables the version that was read. It has
        # the oldest responses in it.
        key, oldest = rows[0]
        unchanged = [VersionIs(changes, version), VersionIs(key, oldest.version)]
        return len(rows) if await committed(self._records, ops, unchanged) else 0

    async def _add(self, written: _Changed, day: int, part: str, minutes: _Minutes) -> None:
        """Add what was used on one day by users of one part."""
        starts = ((unit, minute * MINUTES.seconds // unit.seconds) for unit in UNITS for minute, _ in minutes)
        keys = {(unit, start): unit.key(start, part) for unit, start in starts}
        known = await self._records.get_many(list(keys.values()))
        decoded = await self._decoder.decode([record.value for record in known.values()])
        stored = dict(zip(known, decoded, strict=True))
        added = partial(self._added, stored, keys, day, minutes)
        written.tables |= await in_thread_if_large(added, decoded)

    def _added(
        self,
        stored: Mapping[str, Sequence[Sequence[object]]],
        keys: Mapping[tuple[Unit, int], str],
        day: int,
        minutes: _Minutes,
    ) -> dict[tuple[Unit, int, str], Table]:
        tables = {(*of, key): table_of(stored.get(key, ())) for of, key in keys.items()}
        key = keys[DAYS, day]
        names = Names(self._bounds, tables[DAYS, day, key], is_tagged=tag_of_key(key) > 0)
        for (minute, dimensions), counts in minutes.items():
            counted_as = names.counted_as(dimensions)
            for unit in UNITS:
                start = minute * MINUTES.seconds // unit.seconds
                add(tables[unit, start, keys[unit, start]].setdefault(counted_as, {}), counts)
        return tables


class _Changed:
    """Tables that a commit writes.

    Attributes:
        tables: the tables, by their unit, start and key.
    """

    def __init__(self, retention_days: float | None) -> None:
        self._retention_days = retention_days
        self.tables: dict[tuple[Unit, int, str], Table] = {}

    async def puts(self) -> list[Op]:
        """Return the ops that write them."""
        puts: list[Op] = []
        for (unit, start, key), table in self.tables.items():
            stored = stored_table(table)
            value = await in_thread_if_large(partial(codec.encode, stored), stored)
            puts.append(Put(key, value, unit.expires_at(start, self._retention_days)))
        return puts


def _by_minute(rows: Iterable[tuple[str, Record]]) -> Mapping[tuple[int, int, Dimensions], Counts]:
    """Return what responses have used, by the minute of their end and the tag: most have the dimensions of others."""
    minutes: defaultdict[tuple[int, int, Dimensions], Counts] = defaultdict(dict)
    for key, record in rows:
        if pending := read_pending(key, record.value):
            add(minutes[pending.at // MINUTES.seconds, tag_of_key(key), pending.dimensions], pending.counts)
    return minutes


def _by_day(minutes: Mapping[tuple[int, int, Dimensions], Counts]) -> Mapping[tuple[int, str], _Minutes]:
    """Return what was used by the day, in days since the epoch, and the part of the users."""
    found: defaultdict[tuple[int, str], dict[tuple[int, Dimensions], Counts]] = defaultdict(dict)
    for (minute, tag, dimensions), counts in minutes.items():
        day, part = minute * MINUTES.seconds // DAYS.seconds, part_of(dimensions.tenant, dimensions.user, tag)
        found[day, part][minute, dimensions] = counts
    return found
