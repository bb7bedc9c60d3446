"""Pages of an owner's list, read from its rows alone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ..concurrency.offloading import in_thread
from ..core.errors import bad_request
from ..core.owner import Owner
from ..core.types import Json
from . import codec
from .content_names import Hasher
from .layout import branches, listing, second
from .list_rows import Row, answered, first_words, list_row, read_list_row
from .records import Record, Records, after_prefix
from .response_loader import ResponseLoader
from .retention import Retention

_INLINE_ROWS: Final = 64
"""Rows that are decoded at a time."""

_ROW_BYTES: Final = 2**20
"""Maximum size of a decompressed row."""

_BLOCK_ROWS: Final = 500
"""Rows that one read of a filtered list takes."""

_LARGE_BLOCK_ROWS: Final = 4_000
_SCANNED_ROWS: Final = 10_000
"""Maximum number of rows that one page of a filtered list reads."""

_SEARCHED_ROWS: Final = 1_000
"""Maximum number of rows that are searched for the answers to calls."""


_CURSOR: Final = re.compile("([0-9a-f]{14})-((?:resp|refused)_[0-9a-zA-Z_-]{1,64})")

SCAN_SECONDS: Final = 0.6
"""Seconds after which the page of a filtered list ends, so that its first rows are there within one."""


class ReadRange(Protocol):
    """Reads rows of a range of keys, as `Records.range` does."""

    async def __call__(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        """Return at most `limit` rows, in the order of their keys."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a list.

    Attributes:
        since: the first second of creation; None for no bound.
        until: the second of creation that ends it, exclusive; None for no bound.
        after: the cursor of the last row that is known, `(order, response id)`.
        oldest_first: the order of the rows; newest first without it.
    """

    since: float | None = None
    until: float | None = None
    after: tuple[str, str] | None = None
    oldest_first: bool = False


@dataclass(slots=True)
class Rows:
    """A page of a list, in the order of its span.

    Attributes:
        rows: the rows.
        cursors: the cursor of each row.
        next: the cursor of the last row that was read; None if the list has ended.
    """

    rows: list[Row] = field(default_factory=list)
    cursors: list[tuple[str, str]] = field(default_factory=list)
    next: tuple[str, str] | None = None


class Listing:
    """Reads the lists of owners.

    Args:
        records: the store.
        retention: decides which responses have expired.
        loader: reads the responses of which rows are built.
    """

    def __init__(self, records: Records, retention: Retention, loader: ResponseLoader) -> None:
        self._records = records
        self._retention = retention
        self._loader = loader

    async def page(
        self,
        owner: Owner,
        span: Span,
        limit: int,
        wanted: Callable[[Row], bool] | None = None,
        read: ReadRange | None = None,
        *,
        slow: bool = False,
    ) -> Rows:
        """Return at most `limit` rows, in the order of the span.

        Args:
            wanted: returns whether a row is part of the page. The page may then be empty although more follow.
            read: reads the rows, such as those that a search finds; None reads all.
            slow: whether `read` reads each response too, so that it takes few rows at a time.
        """
        blocks = (_BLOCK_ROWS, _LARGE_BLOCK_ROWS)
        if read:
            blocks = (limit + 1, limit + 1 if slow else _LARGE_BLOCK_ROWS)
        return await page_of_rows(read or self._records.range, self._bounds(owner, span), span, limit, wanted, blocks)

    async def head(self, owner: Owner, limit: int) -> list[tuple[str, Record]]:
        """Return the keys and records of the newest rows, not decoded."""
        start, end = self._bounds(owner, Span())
        return await self._records.range(start, end, limit=limit, reverse=True)

    async def rows(self, records: Sequence[tuple[str, Record]]) -> list[Row]:
        """Decode rows, such as `head` returns, and keep their order."""
        return await read_rows(records)

    async def row(self, owner: Owner, order: str, response_id: str) -> Row | None:
        """Return the row of one response."""
        key = listing(Hasher(owner).owner, order, response_id)
        record = (await self._records.get_many([key])).get(key)
        rows = await self.rows([(key, record)]) if record else []
        return rows[0] if rows else None

    async def summaries(self, response_ids: Sequence[str]) -> dict[str, Row]:
        """Return the rows of these responses, by id, built from the responses."""
        rows: dict[str, Row] = {}
        async for stored, own in self._loader.with_inputs(response_ids):
            response_id = stored.response["id"]
            row = list_row(stored.response, first_words(own), stored.timing, answered(own))
            rows[response_id] = read_list_row(response_id, codec.decode(row), 0)
        return rows

    async def branches(self, owner: Owner, previous: str, limit: int) -> list[Row]:
        """Return the rows of the owner's responses that continue `previous`, oldest first."""
        of = Hasher(owner).owner
        prefix = branches(of, previous)
        children = await self._records.range(prefix, after_prefix(prefix), limit=limit)
        keys = [listing(of, *key.removeprefix(prefix).split("/", 1)) for key, _ in children]
        records = await self._records.get_many(keys) if keys else {}
        return await self.rows([(key, records[key]) for key in keys if key in records])

    async def unanswered(self, owner: Owner, rows: Sequence[Row]) -> list[Row]:
        """Return the owner's rows; `waits_for` is None if a later response continues one, or its input has the answer.

        Clients that keep their histories send a call with its output, and name no response that they continue. The
        responses that follow are searched for it, up to a bound.
        """
        waiting = [row["id"] for row in rows if row["waits_for"]]
        flags = await asyncio.gather(*(self._continued(owner, each) for each in waiting))
        continued = {each for each, is_continued in zip(waiting, flags, strict=True) if is_continued}
        continued |= await self._answered(owner, [row for row in rows if row["asks"] and row["id"] not in continued])
        return [row | {"waits_for": None} if row["id"] in continued else row for row in rows]

    async def _answered(self, owner: Owner, rows: Sequence[Row]) -> set[str]:
        """Return the ids of the rows that ask for what the input of a later response has."""
        if not rows:
            return set()
        start, end = self._bounds(owner, Span(since=min(row["created_at"] for row in rows)))
        block = await self._records.range(start, end, limit=_SEARCHED_ROWS)
        answers = {each for row in await self.rows(block) for each in row["answers"]}
        return {row["id"] for row in rows if not answers.isdisjoint(row["asks"])}

    async def _continued(self, owner: Owner, response_id: str) -> bool:
        prefix = branches(Hasher(owner).owner, response_id)
        return bool(await self._records.range(prefix, after_prefix(prefix), limit=1))

    def _bounds(self, owner: Owner, span: Span) -> tuple[str, str]:
        return bounds_of(f"l/{Hasher(owner).owner}/", span, self._retention.oldest())


