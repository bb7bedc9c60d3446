"""The lists of all owners of a tenant as one, newest first, read from their rows alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
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
"""Rows that the first read of a bucket of time takes of all owners together, if rows have to be wanted."""
_LEAST_ROWS: Final = 8
"""Rows that it takes of each owner in any case."""
_GROWTH: Final = 4
"""Factor by which the next read is larger, if the time that is left suffices for it."""
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

        Where rows have to be wanted, a few of each owner are read first, and those behind them later: so the page can
        end within the bucket, however many rows its owners have.
        """
        found, rows = OwnedRows(), max(_LEAST_ROWS, _ROWS // len(owners))
        while True:
            begun = time.monotonic()
            some = await self._merged(tenant, owners, part, rows)
            found.page.rows += some.page.rows
            found.page.cursors += some.page.cursors
            found.owners.update(some.owners)
            found.page.next = some.page.next
            part = part.behind(some.page)
            now = time.monotonic()
            if some.page.next is None or not part.limit or now >= part.until:
                return found
            if _GROWTH * (now - begun) < part.until - now:
                rows *= _GROWTH

    async def _merged(self, tenant: str, owners: Sequence[str], part: _Part, rows: int) -> OwnedRows:
        """Return the page of which each owner has at most this number of rows that were read."""
        page, whose = Rows(), dict[str, Owner]()
        for some in batched(owners, _AT_A_TIME):
            pages = await asyncio.gather(*(part.of(each, page.next, rows) for each in some))
            known = await asyncio.gather(*(self._owner(*each) for each in zip(some, pages, strict=True)))
            own = [(each, owner) for each, owner in zip(pages, known, strict=True) if owner and owner.tenant == tenant]
            page = merged([page, *(each for each, _ in own)], part.span, part.limit)
            whose |= {response_id: owner for each, owner in own for _, response_id in each.cursors}
        return OwnedRows(page, {response_id: whose[response_id] for _, response_id in page.cursors})

    async def _owner(self, of: str, page: Rows) -> Owner | None:
        """Return the owner with this key, of whom this page was read; None if all that it has is deleted."""
        if known := self._known.get(of):
            return known
        # If no row was wanted, the last one that was read has this owner too.
        for _, response_id in (*page.cursors, *([page.next] if page.next else [])):
            if entry := await self._loader.entry(response_id):
                owner = Owner(entry.owner.principal, tenant=entry.owner.tenant)
                self._known.set(of, owner)
                return owner
        return None


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

    def behind(self, page: Rows) -> _Part:
        """Return the part that follows a page."""
        return replace(self, span=replace(self.span, after=page.next), limit=self.limit - len(page.rows))

    async def of(self, owner: str, last: tuple[str, str] | None, rows: int) -> Rows:
        """Return the page of an owner with this key.

        Args:
            last: rows before this cursor are not needed.
            rows: how many rows are read, if they have to be wanted.
        """
        prefix = f"l/{owner}/"
        start, end = bounds_of(prefix, self.span, self.oldest)
        bucket = f"{prefix}{self.digits}"
        start = max(start, bucket, f"{prefix}{'/'.join(last)}" if last else "")
        bounds = start, max(start, min(end, after_prefix(bucket)))
        return await page_of_rows(self.read, bounds, self.span, self.limit, self.wanted, (rows, rows), seconds=0.0)
