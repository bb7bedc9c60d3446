"""Pages of an owner's list, with the responses themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from ..core.errors import bad_request
from ..core.owner import Owner
from ..items.listed_items import Order
from ..requests.request import CreateRequest
from ..stream.response import new_response
from .codec import UnreadableError
from .content_names import Hasher
from .decoder import Decoder
from .layout import Entry, listing
from .list_rows import Row, read_list_row
from .loaded_response import FoundEntry
from .records import Moving, Record, Records, after_prefix
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

        One that cannot be read, since what is stored of it is damaged or missing, has what its row shows, no output,
        and an `error` that says so.

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
            listed = {key.rpartition("/")[2]: (key, record) for key, record in await self._candidates(rows, model)}
            ids, last = list(listed), None
            while ids and not self._loader.is_full(entries, limit):
                some, seen = await self._entries(owner, listed, ids[: limit - len(entries)], hold)
                entries += [each for each in some if model is None or each.entry.response["model"] == model]
                last, ids = ids[seen - 1], ids[seen:]
                if model is not None and time.monotonic() >= until:
                    break
            if ids and self._loader.is_full(entries, limit):
                # That there is a next one is seen by its row in the list. At another place, it stays there.
                return await self._page(entries, entries[-1].entry.id, hold)
            if len(rows) < size and not ids:
                return await self._page(entries, None, hold)
            scanned += len(rows)
            if model is not None and (scanned >= self._scan_rows or time.monotonic() >= until):
                last = last if ids else rows[-1][0].rpartition("/")[2]
                return await self._page(entries, last, hold)
            start, end = (start, rows[-1][0]) if order == "desc" else (rows[-1][0] + "\0", end)
            if model is not None:
                # The first rows often suffice. Where they do not, larger blocks save round trips.
                size = min(2 * size, _BLOCK_ROWS, self._scan_rows - scanned)

    async def _page(
        self, entries: Sequence[FoundEntry], last: str | None, hold: Callable[[int], object] | None
    ) -> ResponsePage:
        """Return a page of responses, behind which others may follow the response `last`, unless it is None."""
        page = await self._loader.page(entries, hold)
        return page if page.has_more or last is None else ResponsePage(page.items, has_more=True, last=last)

    async def _candidates(self, rows: Sequence[tuple[str, Record]], model: str | None) -> Sequence[tuple[str, Record]]:
        """Return the rows that show this model, or all if it is None."""
        if model is None:
            return rows
        values = await self._decoder.decode([record.value for _, record in rows])
        return [row for row, shown in zip(rows, values, strict=True) if shown.get("model", "") == model]

    async def _entries(
        self,
        owner: Owner,
        listed: Mapping[str, tuple[str, Record]],
        ids: Sequence[str],
        hold: Callable[[int], object] | None,
    ) -> tuple[Sequence[FoundEntry], int]:
        """Return what `ResponseLoader.entries` does; if one of them cannot be read, of that what its row shows."""
        with suppress(UnreadableError):
            return await self._loader.entries(ids, hold)
        found, seen = list[FoundEntry](), 0
        while seen < len(ids) and not self._loader.is_full(found, len(ids)):
            try:
                some, _ = await self._loader.entries([ids[seen]], hold)
            except UnreadableError as error:
                key, record = listed[ids[seen]]
                [value] = await self._decoder.decode([record.value])
                some = [_unreadable(owner, key, read_list_row(key, value, record.version), error)]
            found += some
            seen += 1
        return found, seen

    async def _bounds(self, owner: Owner, after: str | None, order: Order) -> tuple[str, str]:
        """Return the range of keys that `page` reads."""
        of = Hasher(owner).owner
        start, end = f"l/{of}/{self._retention.oldest()}", after_prefix(f"l/{of}/")
        if after is None:
            return start, end
        whose, position = await self._place(after)
        if whose is None or Hasher(whose).owner != of:
            raise bad_request(f"No response with id '{after}' is in this list.", "after", "invalid_value")
        key = listing(of, position, after)
        return (start, key) if order == "desc" else (max(start, key + "\0"), end)

    async def _place(self, response_id: str) -> tuple[Owner | None, str]:
        """Return the owner of a response, None if it is unknown, and its position in their list."""
        # What is at another place may not be readable there.
        if isinstance(self._records, Moving) and (packed := await self._records.packed(response_id)):
            return packed
        record = (await self._records.get_many([f"r/{response_id}"])).get(f"r/{response_id}")
        entry = Entry.from_stored(*await self._decoder.decode([record.value])) if record else None
        return (entry.owner, entry.order) if entry else (None, "")


def _unreadable(owner: Owner, key: str, row: Row, why: UnreadableError) -> FoundEntry:
    """Return a response of which only its row in the list can be read, given the key of that."""
    shown = {name: row[name] for name in ("model", "previous_response_id", "conversation", "background", "metadata")}
    response = new_response(CreateRequest(**shown), id=row["id"], created_at=row["created_at"])
    error = {"code": "server_error", "message": why.message}
    order = key.split("/")[2]
    return FoundEntry(Entry(response | {"status": row["status"], "error": error}, owner, None, 0, {}, order), 0, 0)
