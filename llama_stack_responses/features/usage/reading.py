"""Reads what was used in a time, as it is at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import batched
from typing import Any, Final

from ...concurrency.offloading import in_thread_if_large
from ...core.errors import ApiError
from ...core.owner import Owner
from ...store.decoder import Decoder
from ...store.records import Record, Records, bytes_of, pages_in, partitions_of, range_in
from .counted import Counts, Dimensions, add
from .rows import DAYS, PENDING, SUMS, Pending, SumKind, Table, Unit, changed, parts_of, read_pending, table_of

_TRIES: Final = 20
_TRY_SECONDS: Final = 0.1
_ROWS: Final = 1_000
_BYTES: Final = 4 * 2**20
_AT_ONCE: Final = 16
"""Partitions that are read at the same time."""

type Wanted = Callable[[Dimensions], bool]
"""Returns whether the usage with these dimensions is asked for."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tables of a unit.

    Attributes:
        unit: the unit.
        start, end: the first, and the one after the last, in units since the epoch.
        user: the only user whose usage is asked for; None for all.
        needs: the names of the dimensions that are looked at; None for all.
    """

    unit: Unit
    start: int
    end: int
    user: Owner | None = None
    needs: Collection[str] | None = None


class Reading:
    """Reads usage.

    Args:
        records: the store.
        decoder: decodes the tables.
    """

    def __init__(self, records: Records, decoder: Decoder) -> None:
        self._records, self._decoder = records, decoder

    async def now(self) -> float:
        """Return the time of the store, in seconds since the epoch."""
        return await self._records.now()

    async def read(self, span: Span, wanted: Wanted) -> dict[int, Table]:
        """Return what was used, by the start of each unit in seconds since the epoch; units without usage are left out.

        Raises:
            ApiError: 503, the store does not answer, or the tables change all the time.
        """
        partitions = partitions_of(self._records)
        tags = range(partitions) if span.user is None else parts_of(span.user).values()
        found: dict[int, Table] = {}
        for some in batched(sorted({tag % partitions for tag in tags}), _AT_ONCE):
            read = await asyncio.gather(*(self._read_in(each, span, wanted) for each in some))
            found = await in_thread_if_large(partial(_merged, [found, *read]), read) if found or read[1:] else read[0]
        return found

    async def _read_in(self, partition: int, span: Span, wanted: Wanted) -> dict[int, Table]:
        """Return what was used by users whose usage is in a partition, as it is at one moment."""
        for _ in range(_TRIES):
            before = await changed(self._records, partition)
            found: dict[int, Table] = {}
            await self._read_pending(partition, span, wanted, found)
            await self._read_tables(partition, span, wanted, found)
            if await changed(self._records, partition) == before:
                return found
            await asyncio.sleep(_TRY_SECONDS)
        raise ApiError(503, "Usage is being added up all the time: try again.", retry_after=5)

    async def _read_pending(self, partition: int, span: Span, wanted: Wanted, found: dict[int, Table]) -> None:
        async for rows in pages_in(self._records, partition, PENDING, _ROWS):
            await in_thread_if_large(partial(_add_pending, rows, span, wanted, found), [key for key, _ in rows])

    async def _read_tables(self, partition: int, span: Span, wanted: Wanted, found: dict[int, Table]) -> None:
        kind = kind_for(span.needs) if span.unit is DAYS and span.user is None else None
        summed = await self._read_sums(partition, kind, span, wanted, found) if kind else frozenset()
        for left in _without(span, summed):
            async for tables in decoded_tables(self._records, self._decoder, partition, left):
                await in_thread_if_large(partial(_add_tables, tables, wanted, found), tables)

    async def _read_sums(
        self, partition: int, kind: SumKind, span: Span, wanted: Wanted, found: dict[int, Table]
    ) -> Collection[int]:
        """Read the sums of days; return which days have some."""
        summed: set[int] = set()
        async for rows in _pages_between(self._records, partition, kind.key(span.start), kind.key(span.end)):
            days = [kind.day_of(key) for key, _ in rows]
            decoded = await self._decoder.decode([record.value for _, record in rows])
            tables = [
                (day * DAYS.seconds, stored) for day, stored in zip(days, decoded, strict=True) if stored is not None
            ]
            await in_thread_if_large(partial(_add_tables, tables, wanted, found), tables)
            summed.update(start // DAYS.seconds for start, _ in tables)
        return summed


async def decoded_tables(
    records: Records, decoder: Decoder, partition: int, span: Span
) -> AsyncIterator[list[tuple[int, Sequence[Any]]]]:
    """Yield a partition's tables of a span in pages: the start of each in seconds since the epoch, and what is stored.

    Raises:
        ApiError: 503, the store does not answer.
    """
    async for rows in _pages(records, partition, span):
        decoded = await decoder.decode([record.value for _, record in rows])
        yield [(span.unit.start_of(key), stored) for (key, _), stored in zip(rows, decoded, strict=True)]


async def _pages(records: Records, partition: int, span: Span) -> AsyncIterator[Sequence[tuple[str, Record]]]:
    unit = span.unit
    if span.user is not None:
        partitions = partitions_of(records)
        parts = [part for part, tag in parts_of(span.user).items() if tag % partitions == partition]
        keys = [unit.key(start, part) for start in range(span.start, span.end) for part in parts]
        yield list((await records.get_many(keys)).items())
        return
    async for rows in _pages_between(records, partition, unit.key(span.start, ""), unit.key(span.end, "")):
        yield rows


async def _pages_between(
    records: Records, partition: int, start: str, end: str
) -> AsyncIterator[Sequence[tuple[str, Record]]]:
    while rows := await range_in(records, partition, start, end, limit=_ROWS, max_bytes=_BYTES):
        yield rows
        if len(rows) < _ROWS and bytes_of(record for _, record in rows) < _BYTES:
            return
        start = f"{rows[-1][0]}\0"


def kind_for(needs: Collection[str] | None) -> SumKind | None:
    """Return the sums that have these dimensions; None if none have, or if all are needed."""
    if needs is None:
        return None
    return next((kind for kind in SUMS if kind.without.isdisjoint(needs)), None)


def _without(span: Span, days: Collection[int]) -> Iterator[Span]:
    """Yield what is left of a span without some of its days."""
    start = span.start
    for day in [*sorted(days), span.end]:
        if start < day:
            yield replace(span, start=start, end=day)
        start = day + 1


def _add_pending(rows: Sequence[tuple[str, Record]], span: Span, wanted: Wanted, found: dict[int, Table]) -> None:
    unit = span.unit
    responses: Iterable[Pending | None] = (read_pending(key, record.value) for key, record in rows)
    for each in filter(None, responses):
        if span.start <= (start := each.at // unit.seconds) < span.end and wanted(each.dimensions):
            add(found.setdefault(start * unit.seconds, {}).setdefault(each.dimensions, {}), each.counts)


def _merged(parts: Iterable[Mapping[int, Table]]) -> dict[int, Table]:
    """Return the sums of what was used by the users of several partitions."""
    found: dict[int, Table] = {}
    for tables in parts:
        for start, table in tables.items():
            if start in found:
                _add_counted(table, found[start])
            else:
                found[start] = table
    return found


def _add_counted(counted: Mapping[Dimensions, Counts], known: Table) -> None:
    for dimensions, counts in counted.items():
        if dimensions in known:
            add(known[dimensions], counts)
        else:
            known[dimensions] = counts  # not a copy: what was read is used only here


def _add_tables(tables: Iterable[tuple[int, Sequence[Any]]], wanted: Wanted, found: dict[int, Table]) -> None:
    for start, stored in tables:
        counted = {each: counts for each, counts in table_of(stored).items() if wanted(each)}
        if counted:
            _add_counted(counted, found.setdefault(start, {}))
