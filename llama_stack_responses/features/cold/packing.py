"""Packs idle responses and conversations, and deletes what is left of objects.

Whatever happens, a response or an item is either in the store or in an object whose row the store has: the commit that
puts the row takes it out of the store, and it holds only while the object may get chains.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from itertools import batched
from math import inf
from typing import Final, NamedTuple

from ...concurrency.offloading import in_thread, list_yielding_lock, taking
from ...concurrency.tasks import answers_of, gather_or_cancel, half_of_the_time
from ...core.errors import ApiError
from ...core.ids import tag_of
from ...lifecycle.periodic import Periodic
from ...logs import get_logger
from ...store.codec import TooLarge, UnreadableError
from ...store.decoder import Decoder
from ...store.garbage_collector import GarbageCollector
from ...store.layout import second
from ...store.merged_records import MergedRecords
from ...store.records import (
    Condition,
    Delete,
    NoRoom,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    committed,
    pages_of,
    range_in,
    read_all_replicated,
)
from ...telemetry.instrumentation import Telemetry
from ...telemetry.metrics import Metric
from .candidates import Candidates
from .conversations import Conversations
from .objects import Objects, ObjectsAway, Stored
from .pack import opened, packed, packed_part
from .pages import PagedRecords
from .prefixes import CHAINS, RELEASES
from .rows import Chain, Place, RecordStub, Release, packing
from .settling import SETTLED_TOGETHER, Settling
from .shares import Share, Shares, Span
from .units import Found, Part, Unit, read_units, stub_ops, unit_of

logger = get_logger(__name__)

PACKED: Final = Metric("llama_stack_responses.cold.packed", "{response}", "Responses that were packed")
ITEMS: Final = Metric("llama_stack_responses.cold.items", "{item}", "Items of conversations that were packed")
BYTES: Final = Metric("llama_stack_responses.cold.written", "By", "Bytes that were written to the object store")

_SECONDS: Final = 600.0
"""Seconds between two searches for idle responses."""
_RETRY_SECONDS: Final = 60.0
"""The same after one in which the object store, or a partition of the store, did not answer."""
_SMALL_SECONDS: Final = 3_600.0
"""The same after one that has found too few for an object."""
_SOON_SECONDS: Final = 30.0
"""The same after one in which the server had no share, since it had just started."""
_CURSOR_SECONDS: Final = 86_400.0
"""Seconds after which it is forgotten how far a server was that has ended."""
_UPLOAD_SECONDS: Final = 3600.0
"""Seconds within which the chains of an object are committed, or never."""
_WAIT_SECONDS: Final = 86_400.0
"""Seconds after which an object is written even if it is small."""
_KEEP_SECONDS: Final = 900.0
_SHARED_TIMES: Final = 8
"""A chain that shares content with another one is packed once it has been idle this many times as long."""
_LEAST_BYTES: Final = 8 * 2**20
_OBJECT_BYTES: Final = 24 * 2**20
"""Bytes with which an object ends; it has at most one chain more."""
_ROWS: Final = 500
_TOGETHER: Final = 128
"""Responses that are read, packed and committed at a time, unless one chain has more."""
_COMMITTED: Final = 32
"""Chains that are taken out of the store at a time, or whose content is deleted."""
_MERGED_BYTES: Final = 8 * 2**20
"""Bytes that are read for these together; what has more is read by itself."""
_COLLECTED: Final = 64
"""Objects of which a server looks at a time how much is left: in a cluster, all partitions are asked for each."""


@dataclass(frozen=True, slots=True)
class _Packed:
    unit: Unit
    data: bytes
    key: bytes

    @property
    def size(self) -> int:
        """Its bytes, roughly."""
        return len(self.data) + sum(part.size for part in self.unit.parts)


class _Placed(NamedTuple):
    """A chain that is in an object.

    Attributes:
        place, at, size: where it is, where it begins, and its bytes without its large rows.
        parts: its large rows, with their bytes.
        key: what it is encrypted with.
        unit: what it has in the store.
    """

    place: Place
    at: int
    size: int
    parts: Sequence[tuple[str, int]]
    key: bytes
    unit: Unit


@dataclass(slots=True)
class _Object:
    """What becomes an object.

    Attributes:
        chains: its chains.
        size: their bytes.
        oldest: the moment since which one of them is idle, as the beginning of a position in a list.
    """

    chains: list[_Packed] = field(default_factory=list)
    size: int = 0
    oldest: str = "~"

    def add(self, chain: _Packed) -> None:
        self.chains.append(chain)
        self.size += chain.size
        self.oldest = min(self.oldest, chain.unit.oldest)

    def taken(self) -> list[_Packed]:
        """Return the chains; it has none any more."""
        chains, self.chains, self.size, self.oldest = self.chains, [], 0, "~"
        return chains


def _pack(unit: Unit) -> _Packed:
    # The rows may take far more than the packed data, which wait for others.
    return _Packed(replace(unit, rows=()), *packed(unit.rows))


def _commit_of(placed: _Placed, later: float) -> tuple[list[Op], list[Condition]]:
    """Return the commit that takes the responses of a chain out of the store, if they have not changed."""
    place, unit = placed.place, placed.unit
    left = [*unit.stubs, *unit.stays]
    row = Chain(unit.owner, placed.at, placed.size, placed.key, len(unit.orders) or 1, left, (), placed.parts)
    release = Release(unit.owner, later, unit.held, unit.paged)
    ops = [*unit.ops, Put(place.key, row.encode(), uses_reserve=True), Put(place.release, release.encode())]
    ops += unit.put_stubs(place)
    return ops, [*unit.conditions, VersionIs(packing(place.object, place.tag), 1)]


class _Copied(NamedTuple):
    """A chain that is copied into another object: where it was, the version of its row, and the keys that it has."""

    place: Place
    chain: Chain
    version: int
    keys: Sequence[str]


type _Rows = Sequence[tuple[str, Record]]


def _due(rows: _Rows, now: float, chains: Container[Place]) -> list[tuple[str, Release, Record]]:
    """Return those of the releases that are due, of some chains."""
    decoded = ((key, Release.decode(record), record) for key, record in rows)
    return [each for each in list_yielding_lock(decoded) if each[1].at <= now and Place.of(each[0]) in chains]


def _rows_due(rows: _Rows, now: float) -> dict[Place, Sequence[str]]:
    """Return the keys of the rows of chains whose releases are due."""
    releases = ((Place.of(key), Release.decode(record)) for key, record in rows)
    of_chains = list_yielding_lock((place, each.rows if each.at <= now else None) for place, each in releases)
    return {place: keys for place, keys in of_chains if keys is not None}


def _decoded(rows: _Rows) -> list[tuple[Place, Chain, int]]:
    """Return chains, given their rows, with where they are, and the versions of these rows."""
    return list_yielding_lock((Place.of(key), Chain.decode(record), record.version) for key, record in rows)


def _bytes_and_tags(rows: _Rows) -> tuple[int, set[int]]:
    """Return the bytes of chains in their object, and their tags, given their rows."""
    chains = _decoded(rows)
    return sum(chain.total for _, chain, _ in chains), {place.tag for place, _, _ in chains}


def _found_by(responses: Sequence[Found]) -> tuple[int, str]:
    """Return the tag of a chain, and the key by which it was found."""
    entry = responses[0].entry
    return tag_of(entry.id), entry.listed


def _groups(chains: list[Sequence[Found]]) -> Iterator[list[Sequence[Found]]]:
    """Yield the chains, some at a time, which are taken out of the list."""
    group, size = list[Sequence[Found]](), 0
    for chain in taking(chains):
        if group and size + len(chain) > _TOGETHER:
            yield group
            group, size = [], 0
        group.append(chain)
        size += len(chain)
    if group:
        yield group


class Packing(Periodic):
    """Packs the idle responses of this server's shares at intervals, and deletes objects without chains.

    Args:
        records: the store, without what is packed.
        objects: where it goes.
        after_seconds: the age at which a response is packed.
        telemetry: records metrics.
        least_bytes: an object with fewer waits for more, for a day.
        object_bytes: an object ends with this size.
        keep_seconds: how long the content of a packed response stays for what has just read the response.

    Attributes:
        shares: which responses this server packs.
    """

    def __init__(
        self,
        records: Records,
        objects: Objects,
        after_seconds: float,
        telemetry: Telemetry | None = None,
        least_bytes: int = _LEAST_BYTES,
        object_bytes: int = _OBJECT_BYTES,
        keep_seconds: float = _KEEP_SECONDS,
    ) -> None:
        super().__init__(self.work, "could not pack idle responses", logger, _SECONDS, _RETRY_SECONDS)
        self._records, self._objects, self._telemetry = PagedRecords(records), objects, telemetry
        self._after_seconds, self._least_bytes, self._object_bytes = after_seconds, least_bytes, object_bytes
        self._keep_seconds = keep_seconds
        self._decoder = Decoder()
        self._candidates = Candidates(records, self._decoder)
        self._conversations = Conversations(records, self._decoder)
        self.shares = Shares(records)
        self._collected, self._waits = "", False
        self._silent, self._full = list[ApiError](), set[int]()
        self._is_idle = False
        self._tidy_at = -inf

    async def work(self) -> None:
        """Pack idle responses, and delete what is left of objects.

        Raises:
            ApiError: 503, the store or the object store does not answer.
        """
        self._silent.clear()
        self._full.clear()
        await self._tidy()
        await self._pack()
        if self._silent:
            self._waits = False
            raise self._silent[0]

    @contextmanager
    def _for_others(self, number: int | None = None) -> Iterator[None]:
        """Go on behind this with other partitions if one does not answer, or is full; note that there is such a one.

        Args:
            number: the partition, of which nothing more is packed if it is full.
        """
        try:
            yield
        except ObjectsAway:
            raise
        except ApiError as error:
            self._silent.append(error)
            if isinstance(error, NoRoom) and number is not None:
                self._full.add(number)

    def _pause(self, seconds: float) -> float:
        """Return how long to pause: longer if the responses that wait would be packed again, and still be too few."""
        return _SOON_SECONDS if self._is_idle else _SMALL_SECONDS if self._waits else seconds

    async def _pack(self) -> None:
        own, pending = await self.shares.own(), _Object()
        oldest = second(await self._records.now() - self._after_seconds)
        for span in await self.shares.spans(own):
            with self._for_others():
                await self._pack_span(span, oldest, pending)
        for span in self.shares.conversations(own):
            with self._for_others():
                await self._pack_conversations(span, oldest, pending)
        has_waited = pending.oldest < second(await self._records.now() - self._after_seconds - _WAIT_SECONDS)
        self._waits = bool(pending.chains) and pending.size < self._least_bytes and not has_waited
        self._is_idle = not own
        if pending.chains and not self._waits:
            await self._store(pending)

    async def _pack_span(self, span: Span, oldest: str, pending: _Object) -> None:
        """Pack the idle responses of some lists together with what is pending, to which the rest of them is added."""
        cursor = span.cursor
        async for window in self._candidates.within(span, oldest):
            own = set(await self.shares.own())
            for chains in _groups(window.chains):
                if span.partition in self._full:
                    return
                mine = [each for each in chains if self.shares.of_key(*_found_by(each)) in own]
                async with half_of_the_time():
                    for chain in await self._packed(span.partition, mine):
                        pending.add(chain)
                        if pending.size >= self._object_bytes:
                            await self._store(pending)
                            cursor = await self._note(span.partition, window.start, cursor)
            await self._tidy_if_due()
        if cursor:
            await self._records.commit([Delete(cursor)])

    async def _pack_conversations(self, span: Span, oldest: str, pending: _Object) -> None:
        """Pack the idle conversations in a range together with what is pending, to which the rest of them is added."""
        async for unit in self._conversations.within(span, oldest):
            if span.partition in self._full:
                return
            async with half_of_the_time():
                pending.add(await in_thread(_pack, unit))
                if pending.size >= self._object_bytes:
                    await self._store(pending)
            await self._tidy_if_due()

    async def _note(self, partition: int, start: str, before: str) -> str:
        """Note from which key to go on if this server ends, in place of what was noted before; return where."""
        cursor = self.shares.of_key(partition, start).cursor
        ops: list[Op] = [Delete(before)] if before and before != cursor else []
        until = await self._records.now() + _CURSOR_SECONDS
        await self._records.commit([*ops, Put(cursor, start.encode(), until, uses_reserve=True)])
        return cursor

    async def _tidy(self) -> None:
        """Delete what packed responses have left in the store, and objects without chains."""
        await self.release()
        with self._for_others():
            await self.collect()
        self._tidy_at = asyncio.get_running_loop().time()

    async def _tidy_if_due(self) -> None:
        if asyncio.get_running_loop().time() > self._tidy_at + _SECONDS:
            await self._tidy()

    async def _packed(self, partition: int, chains: Sequence[Sequence[Found]]) -> list[_Packed]:
        """Return chains of one partition, packed, without those that stay: they are in use, or cannot be read."""
        last = second(await self._records.now() - _SHARED_TIMES * self._after_seconds)
        read = await read_units(self._records.unpaged, self._decoder, partition, chains)
        packs = (_pack(unit_of(each)) for each in taking(read) if each and (not each.shared or each.newest < last))
        return await in_thread(list_yielding_lock, packs)

    async def _store(self, pending: _Object) -> None:
        """Write an object of what is pending, and take it out of the store, each chain by itself; no more is pending.

        What is of shares that others have by now stays, and what is in a partition that does not answer.
        """
        size, own = pending.size, set(await self.shares.own())
        of_tags = await in_thread(self._by_tag, pending.taken(), own)
        name, parts = await self._begin(of_tags)
        usable = set(parts) - self._full
        there = [taking(some) for tag, some in of_tags.items() if tag % self._records.partitions in usable]
        if not there:
            return
        placed = defaultdict[int, list[_Placed]](list)
        await self._objects.put(name, self._data_of(name, (each for some in there for each in some), placed))
        count, items = await self._take_out(placed)
        await self._end(name, of_tags)
        if self._telemetry:
            self._telemetry.record(PACKED, count)
            self._telemetry.record(ITEMS, items)
            self._telemetry.record(BYTES, size)
        logger.info("packed idle responses and items of conversations: %d, %d, in %d bytes", count, items, size)

    def _by_tag(self, chains: Sequence[_Packed], own: Set[Share]) -> dict[int, list[_Packed]]:
        """Return those of the chains that are of these shares, by their tags."""
        of_tags = defaultdict[int, list[_Packed]](list)
        for each in chains:
            if self.shares.of_key(each.unit.tag, each.unit.found) in own:
                of_tags[each.unit.tag].append(each)
        return of_tags

    async def _take_out(self, placed: Mapping[int, list[_Placed]]) -> tuple[int, int]:
        """Take chains that are in an object out of the store, unless they have changed.

        Args:
            placed: the chains by partition; they are taken out of the lists.

        Returns:
            How many responses, and items of conversations, were taken.
        """
        later, count, items = await self._records.now() + self._keep_seconds, 0, 0
        for number, chains in placed.items():
            for some in batched(taking(chains), _COMMITTED):
                if number in self._full:
                    break
                with self._for_others(number):
                    are_out = await self._commit(number, some, later)
                    taken = [each.unit for each, is_out in zip(some, are_out, strict=True) if is_out]
                    count += sum(len(unit.orders) for unit in taken)
                    items += sum(unit.items for unit in taken)
        return count, items

    async def _commit(self, number: int, chains: Sequence[_Placed], later: float) -> list[bool]:
        """Take chains of one partition out of the store; return for each whether its responses had not changed.

        Args:
            later: when what they leave behind is deleted.
        """
        commits = await in_thread(list_yielding_lock, (_commit_of(each, later) for each in chains))
        # No row that is written is in a page: what is packed is in the store if it has these versions.
        merged = MergedRecords(self._records.unpaged, number, _MERGED_BYTES)
        return await gather_or_cancel(committed(merged, *commit) for commit in commits)

    async def _data_of(
        self, name: str, chains: Iterable[_Packed], placed: Mapping[int, list[_Placed]]
    ) -> AsyncIterator[bytes]:
        """Yield the data of chains; large rows are read one by one.

        Args:
            name: the object.
            placed: gets the chains, without their data, by partition, except those of which a large row is gone.
        """
        at = 0
        for place, chain in ((Place(name, number, each.unit.tag), each) for number, each in enumerate(chains)):
            begin, parts = at, list[tuple[str, int]]()
            yield chain.data
            at += len(chain.data)
            for number, part in enumerate(chain.unit.parts, 1):
                data = await self._part(part, chain.key, number)
                if data is None:
                    break
                parts.append((part.key, len(data)))
                yield data
                at += len(data)
            else:
                whole = _Placed(place, begin, len(chain.data), parts, chain.key, chain.unit)
                placed[place.tag % self._records.partitions].append(whole)

    async def _part(self, part: Part, key: bytes, number: int) -> bytes | None:
        """Return a large row, packed; None if it is gone, or its partition does not answer."""
        record: Record | None = None
        with self._for_others():
            record = (await self._records.get_many([part.source])).get(part.source)
        return await in_thread(packed_part, part.row(record), key, number) if record else None

    async def _begin(self, tags: Collection[int]) -> tuple[str, Collection[int]]:
        """Return the name of a new object, to which chains with these tags may be added for a while.

        And in which partitions: some may not answer.
        """
        now = await self._records.now()
        name = f"{int(now):08x}{secrets.token_hex(6)}"
        return name, await self._mark(name, tags, now + _UPLOAD_SECONDS)

    async def _end(self, name: str, tags: Collection[int]) -> None:
        """Have no more chains added to an object."""
        await self._mark(name, tags, None)

    async def _mark(self, name: str, tags: Iterable[int], until: float | None) -> Collection[int]:
        """Have chains with these tags added to an object until a time, or no more; return in which partitions."""
        of_parts = defaultdict[int, list[Op]](list)
        for tag in tags:
            key = packing(name, tag)
            op = Delete(key) if until is None else Put(key, b"", until, uses_reserve=True)
            of_parts[tag % self._records.partitions].append(op)
        answers = await answers_of(self._records.commit(ops) for ops in of_parts.values())
        for each in answers:
            with self._for_others():
                if each:
                    raise each
        return [number for number, error in zip(of_parts, answers, strict=True) if error is None]

    async def release(self) -> None:
        """Delete the content of packed responses that nothing else refers to, once nothing reads it any more.

        What stays of them in the store is moved into pages.

        Raises:
            ApiError: 503, the store does not answer.
        """
        now = await self._records.now()
        own = set(await self.shares.own())
        for number in sorted({share.partition for share in own}):
            with self._for_others():
                await self._release(number, own, now)

    async def _release(self, number: int, own: Set[Share], now: float) -> None:
        """Delete what is due in one partition, for half of the time."""
        start, end = RELEASES, after_prefix(RELEASES)
        while start < end:
            rows, until = await self._next_rows(number, own, now, start)
            await Settling(self._records).settle(rows)
            async for page in self._releases(number, own, start, until):
                for some in batched(taking(await in_thread(_due, page, now, rows)), _COMMITTED):
                    async with half_of_the_time():
                        await self._let_go(number, some)
            start = until

    async def _next_rows(
        self, number: int, own: Set[Share], now: float, start: str
    ) -> tuple[dict[Place, Sequence[str]], str]:
        """Return the keys of the rows of the next chains whose releases are due, and where those behind them begin."""
        rows, count = dict[Place, Sequence[str]](), 0
        async for page in self._releases(number, own, start, after_prefix(RELEASES)):
            of_page = await in_thread(_rows_due, page, now)
            rows |= of_page
            count += sum(map(len, of_page.values()))
            if count >= SETTLED_TOGETHER:
                return rows, f"{page[-1][0]}\0"
        return rows, after_prefix(RELEASES)

    async def _let_go(self, number: int, releases: Sequence[tuple[str, Release, Record]]) -> None:
        """Delete the rows and the content of some releases of one partition."""
        merged, large = MergedRecords(self._records.unpaged, number, _MERGED_BYTES), list[Release]()

        async def let_go(key: str, release: Release, record: Record) -> None:
            if await committed(merged, [Delete(key), *release.ops()], [VersionIs(key, record.version)]):
                try:
                    await GarbageCollector(merged, self._decoder).try_run(release.contents, release.owner)
                except TooLarge:
                    large.append(release)

        await gather_or_cancel(let_go(*each) for each in releases)
        for release in large:
            alone = GarbageCollector(self._records.unpaged, self._decoder)
            await alone.try_run(release.contents, release.owner)

    async def _releases(self, number: int, own: Set[Share], start: str, end: str) -> AsyncIterator[_Rows]:
        """Yield the rows of a partition that say what the chains in the objects of shares have left in the store.

        Args:
            start, end: between which keys they are.
        """
        while rows := await range_in(self._records, number, start, end, limit=_ROWS):
            of_rows = [Place.of(key).object for key, _ in rows]
            mine = {name for name in set(of_rows) if self.shares.of_rest(name, number) in own}
            if mine:
                yield [row for row, name in zip(rows, of_rows, strict=True) if name in mine]
            start = f"{rows[-1][0]}\0" if of_rows[-1] in mine else after_prefix(f"{RELEASES}{of_rows[-1]}/")

    async def collect(self) -> None:
        """Delete objects without chains, and rewrite those of which most is left over: some at a time, in turns.

        Raises:
            ApiError: 503, the store or the object store does not answer.
        """
        looked_at = await self._next_objects()
        for each in looked_at:
            still_open = packing(each.name, 0)
            if await self._records.range(still_open, after_prefix(still_open), limit=1):
                continue
            # No chain can be added any more, so what is not there now never will be, unless a primary alone knows that
            # it is not there: others would have it again.
            read = partial(self._left_of, each.name)
            left, tags = await read_all_replicated(self._records, read, lambda found: not found[1])
            if not tags:
                await self._objects.delete(each.name)
            elif left * 2 < each.size:
                await self._try_rewrite(each, tags)
        self._collected = looked_at[-1].name if len(looked_at) == _COLLECTED else ""

    async def _left_of(self, name: str) -> tuple[int, set[int]]:
        """Return the bytes that an object's chains have in it, and their tags."""
        left, tags = 0, set[int]()
        async for page in self._pages(name):
            some, their_tags = await in_thread(_bytes_and_tags, page)
            left += some
            tags |= their_tags
        return left, tags

    async def _next_objects(self) -> list[Stored]:
        """Return the next own objects by name, behind the last ones."""
        found, own = list[Stored](), set(await self.shares.own())
        async for each in self._objects.all():
            if each.name > self._collected and self.shares.of_object(each.name) in own:
                found.append(each)
            if len(found) >= 2 * _COLLECTED:
                found = nsmallest(_COLLECTED, found)
        return nsmallest(_COLLECTED, found)

    def _pages(self, name: str) -> AsyncIterator[list[tuple[str, Record]]]:
        """Yield the rows of the chains in an object."""
        return pages_of(self._records, f"{CHAINS}{name}/", _ROWS)

    async def _try_rewrite(self, old: Stored, tags: Collection[int]) -> None:
        """Rewrite an object, unless it is damaged: others are packed and rewritten on."""
        try:
            await self._rewrite(old, tags)
        except UnreadableError as error:
            logger.error("an object of which most is left over cannot be read, leaving it: %s: %s", old.name, error)

    async def _rewrite(self, old: Stored, tags: Collection[int]) -> None:
        """Write the chains that an object still has to a new one. The old one is deleted when it has none."""
        name, _ = await self._begin(tags)
        copied = list[_Copied]()
        await self._objects.put(name, self._copied(old.name, copied))
        at = 0
        for number, each in enumerate(taking(copied)):
            place = Place(name, number, each.place.tag)
            ops = await self._moved(place, at, each.chain, each.keys)
            unchanged = [VersionIs(each.place.key, each.version), VersionIs(packing(name, place.tag), 1)]
            await committed(self._records, [Delete(each.place.key), *ops], unchanged)
            at += each.chain.total
        await self._end(name, tags)
        logger.info("rewrote an object of which most was left over: %d of %d bytes stay", at, old.size)

    async def _copied(self, name: str, copied: list[_Copied]) -> AsyncIterator[bytes]:
        """Yield the data of the chains in an object, which are added."""
        async for page in self._pages(name):
            for place, chain, version in taking(await in_thread(_decoded, page)):
                data = await self._objects.read(name, chain.at, chain.size)
                keys = [key for key, _ in await in_thread(opened, data, chain.key)]
                copied.append(_Copied(place, chain, version, keys))
                yield data
                for at, size in chain.places:
                    yield await self._objects.read(name, at, size)

    async def _moved(self, place: Place, at: int, chain: Chain, keys: Sequence[str]) -> list[Op]:
        """Return the ops by which a chain is at another place, given the keys that it has."""
        records = await self._records.get_many([key for key in keys if key.startswith("r/")])
        stubs = {key.removeprefix("r/"): RecordStub.read(record) for key, record in records.items()}
        orders = {response_id: stub.order for response_id, stub in stubs.items() if stub}
        pointed = sorted(set(chain.rows) & set(keys))
        # It has its row moved into a page.
        release = Release(chain.owner, await self._records.now(), {})
        ops: list[Op] = [Put(place.key, replace(chain, at=at).encode()), Put(place.release, release.encode())]
        return [*ops, *stub_ops(orders, pointed, place)]
