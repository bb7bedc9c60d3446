"""The lists of all owners of a tenant as one, newest first, read from their rows alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import batched
from typing import Final

from ..core.lru_cache import LruCache
from ..core.owner import Owner
from .layout import BUCKET, ORDER_DIGITS, owner_of_bucket, second
from .list_row_pages import SCAN_SECONDS, ReadRange, Rows, Span, bounds_of, merged, page_of_rows
from .list_rows import Row
from .records import Records, after_prefix, pages_of
from .response_loader import ResponseLoader
from .retention import Retention

_AT_A_TIME: Final = 16
"""Owners whose rows are read together."""
_ROWS: Final = 1_000
"""Rows that are first read of all owners of a bucket of time together, and later of one owner at most, if rows have to
be wanted."""
_LEAST_ROWS: Final = 8
"""Rows that are read of each owner in any case."""
_GROWTH: Final = 4
"""Factor by which the next read of the same owner is larger."""
_MAX_KNOWN: Final = 4096
"""Owners that are remembered by their keys."""
_LEAST_ID: Final = "resp_-"
"""An id before all others."""


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """A page of the lists of several owners.

    Attributes:
        page: the rows, newest first.
        owners: the owner of each response, by its id.
    """

    page: Rows = field(default_factory=Rows)
    owners: dict[str, Owner] = field(default_factory=dict)


async def buckets_of(
    records: Records, since: str = "", before: str | None = None
) -> AsyncIterator[tuple[str, list[str]]]:
    """Yield the buckets of time in which responses were created, newest first, each with the keys of their owners.

    Args:
        since: only buckets with this order and greater ones.
        before: only buckets with positions before this one.
    """
    oldest, end = since[:BUCKET], after_prefix(f"x/{before[:BUCKET]}/" if before else "x/")
    while last := await records.range(f"x/{oldest}", end, limit=1, reverse=True):
        digits = last[0][0].split("/")[1]
        owners = [owner_of_bucket(key) async for rows in pages_of(records, f"x/{digits}/") for key, _ in rows]
        yield digits, list(dict.fromkeys(owners))
        end = f"x/{digits}/"


class AllLists:
    """Reads the lists of all owners.

    Args:
        records: the store.
        retention: decides which responses have expired.
        loader: reads the responses that say whose a list is.
    """

    def __init__(self, records: Records, retention: Retention, loader: ResponseLoader) -> None:
        self._records, self._retention, self._loader = records, retention, loader
        self._known: LruCache[str, Owner] = LruCache(_MAX_KNOWN)

    async def page(
        self,
        tenant: str,
        span: Span,
        limit: int,
        wanted: Callable[[Row], bool] | None = None,
        read: ReadRange | None = None,
    ) -> OwnedRows:
        """Return at most `limit` rows of a tenant's owners, newest first.

        Args:
            span: which rows; its order is not regarded.
            wanted: returns whether a row is part of the page. The page may then be empty although more follow.
            read: reads the rows; None reads all.
        """
        found, until = OwnedRows(), time.monotonic() + SCAN_SECONDS
        oldest = self._retention.oldest()
        since = oldest if span.since is None else max(oldest, second(span.since))
        ends = [second(span.until)] if span.until is not None else []
        before = min([*ends, span.after[0]] if span.after else ends, default=None)
        async for digits, owners in buckets_of(self._records, since, before):
            bucket_end = digits.ljust(ORDER_DIGITS, "0"), _LEAST_ID
            if span.after == bucket_end:
                continue  # the page before has read all of it
            part = _Part(digits, span, limit - len(found.page.rows), oldest, until, wanted, read or self._records.range)
            of_bucket = await self._of_bucket(tenant, owners, part)
            found.page.rows += of_bucket.page.rows
            found.page.cursors += of_bucket.page.cursors
            found.owners.update(of_bucket.owners)
            found.page.next = of_bucket.page.next
            if found.page.next is None and (len(found.page.rows) == limit or time.monotonic() >= until):
                found.page.next = bucket_end
            if found.page.next:
                break
        return found

    async def _of_bucket(self, tenant: str, owners: Sequence[str], part: _Part) -> OwnedRows:
        """Return the page of a bucket of time.

        Where rows have to be wanted, a few of each owner are read first, and then more of those of whom the last row
        that was read is the newest: so the page can end within the bucket, however many rows its owners have.
        """
        rows = max(_LEAST_ROWS, _ROWS // len(owners))
        page, lists = Rows(), list[_List]()
        for some in batched([_List(each, rows) for each in owners], _AT_A_TIME):
            # Of rows that are all wanted, those before the end of the page so far are not needed.
            since = page.next if part.wanted is None else None
            await asyncio.gather(*(each.read(part, since) for each in some))
            known = await asyncio.gather(*(self._owner(each) for each in some))
            own = [each for each, owner in zip(some, known, strict=True) if owner and owner.tenant == tenant]
            page = merged([page, *(each.page for each in own)], part.span, part.limit)
            lists += own
        while page.next and len(page.rows) < part.limit and time.monotonic() < part.until:
            left = [(each.page.next, number) for number, each in enumerate(lists) if each.page.next]
            await asyncio.gather(*(lists[number].read(part) for _, number in nlargest(_AT_A_TIME, left)))
            page = merged([each.page for each in lists], part.span, part.limit)
        whose = {response_id: each.owner for each in lists for _, response_id in each.page.cursors}
        return OwnedRows(page, {each: owner for _, each in page.cursors if (owner := whose[each])})

    async def _owner(self, of: _List) -> Owner | None:
        """Return the owner of a list, and note it; None if all that was read of it is deleted, or nothing was."""
        of.owner = self._known.get(of.key)
        if of.owner:
            return of.owner
        # If no row was wanted, the last one that was read has this owner too.
        for _, response_id in (*of.page.cursors, *([of.page.next] if of.page.next else [])):
            if entry := await self._loader.entry(response_id):
                of.owner = Owner(entry.owner.principal, tenant=entry.owner.tenant)
                self._known.set(of.key, of.owner)
                break
        return of.owner


@dataclass(frozen=True, slots=True)
class _Part:
    """What is read of each owner in a bucket of time.

    Attributes:
        digits: the bucket.
        oldest: the position of the oldest row that has not expired.
        until: the moment after which no further rows are scanned.
        span, limit, wanted, read: as in `AllLists.page`.
    """

    digits: str
    span: Span
    limit: int
    oldest: str
    until: float
    wanted: Callable[[Row], bool] | None
    read: ReadRange

    async def of(self, owner: str, span: Span, since: tuple[str, str] | None, rows: int) -> Rows:
        """Return the page of an owner with this key.

        Args:
            span: which rows of the bucket.
            since: rows before this cursor are not needed.
            rows: how many rows are read, if they have to be wanted.
        """
        prefix = f"l/{owner}/"
        start, end = bounds_of(prefix, span, self.oldest)
        bucket = f"{prefix}{self.digits}"
        start = max(start, bucket, f"{prefix}{'/'.join(since)}" if since else "")
        bounds = start, max(start, min(end, after_prefix(bucket)))
        return await page_of_rows(self.read, bounds, span, self.limit, self.wanted, (rows, rows), seconds=0.0)


@dataclass(slots=True)
class _List:
    """What was read of an owner in a bucket of time.

    Attributes:
        key: the key of the owner.
        rows: how many rows the next read takes, if they have to be wanted.
        page: the rows, and where the next read goes on.
        owner: the owner, once it is known.
    """

    key: str
    rows: int
    page: Rows = field(default_factory=Rows)
    owner: Owner | None = None

    async def read(self, part: _Part, since: tuple[str, str] | None = None) -> None:
        """Read the next rows, none before the cursor `since`."""
        span = replace(part.span, after=self.page.next) if self.page.next else part.span
        found = await part.of(self.key, span, since, self.rows)
        self.page = Rows(self.page.rows + found.rows, self.page.cursors + found.cursors, found.next)
        self.rows = min(_GROWTH * self.rows, max(_ROWS, self.rows))
