"""Reads what was used in a time, as it is at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ...concurrency.offloading import in_thread_if_large
from ...core.errors import ApiError
from ...store.decoder import Decoder
from ...store.records import Record, Records, after_prefix
from .counted import Counts, Dimensions, add
from .rows import CHANGES, DAYS, PENDING, SUMS, Pending, SumKind, Table, Unit, part_of, read_pending, table_of

_TRIES: Final = 20
_TRY_SECONDS: Final = 0.1
_ROWS: Final = 1_000
_BYTES: Final = 4 * 2**20

type Wanted = Callable[[Dimensions], bool]
"""Returns whether the usage with these dimensions is asked for."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tables of a unit.

    Attributes:
        unit: the unit.
        start, end: the first, and the one after the last, in units since the epoch.
        user: the tenant and the name of the only user whose usage is asked for; None for all.
        needs: the names of the dimensions that are looked at; None for all.
    """

    unit: Unit
    start: int
    end: int
    user: tuple[str, str] | None = None
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
        for _ in range(_TRIES):
            before = await self._changes()
            found: dict[int, Table] = {}
            await self._read_pending(span, wanted, found)
            await self._read_tables(span, wanted, found)
            if await self._changes() == before:
                return found
            await asyncio.sleep(_TRY_SECONDS)
        raise ApiError(503, "Usage is being added up all the time: try again.", retry_after=5)

    async def _changes(self) -> int:
        changes = (await self._records.get_many([CHANGES])).get(CHANGES)
        return changes.version if changes else 0

    async def _read_pending(self, span: Span, wanted: Wanted, found: dict[int, Table]) -> None:
        start, end = PENDING, after_prefix(PENDING)
        while rows := await self._records.range(start, end, limit=_ROWS):
            await in_thread_if_large(partial(_add_pending, rows, span, wanted, found), [key for key, _ in rows])
            start = f"{rows[-1][0]}\0"

    async def _read_tables(self, span: Span, wanted: Wanted, found: dict[int, Table]) -> None:
        kind = kind_for(span.needs) if span.unit is DAYS and span.user is None else None
        summed = await self._read_sums(kind, span, wanted, found) if kind else frozenset()
        for left in _without(span, summed):
            async for tables in decoded_tables(self._records, self._decoder, left):
                await in_thread_if_large(partial(_add_tables, tables, wanted, found), tables)

    async def _read_sums(self, kind: SumKind, span: Span, wanted: Wanted, found: dict[int, Table]) -> Collection[int]:
        """Read the sums of days; return which days have some."""
        summed: set[int] = set()
        start, end = kind.key(span.start), kind.key(span.end)
        while rows := await self._records.range(start, end, limit=_ROWS, max_bytes=_BYTES):
            days = [kind.day_of(key) for key, _ in rows]
            decoded = await self._decoder.decode([record.value for _, record in rows])
            tables = [
                (day * DAYS.seconds, stored) for day, stored in zip(days, decoded, strict=True) if stored is not None
            ]
            await in_thread_if_large(partial(_add_tables, tables, wanted, found), tables)
            summed.update(start // DAYS.seconds for start, _ in tables)
            start = f"{rows[-1][0]}\0"
        return summed


async def decoded_tables(
    records: Records, decoder: Decoder, span: Span
) -> AsyncIterator[list[tuple[int, Sequence[Any]]]]:
    """Yield the tables of a span in pages: the start of each in seconds since the epoch, and what is stored.

    Raises:
        ApiError: 503, the store does not answer.
    """
    async for rows in _pages(records, span):
        decoded = await decoder.decode([record.value for _, record in rows])
        yield [(span.unit.start_of(key), stored) for (key, _), stored in zip(rows, decoded, strict=True)]


async def _pages(records: Records, span: Span) -> AsyncIterator[Sequence[tuple[str, Record]]]:
    unit = span.unit
    if span.user is not None:
        part = part_of(*span.user)
        keys = [unit.key(start, part) for start in range(span.start, span.end)]
        yield list((await records.get_many(keys)).items())
        return
    first, end = unit.key(span.start, 0), unit.key(span.end, 0)
    while rows := await records.range(first, end, limit=_ROWS, max_bytes=_BYTES):
        yield rows
        first = f"{rows[-1][0]}\0"


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


def _add_tables(tables: Iterable[tuple[int, Sequence[Any]]], wanted: Wanted, found: dict[int, Table]) -> None:
    for start, stored in tables:
        counted: Mapping[Dimensions, Counts] = table_of(stored)
        known = found.get(start, {})
        for dimensions, counts in counted.items():
            if not wanted(dimensions):
                continue
            if dimensions in known:
                add(known[dimensions], counts)
            else:
                known[dimensions] = counts  # not a copy: the decoded table is used only here
        if known:
            found[start] = known
