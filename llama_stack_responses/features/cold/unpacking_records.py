"""Records that bring back what is packed when it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

from ...core.errors import ApiError
from ...core.lru_cache import LruCache
from ...core.owner import Owner
from ...store.backup_format import Incomplete
from ...store.codec import UnreadableError
from ...store.conflict_retry import ConflictRetry
from ...store.content_names import Hasher
from ...store.decoder import Decoder
from ...store.garbage_collector import GarbageCollector
from ...store.layout import links_of, listing, scored
from ...store.read_allowance import PAGE_BYTES
from ...store.records import (
    Condition,
    Conflict,
    Delete,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    bytes_of,
    committed,
    pages_of,
    pages_of_keys,
    until,
)
from ...store.wrapped import WrappedRecords
from .bringing import Bringing, restored
from .pages import PagedRecords
from .prefixes import CHAINS, ITEMS
from .rows import Chain, Place, RecordStub, Release, held, items_of, own_rows, place_of

_POSITIONS: Final = "a/"
"""The prefix of the rows that find items of conversations: they are deleted with the pointers to these."""
_TRIES: Final = 4
"""How often a chain may be packed again while it is read."""
_ROWS: Final = 200
"""Rows of items of a deleted conversation that are read at a time."""
_OPENED_BYTES: Final = 32 * 2**20
"""Bytes of chains that a reader of many responses keeps opened."""
_KNOWN: Final = 256
"""Chains of which a reader knows which rows they have."""


class UnpackingRecords(WrappedRecords):
    """Brings a chain back when a row of it is read.

    Args:
        records: the store.
        bringing: brings back the chains of the same store.
    """

    def __init__(self, records: Records, bringing: Bringing) -> None:
        self._hot, self._paged, self._bringing = records, PagedRecords(records), bringing
        super().__init__(self._paged)
        self._garbage_collector = GarbageCollector(records, Decoder())

    @property
    def unmoved(self) -> Records:
        """The store without what is packed."""
        return self._hot

    @property
    def as_moved(self) -> Records:
        """The store with rows that stand for what is packed."""
        return self._paged

    def reader(self) -> Records:
        """Return the records for reading many responses, which stay packed."""
        return _Reader(self._hot, self._bringing)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Commit. Nothing that is written is in a page: it was read before, and so is back.

        Only items are deleted without being read, with their conversation.
        """
        deletes_items = any(isinstance(op, Delete) and op.key.startswith(_POSITIONS) for op in ops)
        await (self._records if deletes_items else self._hot).commit(ops, conditions)

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read; bring back what is packed."""
        is_sure = False
        for _ in range(_TRIES):
            found = await self._records.get_many(keys, max_bytes=max_bytes)
            hidden = [key for key in keys if key.startswith(ITEMS) and key not in found]
            places = [*places_of(found.items()), *await self._around(hidden)]
            if places:
                await self._bringing.bring(places)
            elif is_sure or not hidden:
                return found
            else:
                is_sure = True  # Another server may have brought them back in between.
        raise _busy()

    async def _around(self, items: Sequence[str]) -> list[Place]:
        """Return the packed runs that may have these items of conversations: only their ends are found by a key."""
        behind = [await self._hot.range(key, _end_of(key), limit=1, max_bytes=1) for key in items]
        return places_of(row for rows in behind for row in rows)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range; bring back what is packed."""
        if start.startswith(ITEMS):
            return await self._items(start, end, limit, max_bytes, reverse=reverse)
        for _ in range(_TRIES):
            found = await self._records.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
            places = places_of(found)
            if not places:
                return found
            await self._bringing.bring(places)
        raise _busy()

    async def _items(
        self, start: str, end: str, limit: int, max_bytes: int | None, *, reverse: bool
    ) -> list[tuple[str, Record]]:
        """Read items of a conversation; bring back one run of them after the other until the range is read."""
        rows, tries = list[tuple[str, Record]](), Counter[Place]()
        while True:
            left = None if max_bytes is None else max_bytes - bytes_of(record for _, record in rows)
            found = await self._hot.range(start, end, limit=limit - len(rows), reverse=reverse, max_bytes=left)
            hot = list(takewhile(lambda row: place_of(*row) is None, found))
            rows += hot
            if len(hot) == len(found):
                return rows
            [place] = places_of([found[len(hot)]])
            tries[place] += 1
            if tries[place] > _TRIES:
                raise _busy()
            await self._bringing.bring([place])
            if rows:
                start, end = (start, rows[-1][0]) if reverse else (f"{rows[-1][0]}\0", end)

    async def packed(self, response_id: str) -> tuple[Owner, str] | None:
        """Return the owner of a packed response, and its position in their list."""
        key = f"r/{response_id}"
        record = (await self._records.get_many([key])).get(key)
        stub = RecordStub.read(record) if record else None
        row = (await self._records.get_many([stub.place.key])).get(stub.place.key) if stub else None
        return (Chain.decode(row).owner, stub.order) if stub and row else None

    async def forget(self, response_id: str, ops: Sequence[Op], conditions: Sequence[Condition]) -> bool:
        """Delete a packed response: the key of its chain with its last response, without the object store."""
        record_key, retry = f"r/{response_id}", ConflictRetry()
        while True:
            await retry.wait()
            record = (await self._records.get_many([record_key])).get(record_key)
            stub = RecordStub.read(record) if record else None
            if record is None or stub is None:
                return False
            rows = await self._records.get_many([stub.place.key, stub.place.release])
            row, later = rows.get(stub.place.key), rows.get(stub.place.release)
            if row is None:
                continue
            chain = Chain.decode(row)
            deletion = _deletion(response_id, stub, chain)
            release = Release.decode(later) if later and chain.left == 1 else None
            if release:
                deletion += [Delete(stub.place.release), *release.ops()]
            unchanged = [VersionIs(key, each.version) for key, each in {record_key: record, **rows}.items()]
            try:
                await self._records.commit([*deletion, *ops], [*unchanged, *conditions])
            except Conflict as conflict:
                if any(condition in conditions for condition in conflict.failed):
                    raise
                continue
            if release:
                await self._garbage_collector.try_run(release.contents, release.owner)
            return True

    async def forget_items(self, conversation_id: str) -> None:
        """Delete packed items of a deleted conversation, with the keys of their runs, without the object store."""
        start, end, retry = items_of(conversation_id), _end_of(items_of(conversation_id)), ConflictRetry()
        while rows := await self._hot.range(start, end, limit=_ROWS, max_bytes=PAGE_BYTES):
            stubs = {key: record for key, record in rows if place_of(key, record)}
            places = dict.fromkeys(places_of(stubs.items()))
            chains = await self._records.get_many([place.key for place in places]) if places else {}
            gone = [key for place in places for key in (place.key, place.release)]
            unchanged = [VersionIs(key, record.version) for key, record in (stubs | chains).items()]
            await retry.wait()
            if await committed(self._records, [*map(Delete, stubs), *map(Delete, gone)], unchanged):
                start, retry = f"{rows[-1][0]}\0", ConflictRetry()
        await self._hot.commit([Delete(held(conversation_id))])

    async def exists(self) -> bool:
        """Return whether the store was made."""
        return await self._paged.exists()

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        """Yield all rows, with those of packed chains as they were: they need no object store when they are restored.

        Raises:
            ApiError: 503, the store or the object store does not answer, or the store cannot be read like this; 409,
                objects were deleted meanwhile.
            Incomplete: chains are damaged; all else was yielded.
        """
        damaged = dict[Place, Chain]()
        async for rows in self._paged.snapshot():
            yield [row for row in rows if not own_rows(row.key) and place_of(row.key, Record(row.value, 1)) is None]
            for row in rows:
                if row.key.startswith(CHAINS):
                    place, chain = Place.of(row.key), Chain.decode(Record(row.value, 1))
                    try:
                        async for unpacked in self._unpacked(place, chain):
                            yield unpacked
                    except UnreadableError:
                        damaged[place] = chain
        if damaged:
            await self._check_there(damaged)
            raise Incomplete(await self._ids_of(damaged))

    async def _check_there(self, places: Iterable[Place]) -> None:
        """Refuse if one of the chains is no longer where it was, so that its object may be deleted.

        Raises:
            ApiError: 409.
        """
        keys = [place.key for place in places]
        there = [key async for found in pages_of_keys(self._records, keys, _ROWS, PAGE_BYTES) for key in found]
        if len(there) < len(keys):
            raise ApiError(409, "Packed responses have moved while the backup was made: make it again.")

    async def _unpacked(self, place: Place, chain: Chain) -> AsyncGenerator[Sequence[Put]]:
        _, ops = restored(chain, await self._bringing.rows(place, chain))
        parts = range(1, len(chain.parts) + 1)
        if len(parts) > 1:
            for number in parts:
                await self._bringing.part(place, chain, number)  # all or nothing is in a backup
        for number in parts:
            yield [Put(*await self._bringing.part(place, chain, number))]
        yield [op for op in ops if isinstance(op, Put)]

    async def _ids_of(self, chains: Mapping[Place, Chain]) -> list[str]:
        """Return the ids of the responses and of the conversations of chains."""
        items = {key for chain in chains.values() for key in chain.rows if key.startswith(ITEMS)}
        found = {key.split("/")[1] for key in items}
        async for rows in pages_of(self._records, "r/"):
            found |= {key.removeprefix("r/") for key, record in rows if place_of(key, record) in chains}
        return sorted(found)


