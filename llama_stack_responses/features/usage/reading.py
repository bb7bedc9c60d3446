"""Reads what was used in a time, as it is at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ...concurrency.offloading import in_thread_if_large
from ...core.errors import ApiError
from ...store.decoder import Decoder
from ...store.records import Record, Records, after_prefix
from .counted import Counts, Dimensions, add
from .rows import CHANGES, PENDING, Pending, Table, Unit, part_of, read_pending, table_of

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
    """

    unit: Unit
    start: int
    end: int
    user: tuple[str, str] | None = None


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
        async for rows in self._pages(span):
            decoded = await self._decoder.decode([record.value for _, record in rows])
            tables = [(span.unit.start_of(key), stored) for (key, _), stored in zip(rows, decoded, strict=True)]
            await in_thread_if_large(partial(_add_tables, tables, wanted, found), decoded)

    async def _pages(self, span: Span) -> Any:
        unit = span.unit
        if span.user is not None:
            part = part_of(*span.user)
            keys = [unit.key(start, part) for start in range(span.start, span.end)]
            yield list((await self._records.get_many(keys)).items())
            return
        first, end = unit.key(span.start, 0), unit.key(span.end, 0)
        while rows := await self._records.range(first, end, limit=_ROWS, max_bytes=_BYTES):
            yield rows
            first = f"{rows[-1][0]}\0"


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
