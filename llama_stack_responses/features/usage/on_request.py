"""What a user has used, for the commands that export and delete it if they are asked to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from ...concurrency.offloading import in_thread_if_large
from ...config import ResponsesConfig
from ...core.owner import Owner
from ...core.types import Json
from ...store import codec
from ...store.conflict_retry import ConflictRetry
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.records import (
    Delete,
    Op,
    Put,
    Records,
    after_prefix,
    committed,
    pages_in,
    partitions_of,
    range_in,
)
from .counted import Dimensions, counted_identity
from .reading import Reading, Span
from .rows import (
    DAYS,
    HOURS,
    MINUTES,
    PENDING,
    Table,
    Unit,
    changes_of,
    parts_of,
    pending_until,
    read_pending,
    read_unchanged,
    stored_table,
    table_of,
)
from .settings import SETTINGS, Usage
from .sums import without_sums

_ROWS: Final = 500


class UsageOfOwners:
    """What users have used, as `OwnedObjects`: one for each day of UTC.

    Args:
        records: the store.
        decoder: decodes the tables.
        retention_days: days for which tables are kept; None for ever.
    """

    name = "days of usage"

    def __init__(self, records: Records, decoder: Decoder, retention_days: float | None) -> None:
        self._records, self._decoder, self._retention_days = records, decoder, retention_days

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the days on which an owner has used something, oldest first."""
        for day in await self._days_of(owner):
            yield _date(day)

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield the days on which an owner has used something, oldest first, with what it was in each hour."""
        for day in await self._days_of(owner):
            yield Exported("usage", owner, {"day": _date(day)}, "hours", self._hours(owner, day))

    async def delete(self, owner: Owner, object_id: str) -> None:
        """Delete what an owner has used on a day. The sums of all users lack it from then on."""
        day = int(datetime.fromisoformat(f"{object_id}T00:00Z").timestamp()) // DAYS.seconds
        retry = ConflictRetry()
        for partition, parts in self._parts_of(owner).items():
            while True:
                await retry.wait()
                read = partial(self._deletion, owner, partition, parts, day)
                ops, unchanged = await read_unchanged(self._records, partition, read)
                ops += [*without_sums([day], partition), Put(changes_of(partition), b"")]
                if await committed(self._records, ops, [unchanged]):
                    break

    async def _deletion(self, owner: Owner, partition: int, parts: Sequence[str], day: int) -> list[Op]:
        """Return the ops that take an owner out of what was used on a day, in some parts of a partition."""
        ops: list[Op] = [Delete(key) async for key, _ in self._pending(owner, partition, day)]
        return [*ops, *await self._without(owner, parts, day)]

    def _parts_of(self, owner: Owner) -> dict[int, list[str]]:
        """Return the parts in which an owner's usage may be, by the partition of the store."""
        found = defaultdict[int, list[str]](list)
        for part, tag in parts_of(owner).items():
            found[tag % partitions_of(self._records)].append(part)
        return found

    async def _days_of(self, owner: Owner) -> list[int]:
        days = set[int]()
        for partition, parts in self._parts_of(owner).items():
            days.update([at // DAYS.seconds async for _, at in self._pending(owner, partition)])
            async for page in pages_in(self._records, partition, DAYS.prefix, _ROWS):
                own = {key: record for key, record in page if key.rpartition("/")[2] in parts}
                decoded = await self._decoder.decode([record.value for record in own.values()])
                for key, stored in zip(own, decoded, strict=True):
                    if any(_is_of(owner, each) for each in table_of(stored)):
                        days.add(DAYS.start_of(key) // DAYS.seconds)
        return sorted(days)

    async def _pending(self, owner: Owner, partition: int, day: int | None = None) -> AsyncIterator[tuple[str, int]]:
        """Yield the key and the time of each response of an owner that is not in the tables of a partition yet."""
        start, end = PENDING, after_prefix(PENDING)
        if day is not None:
            start, end = pending_until(day * DAYS.seconds), pending_until((day + 1) * DAYS.seconds)
        while rows := await range_in(self._records, partition, start, end, limit=_ROWS):
            for key, record in rows:
                pending = read_pending(key, record.value)
                if pending and _is_of(owner, pending.dimensions):
                    yield key, pending.at
            start = f"{rows[-1][0]}\0"

    async def _without(self, owner: Owner, parts: Sequence[str], day: int) -> list[Op]:
        """Return the ops that take an owner out of the tables of a day in some parts.

        What was used in a minute is in the table of its hour too, so that few minutes are asked for: a store may read
        their keys one by one.
        """
        ops: list[Op] = []
        now = await self._records.now()
        longer, found = DAYS, [(day, part) for part in parts]
        for unit in (DAYS, HOURS, MINUTES):
            tables = await self._tables(unit, longer, found, now)
            for (start, part), table in tables.items():
                left = {of: counts for of, counts in table.items() if not _is_of(owner, of)}
                if not left:
                    ops.append(Delete(unit.key(start, part)))
                elif len(left) < len(table):
                    expires_at = unit.expires_at(start, self._retention_days)
                    ops.append(await self._put(unit.key(start, part), left, expires_at))
            longer, found = unit, list(tables)
        return ops

    async def _tables(
        self, unit: Unit, longer: Unit, of: Iterable[tuple[int, str]], now: float
    ) -> dict[tuple[int, str], Table]:
        """Return the tables of a unit that are in a longer one, by start and part."""
        each = longer.seconds // unit.seconds
        asked = {
            unit.key(start, part): (start, part)
            for longer_start, part in of
            for start in range(longer_start * each, (longer_start + 1) * each)
            if unit.may_be_kept(start, now)
        }
        rows = await self._records.get_many(list(asked))
        decoded = await self._decoder.decode([record.value for record in rows.values()])
        return {asked[key]: table_of(stored) for key, stored in zip(rows, decoded, strict=True)}

    async def _put(self, key: str, table: Table, expires_at: float | None) -> Put:
        rows = stored_table(table)
        return Put(key, await in_thread_if_large(partial(codec.encode, rows), rows), expires_at)

    async def _hours(self, owner: Owner, day: int) -> AsyncIterator[Json]:
        span = Span(HOURS, day * 24, (day + 1) * 24, owner)
        tables = await Reading(self._records, self._decoder).read(span, partial(_is_of, owner))
        for start, table in sorted(tables.items()):
            for of, counts in table.items():
                whose = {"team": of.team, "key": of.key, "model": of.model, "metadata": of.metadata}
                yield {"start": start, **whose, "counts": counts}


def _is_of(owner: Owner, usage: Dimensions) -> bool:
    return (usage.tenant, usage.user) == counted_identity(owner)


def _date(day: int) -> str:
    return f"{datetime.fromtimestamp(day * DAYS.seconds, UTC):%Y-%m-%d}"


def open_on_request(records: Records, decoder: Decoder, config: ResponsesConfig) -> UsageOfOwners:
    """Return what users have used."""
    return UsageOfOwners(records, decoder, (SETTINGS.of(config) or Usage()).retention_days)
