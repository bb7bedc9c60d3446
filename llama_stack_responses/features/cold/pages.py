"""Small rows of packed chains, many of them in one row of the store.

A row takes more memory in Redis than it holds: its key twice, and what lists and finds it. Of a packed chain, the rows
that find and list it are therefore moved into pages, as the leaves of a B+ tree (Bayer and McCreight, 1972):

    ck/<partition>/<first>    rows of a partition from the key `first` up to that of the next page, compressed

The first page of each kind of rows begins with the prefix of their keys. A row is either in the store by itself or in a
page, and each commit that moves it between the two has the version of the page and that of the row as conditions. What
is by itself wins. Redis reads rows, and the pages of those that are missing, in one call. On other stores, to read
first the row, then the page, and then the row again finds what is moved meanwhile. A store with an index of words has
no pages: it has the index of the rows of lists, which therefore stay by themselves.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import batched, islice
from struct import Struct
from typing import Final, NamedTuple

import zstandard

from ...concurrency.offloading import in_thread, list_yielding_lock
from ...core.errors import ApiError
from ...store import codec
from ...store.conflict_retry import ConflictRetry
from ...store.layout import TAGS_OF_OWNER
from ...store.records import (
    Condition,
    Conflict,
    Delete,
    Ensure,
    Notify,
    Op,
    Persistent,
    Put,
    Record,
    Records,
    Snapshots,
    VersionIs,
    after_prefix,
    bytes_of,
    committed,
    get_or_floors,
    range_in,
    ranges_in,
    read_replicated,
    until,
)
from ...store.routing import owner_of_range, tag_of_key, tag_of_range
from ...store.search_index import index_of
from ...store.wrapped import WrappedRecords
from .prefixes import CHAINS, PAGES
from .rows import place_of

KINDS: Final = ("co/", "i/", "j/", "l/", "r/")
"""Prefixes of the keys of rows that pages may have."""
_ENCODED: Final = ("co/", "l/")
"""Those of rows whose values `codec` encodes."""
_FORMAT: Final = b"\1"
_HEAD: Final = Struct(">I")
_ROW: Final = Struct(">BHII")
_LEVEL: Final = 9
_ROWS: Final = 128
_BYTES: Final = 16 * 2**10
"""Rows of a page, and bytes of their values, with which it is full."""
_MAX_BYTES: Final = 2**26
_AT_ONCE: Final = 16
_FLOORS: Final = 128
"""Rows whose pages are looked for in one call."""
_INLINE: Final = 4
"""Pages that are decoded in the event loop."""
_TRIES: Final = 4
"""How often rows may move while a range is read."""


class Page(NamedTuple):
    """A page: its key and version, None if it is not stored, and its rows by key."""

    key: str
    version: int | None
    rows: dict[str, Record]

    def written(self) -> tuple[list[Op], list[Condition]]:
        """Return the commit that stores its rows: in further pages too if they are too many, or nowhere without any."""
        chunks = list(_chunks(self.rows))
        if not chunks:
            return [Delete(self.key)], [VersionIs(self.key, self.version)]
        further = [f"{self.key[: len(PAGES) + 4]}{chunk[0][0]}" for chunk in chunks[1:]]
        ops: list[Op] = [
            Put(key, encoded(chunk), uses_reserve=True) for key, chunk in zip([self.key, *further], chunks, strict=True)
        ]
        return ops, [VersionIs(self.key, self.version), *(VersionIs(key, None) for key in further)]


type _Known = dict[tuple[str, int | None], Page]
"""Pages by their keys and versions."""
type _ReadRows = Callable[[], Awaitable[list[tuple[str, Record]]]]
type _ReadPages = Callable[[_Span, _Known], Awaitable[list[Page]]]


def _with_rows(
    number: int, rows: Mapping[str, Record], floors: Mapping[str, tuple[str, Record] | None]
) -> Iterator[Page]:
    """Yield the pages of a partition with further rows.

    Args:
        floors: for each row the page that it is added to; None is a new one.
    """
    added = defaultdict[str, list[str]](list)
    for key in rows:
        floor = floors[key]
        added[floor[0] if floor else f"{PAGES}{number:03x}/{_kind_of(key)}"].append(key)
    for page_key, keys in added.items():
        floor = floors[keys[0]]
        page = _page(*floor) if floor else Page(page_key, None, {})
        page.rows.update((key, rows[key]) for key in keys)
        yield page


def _written(pages: Iterable[Page]) -> tuple[list[Op], list[Condition]]:
    """Return the commit that stores pages."""
    commits = list_yielding_lock(page.written() for page in pages)
    return [op for ops, _ in commits for op in ops], [condition for _, same in commits for condition in same]


def encoded(rows: Sequence[tuple[str, Record]]) -> bytes:
    """Return the value of a page, given its rows by key. The form is read by all later versions.

    A byte says the form. The rest is compressed: the number of rows; of each, the characters that its key has in common
    with the key before, those that follow, its version and the bytes of its value; the keys' own characters; the values
    without the compression of the store.
    """
    heads, names, values, before = bytearray(_HEAD.pack(len(rows))), bytearray(), bytearray(), ""
    for key, record in rows:
        same = _in_common(before, key)
        value = codec.unpacked(record.value) if key.startswith(_ENCODED) else record.value
        heads += _ROW.pack(same, len(key) - same, record.version, len(value))
        names += key[same:].encode("ascii")
        values += value
        before = key
    return _FORMAT + zstandard.ZstdCompressor(level=_LEVEL).compress(bytes(heads + names + values))


def decoded(value: bytes) -> dict[str, Record]:
    """Return the rows of a page.

    Raises:
        UnreadableError: it is damaged, or of a later version.
    """
    if value[:1] != _FORMAT:
        raise codec.UnreadableError("Rows of packed responses have the form of a later version of this software.")
    try:
        body = zstandard.ZstdDecompressor().decompress(value[1:], max_output_size=_MAX_BYTES)
    except zstandard.ZstdError as error:
        raise codec.UnreadableError("Rows of packed responses are damaged.") from error
    [count] = _HEAD.unpack_from(body)
    heads = list(_ROW.iter_unpack(body[_HEAD.size : _HEAD.size + count * _ROW.size]))
    names = _HEAD.size + count * _ROW.size
    values = names + sum(own for _, own, _, _ in heads)
    rows, key = dict[str, Record](), ""
    for same, own, version, size in heads:
        key = key[:same] + body[names : names + own].decode("ascii")
        rows[key] = Record(body[values : values + size], version)
        names, values = names + own, values + size
    return rows


def _in_common(before: str, key: str) -> int:
    """Return how many characters two keys begin with in common, 255 at most."""
    most = min(len(before), len(key), 255)
    one, other = (int.from_bytes(each[:most].encode("ascii")) for each in (before, key))
    return most - ((one ^ other).bit_length() + 7) // 8


def _chunks(rows: Mapping[str, Record]) -> Iterator[list[tuple[str, Record]]]:
    """Yield the rows of one page after the other, half full if one was too full."""
    ordered, size = sorted(rows.items()), bytes_of(rows.values())
    if len(ordered) <= _ROWS and size <= _BYTES:
        most_rows, most_bytes = _ROWS, _BYTES
    else:
        most_rows, most_bytes = _ROWS * 3 // 4, _BYTES * 3 // 4
    chunk, taken = list[tuple[str, Record]](), 0
    for key, record in ordered:
        if chunk and (len(chunk) == most_rows or taken + len(record.value) > most_bytes):
            yield chunk
            chunk, taken = [], 0
        chunk.append((key, record))
        taken += len(record.value)
    if chunk:
        yield chunk


def _kind_of(key: str) -> str:
    return key[: key.index("/") + 1]


class PagedRecords(WrappedRecords):
    """Reads rows wherever they are, and keeps them where they are when they are written.

    Only what packs, brings back and deletes chains has to write through this: all else writes rows of chains that are
    not packed, and reads them before. A page is written anew only if replicas have the one that was read: if it was
    lost, another primary could give a page with other rows the same version, and the condition on it would hold.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self._has_pages = index_of(records) is None

    @property
    def unpaged(self) -> Records:
        """The store, without what is in pages."""
        return self._records

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read."""
        alone, located = await self._read(keys, max_bytes)
        if not located:
            return alone
        every = {key: page.rows[key] for key, page in located.items()} | alone
        return dict(until(((key, every[key]) for key in dict.fromkeys(keys) if key in every), max_bytes))

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range; what is in pages is part of it if all its keys have the same kind."""
        if not self._has_pages or not _is_of_kind(start, end):
            return await self._records.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        read = partial(self._records.range, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        span = _Span(start, end, limit, reverse)
        return list(until(await self._merged(span, read, self._pages), max_bytes))

    async def range_in(
        self, number: int, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range of one partition, as `range`."""
        if not self._has_pages or not _is_of_kind(start, end):
            return await range_in(self._records, number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        read = partial(range_in, self._records, number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        span = _Span(start, end, limit, reverse)
        return list(until(await self._merged(span, read, partial(self._pages_in, number)), max_bytes))

    async def _merged(self, span: _Span, read: _ReadRows, read_pages: _ReadPages) -> Iterator[tuple[str, Record]]:
        """Return the rows of a range by themselves together with those of pages, which are read before and after."""
        known: _Known = {}
        pages = await read_pages(span, known)
        for _ in range(_TRIES):
            rows = await read()
            again = await read_pages(span, known)
            if again == pages:
                break
            pages = again
        return span.merged(rows, pages)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Commit; what is in pages is read, written and deleted there."""
        retry = ConflictRetry()
        while True:
            await retry.wait()
            planned, unchanged = await self._planned(ops, conditions)
            try:
                await self._records.commit(planned, unchanged)
            except Conflict as conflict:
                theirs = [each for each in conflict.failed if each in conditions]
                if theirs:
                    raise Conflict(theirs) from None
            else:
                return

    async def lifts(self, keys: Iterable[str]) -> list[Put]:
        """Return the ops by which those of the rows that are in pages are by themselves again."""
        _, located = await self._read([key for key in keys if key.startswith(KINDS)])
        return [_alone(key, page.rows[key]) for key, page in located.items()]

    async def settle(self, rows: Mapping[str, Record], conditions: Sequence[Condition]) -> bool:
        """Move rows of one partition into pages, if they and the conditions hold; return whether they did."""
        number = self._number(next(iter(rows)))
        read = partial(self._floors, number, sorted(rows))
        floors = await read_replicated(self._records, number, read, lambda found: any(found.values()))
        puts, same = await in_thread(_written, _with_rows(number, rows, floors))
        unchanged: list[Condition] = [VersionIs(key, record.version) for key, record in rows.items()]
        ops: list[Op] = [Delete(key) for key in rows]
        return await committed(self._records, [*ops, *puts], list(dict.fromkeys([*unchanged, *same, *conditions])))

    async def exists(self) -> bool:
        """Return whether the store was made."""
        return not isinstance(self._records, Persistent) or await self._records.exists()

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        """Yield all rows, with those of pages by themselves.

        Raises:
            ApiError: 503, the store does not answer, or cannot be read like this.
        """
        if not isinstance(self._records, Snapshots):
            raise ApiError(503, "This store cannot be backed up.")
        async for rows in self._records.snapshot():
            yield [row for row in rows if not row.key.startswith(PAGES)]
            for page in rows:
                if page.key.startswith(PAGES):
                    yield [_alone(*row) for row in decoded(page.value).items()]

    def _number(self, key: str) -> int:
        return tag_of_key(key) % self.partitions

    async def _floors(self, number: int, keys: Sequence[str]) -> dict[str, tuple[str, Record] | None]:
        """Return for each key of a partition the row of the page for it, None if there is none yet."""
        floors = dict[str, tuple[str, Record] | None]()
        for some in batched(keys, _FLOORS):
            spans = [_before(key, number) for key in some]
            found = await ranges_in(self._records, number, spans, limit=1, reverse=True)
            floors |= {key: rows[0] if rows else None for key, rows in zip(some, found, strict=True)}
        return floors

    async def _read(
        self, keys: Sequence[str], max_bytes: int | None = None
    ) -> tuple[dict[str, Record], dict[str, Page]]:
        """Return the records of keys that are by themselves, and the pages of those in pages; one object for each."""
        spans = {key: _before(key, self._number(key)) for key in keys if key.startswith(KINDS)}
        if not spans or not self._has_pages:
            return await self._records.get_many(keys, max_bytes=max_bytes), {}
        found = await get_or_floors(self._records, keys, spans, max_bytes=max_bytes)
        alone = {key: record for key, record in found.items() if not key.startswith(PAGES)}
        pages = await _opened([row for row in found.items() if row[0].startswith(PAGES)], {})
        asked = spans.keys() - alone.keys()
        return alone, {key: page for page in pages for key in sorted(page.rows.keys() & asked)}

    async def _planned(self, ops: Sequence[Op], conditions: Sequence[Condition]) -> tuple[list[Op], list[Condition]]:
        """Return a commit by which the rows that are in pages change there.

        Raises:
            Conflict: a condition on one of these does not hold.
        """
        named = [each.key for each in (*ops, *conditions) if isinstance(each, (Put, Ensure, Delete, VersionIs))]
        keys = [key for key in dict.fromkeys(named) if key.startswith(KINDS)]
        if not keys:
            return list(ops), list(conditions)
        # All conditions are in one partition.
        number = self._number(next((each.key for each in conditions if isinstance(each, VersionIs)), keys[0]))
        read = partial(self._read, keys)
        alone, located = await read_replicated(self._records, number, read, lambda found: bool(found[1]))
        wrong = [each for each in conditions if _is_broken(each, located)]
        if wrong:
            raise Conflict(wrong)
        kept = [each for each in conditions if not (isinstance(each, VersionIs) and each.key in located)]
        pages = {page.key: page for page in located.values()}
        written = [op for op in ops if isinstance(op, Notify) or not _written_in_page(op, located)]
        # They could be moved into pages before this is applied.
        kept += [
            VersionIs(op.key, alone[op.key].version)
            for op in written
            if isinstance(op, Put | Delete) and op.key in alone
        ]
        puts, same = await in_thread(_written, pages.values()) if pages else ([], [])
        return [*written, *puts], list(dict.fromkeys([*kept, *same]))

    async def _pages(self, span: _Span, known: _Known) -> list[Page]:
        numbers = await self._numbers_of(span)
        found = await asyncio.gather(*(self._pages_in(each, span, known) for each in numbers))
        return [page for pages in found for page in pages]

    async def _numbers_of(self, span: _Span) -> Sequence[int]:
        """Return the partitions that may have rows of a range."""
        if self.partitions == 1:
            return [0]
        tag = tag_of_range(span.start, span.end)
        if tag is not None:
            return [tag % self.partitions]
        if of := owner_of_range(span.start, span.end):
            used = f"{TAGS_OF_OWNER}{of}/"
            rows = await self._records.range(used, after_prefix(used), limit=4096)
            return sorted({0, *(int(key[-3:], 16) % self.partitions for key, _ in rows)})
        return range(self.partitions)

    async def _pages_in(self, number: int, span: _Span, known: _Known) -> list[Page]:
        """Return pages of a partition that have all rows of a range up to its limit.

        Args:
            known: pages that are decoded, to which others are added.
        """
        place, some = f"{PAGES}{number:03x}/", 1 + min(span.limit // _ROWS, _AT_ONCE)
        start, end = f"{place}{span.start}\0", f"{place}{span.end}"
        read = partial(range_in, self._records, number, limit=some, reverse=span.reverse)
        before = range_in(self._records, number, *_before(span.start, number), limit=1, reverse=True)
        floor, rows = await asyncio.gather(before, read(start, end))
        found = await _opened(rows, known)
        floors = await _opened(floor, known)
        count = sum(map(span.count, found if span.reverse else [*found, *floors]))
        while count < span.limit and len(rows) == some:
            start, end = (start, rows[-1][0]) if span.reverse else (rows[-1][0] + "\0", end)
            rows = await read(start, end)
            further = await _opened(rows, known)
            found += further
            count += sum(map(span.count, further))
        return [*found, *floors]


class _Span(NamedTuple):
    """A range that is read."""

    start: str
    end: str
    limit: int
    reverse: bool

    def count(self, page: Page) -> int:
        """Return how many rows of a page are in it."""
        return sum(self.start <= key < self.end for key in page.rows)

    def merged(self, rows: Sequence[tuple[str, Record]], pages: Sequence[Page]) -> Iterator[tuple[str, Record]]:
        """Yield its rows, given those by themselves and the pages."""
        alone = {key for key, _ in rows}
        paged = {
            key: record
            for page in pages
            for key, record in page.rows.items()
            if self.start <= key < self.end and key not in alone
        }
        ordered = sorted(paged.items(), reverse=self.reverse)
        return islice(merge(rows, ordered, key=lambda row: row[0], reverse=self.reverse), max(self.limit, 0))


def _before(key: str, number: int) -> tuple[str, str]:
    """Return the range of the keys of pages in a partition, of which the last one may have the row of a key."""
    place = f"{PAGES}{number:03x}/"
    return f"{place}{_kind_of(key)}", f"{place}{key}\0"


async def _opened(rows: Sequence[tuple[str, Record]], known: _Known) -> list[Page]:
    """Return pages, each decoded once: a few in the event loop."""
    new = [row for row in rows if (row[0], row[1].version) not in known]
    opened = _pages_of(new) if len(new) <= _INLINE else await in_thread(_pages_of, new)
    known |= {(page.key, page.version): page for page in opened}
    return [known[key, record.version] for key, record in rows]


def _pages_of(rows: Iterable[tuple[str, Record]]) -> list[Page]:
    return [_page(*row) for row in rows]


def _is_of_kind(start: str, end: str) -> bool:
    return start.startswith(KINDS) and end <= after_prefix(_kind_of(start))


def _alone(key: str, record: Record) -> Put:
    """Return the op that writes a row of a page by itself."""
    return Put(key, codec.repacked(record.value) if key.startswith(_ENCODED) else record.value)


def _page(key: str, record: Record) -> Page:
    return Page(key, record.version, decoded(record.value))


def _is_broken(condition: Condition, located: Mapping[str, Page]) -> bool:
    if not isinstance(condition, VersionIs) or condition.key not in located:
        return False
    return located[condition.key].rows[condition.key].version != condition.version


def _written_in_page(op: Put | Ensure | Delete, located: Mapping[str, Page]) -> bool:
    """Change the page that has the row; return whether nothing else is to be written."""
    page = located.get(op.key)
    if page is None or isinstance(op, Ensure):
        return page is not None
    before = page.rows.get(op.key)
    if before and isinstance(op, Put) and (op.key.startswith(CHAINS) or place_of(op.key, Record(op.value, 1))):
        page.rows[op.key] = Record(op.value, before.version + 1)
        return True
    page.rows.pop(op.key, None)
    return False