class _Reader(UnpackingRecords):
    """Reads packed chains where they are. The names of their contents are theirs alone, so they are found by these.

    Reading a response takes no range, so a range brings back what it has.
    """

    def __init__(self, records: Records, bringing: Bringing) -> None:
        super().__init__(records, bringing)
        self._opened = LruCache[tuple[Place, int], dict[str, bytes]](
            _OPENED_BYTES, lambda rows: sum(map(len, rows.values()))
        )
        self._keys = LruCache[Place, Mapping[str, int]](_KNOWN)

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read, also what is packed."""
        stored = await self._records.get_many(keys, max_bytes=max_bytes)
        there = {key: record for key, record in stored.items() if place_of(key, record) is None}
        hidden = [key for key in keys if key.startswith(ITEMS) and key not in stored]
        for place in (*places_of(stored.items()), *await self._around(hidden)):
            await self._chain(place)
        missing = {key for key in keys if key not in there}
        for place in self._keys.keys() if missing else ():
            numbers = self._keys.peek(place) or {}
            for number in {numbers[key] for key in missing if key in numbers}:
                rows = await self._chain(place, number)
                there |= {key: Record(rows[key], 1) for key in missing if key in rows}
                missing -= rows.keys()
        return dict(until(((key, there[key]) for key in dict.fromkeys(keys) if key in there), max_bytes))

    async def _chain(self, place: Place, number: int = 0) -> dict[str, bytes]:
        """Return the rows of a chain that are read, or its large one with this number.

        There are none if it was deleted or brought back meanwhile.
        """
        rows = self._opened.get((place, number))
        if rows is None:
            record = (await self._records.get_many([place.key])).get(place.key)
            rows = await self._read(place, Chain.decode(record), number) if record else {}
            self._opened.set((place, number), rows)
        return rows

    async def _read(self, place: Place, chain: Chain, number: int) -> dict[str, bytes]:
        if number:
            return dict([await self._bringing.part(place, chain, number)])
        _, ops = restored(chain, await self._bringing.rows(place, chain))
        rows = {op.key: op.value for op in ops if isinstance(op, Put)}
        parts = {key: part for part, (key, _) in enumerate(chain.parts, 1)}
        self._keys.set(place, dict.fromkeys(rows, 0) | parts)
        return rows


def places_of(rows: Iterable[tuple[str, Record]]) -> list[Place]:
    """Return where the chains are that these rows stand for."""
    return [place for key, record in rows if (place := place_of(key, record))]


def _end_of(key: str) -> str:
    """Return the key behind all items of the conversation of one."""
    return after_prefix(items_of(key.split("/")[1]))


def _deletion(response_id: str, stub: RecordStub, chain: Chain) -> list[Op]:
    """Return the ops that delete a packed response."""
    listed = listing(Hasher(chain.owner).owner, stub.order, response_id)
    rows = [f"r/{response_id}", listed, scored(listed), links_of(response_id)]
    if chain.left == 1:
        rows += [stub.place.key, *chain.rows]
        return [*map(Delete, rows)]
    fewer = replace(chain, left=chain.left - 1, gone=[*chain.gone, response_id])
    return [*map(Delete, rows), Put(stub.place.key, fewer.encode(), uses_reserve=True)]


def _busy() -> ApiError:
    return ApiError(503, "The response store is busy: this response is being moved.", retry_after=1)
