"""Pages of an owner's list, with the responses themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from ..core.errors import bad_request
from ..core.owner import Owner
from ..items.listed_items import Order
from .content_names import Hasher
from .decoder import Decoder
from .layout import Entry, listing
from .loaded_response import FoundEntry
from .records import Record, Records, after_prefix
from .response_loader import ResponseLoader, ResponsePage
from .retention import Retention

SCANNED_ROWS: Final = 10_000
"""Rows after which the page of a filtered list ends."""

_BLOCK_ROWS: Final = 500
"""Rows that one read of a filtered list takes."""


class ResponseList:
    """Reads the lists of owners. `Listing` reads their rows alone.

    Args:
        records: the store.
        decoder: decodes the stored values.
        retention: decides which responses have expired.
        loader: reads the responses.
        scan_rows: a page of a filtered list ends after this number of rows.
        scan_seconds: a page of a filtered list ends after this time.
    """

    def __init__(
        self,
        records: Records,
        decoder: Decoder,
        retention: Retention,
        loader: ResponseLoader,
        scan_rows: int,
        scan_seconds: float,
    ) -> None:
        self._records = records
        self._decoder = decoder
        self._retention = retention
        self._loader = loader
        self._scan_rows = scan_rows
        self._scan_seconds = scan_seconds

    async def page(
        self,
        owner: Owner,
        *,
        limit: int,
        after: str | None,
        order: Order,
        model: str | None,
        hold: Callable[[int], object] | None = None,
    ) -> ResponsePage:
        """Return at most `limit` of the owner's responses after the response `after`, by time of creation.

        Args:
            model: return only responses of this model. The page then ends at a limit of rows and of time, perhaps
                without any response.
            hold: called with the bytes of what is read, before it is decoded; it may raise.

        Raises:
            ApiError: 400, if `after` is not one of the owner's responses.
        """
        start, end = await self._bounds(owner, after, order)
        size = limit + 1 if model is None else min(limit + 1, self._scan_rows)
        entries: list[FoundEntry] = []
        scanned, until = 0, time.monotonic() + self._scan_seconds
        while True:
            rows = await self._records.range(start, end, limit=size, reverse=order == "desc")
            ids = await self._candidates(rows, model)
            last = None
            while ids and not self._loader.is_enough(entries, limit):
                some, seen = await self._loader.entries(ids[: limit + 1 - len(entries)], hold)
                entries += [each for each in some if model is None or each.entry.response["model"] == model]
                last, ids = ids[seen - 1], ids[seen:]
                if model is not None and time.monotonic() >= until:
                    break
            if self._loader.is_enough(entries, limit) or (len(rows) < size and not ids):
                return await self._loader.page(entries, limit, hold)
            scanned += len(rows)
            if model is not None and (scanned >= self._scan_rows or time.monotonic() >= until):
                page = await self._loader.page(entries, limit, hold)
                last = last if ids else rows[-1][0].rpartition("/")[2]
                return page if page.has_more else ResponsePage(page.items, has_more=True, last=last)
            start, end = (start, rows[-1][0]) if order == "desc" else (rows[-1][0] + "\0", end)
            if model is not None:
                # The first rows often suffice. Where they do not, larger blocks save round trips.
                size = min(2 * size, _BLOCK_ROWS, self._scan_rows - scanned)

    async def _candidates(self, rows: Sequence[tuple[str, Record]], model: str | None) -> Sequence[str]:
        """Return the ids of the responses whose rows show this model, or of all if it is None."""
        if model is not None:
            values = await self._decoder.decode([record.value for _, record in rows])
            rows = [row for row, shown in zip(rows, values, strict=True) if shown.get("model", "") == model]
        return [key.rpartition("/")[2] for key, _ in rows]

    async def _bounds(self, owner: Owner, after: str | None, order: Order) -> tuple[str, str]:
        """Return the range of keys that `page` reads."""
        of = Hasher(owner).owner
        start, end = f"l/{of}/{self._retention.oldest()}", after_prefix(f"l/{of}/")
        if after is None:
            return start, end
        record = (await self._records.get_many([f"r/{after}"])).get(f"r/{after}")
        entry = Entry.from_stored(*await self._decoder.decode([record.value])) if record else None
        if entry is None or Hasher(entry.owner).owner != of:
            raise bad_request(f"No response with id '{after}' is in this list.", "after", "invalid_value")
        key = listing(of, entry.order, after)
        return (start, key) if order == "desc" else (max(start, key + "\0"), end)