def bounds_of(prefix: str, span: Span, oldest: str) -> tuple[str, str]:
    """Return the range of the keys of a part of a list.

    Args:
        prefix: of the keys of the list, which its cursors follow.
        oldest: the position of the oldest row that has not expired.
    """
    since = oldest if span.since is None else max(oldest, second(span.since))
    end = after_prefix(prefix) if span.until is None else f"{prefix}{second(span.until)}"
    start = f"{prefix}{since}"
    if span.after and span.oldest_first:
        start = max(start, f"{prefix}{'/'.join(span.after)}\0")
    elif span.after:
        end = min(end, f"{prefix}{'/'.join(span.after)}")
    return start, max(start, end)


async def page_of_rows(
    read: ReadRange,
    bounds: tuple[str, str],
    span: Span,
    limit: int,
    wanted: Callable[[Row], bool] | None = None,
    blocks: tuple[int, int] = (_BLOCK_ROWS, _LARGE_BLOCK_ROWS),
    seconds: float = SCAN_SECONDS,
) -> Rows:
    """Return at most `limit` rows of a range of keys, in the order of the span.

    Args:
        wanted: as in `Listing.page`.
        blocks: how many rows the first read takes, if rows have to be wanted, and how many later ones take at most.
        seconds: after these, the page ends with the read that takes it past them.
    """
    (start, end), page, scanned, until = bounds, Rows(), 0, time.monotonic() + seconds
    size = limit + 1 if wanted is None else blocks[0]
    while True:
        block = await read(start, end, limit=size, reverse=not span.oldest_first)
        for number, ((key, _), row) in enumerate(zip(block, await read_rows(block), strict=True), 1):
            if number % _INLINE_ROWS == 0:
                await asyncio.sleep(0)  # `wanted` may look for words.
            if wanted is None or wanted(row):
                if len(page.rows) == limit:
                    return page
                page.rows.append(row)
                page.cursors.append(_cursor(key))
            page.next = _cursor(key)
            start, end = (key + "\0", end) if span.oldest_first else (start, key)
        scanned += len(block)
        if len(block) < size:
            page.next = None
            return page
        if scanned >= _SCANNED_ROWS or time.monotonic() >= until:
            return page
        # The first rows often suffice. Where they do not, larger blocks save reads.
        size = min(4 * size, blocks[1])


def merged(pages: Sequence[Rows], span: Span, limit: int) -> Rows:
    """Return one page of several lists, of each of which a page of this span and limit was read."""
    ends = [page.next for page in pages if page.next]
    end = (min(ends) if span.oldest_first else max(ends)) if ends else None
    found = [each for page in pages for each in zip(page.cursors, page.rows, strict=True)]
    found.sort(key=lambda each: each[0], reverse=not span.oldest_first)
    # Behind the end of a page there may be rows that were not read.
    known = [each for each in found if end is None or (each[0] <= end if span.oldest_first else each[0] >= end)]
    shown = known[:limit]
    page = Rows([row for _, row in shown], [cursor for cursor, _ in shown], end)
    if len(known) > limit:
        page.next = page.cursors[-1]
    return page


async def read_rows(records: Sequence[tuple[str, Record]]) -> list[Row]:
    """Decode rows, and keep their order."""
    values = await _decoded([record.value for _, record in records])
    return [read_list_row(key, value, record.version) for (key, record), value in zip(records, values, strict=True)]


async def _decoded(values: Sequence[bytes]) -> list[Json]:
    """Decode rows. They are small, and many of them are decoded in a thread."""
    return _decode_in_slices(values) if len(values) <= _INLINE_ROWS else await in_thread(_decode_in_slices, values)


def _decode_in_slices(values: Sequence[bytes]) -> list[Json]:
    """Decode rows, and yield the interpreter lock now and then."""
    rows: list[Json] = []
    for number, value in enumerate(values, 1):
        rows.append(codec.decode(value, _ROW_BYTES))
        if number % _INLINE_ROWS == 0:
            time.sleep(0)
    return rows


def cursor_text(cursor: tuple[str, str] | None) -> str | None:
    """Return a cursor as clients get it; None if nothing follows."""
    return "-".join(cursor) if cursor else None


def parsed_cursor(cursor: str) -> tuple[str, str]:
    """Return the parts of a cursor.

    Raises:
        ApiError: 400, it is none.
    """
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise bad_request("Invalid 'after': no page ended with it.", "after", "invalid_value")
    return match[1], match[2]


def _cursor(key: str) -> tuple[str, str]:
    _, _, order, response_id = key.split("/")
    return order, response_id
