"""Read stored responses, and no more of them than a page holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ..core.types import Json
from .decoder import Decoder
from .layout import Entry
from .loaded_response import FoundEntry, StoredResponse, assembled, content_of
from .records import Records
from .retention import Retention
from .shared_content import SharedContent, first_decoded, own_inputs


@dataclass(frozen=True, slots=True)
class ResponsePage:
    """A page of a list.

    Attributes:
        items: the responses.
        has_more: whether more responses may follow.
        last: the id of the last response that was read, if more may follow. It is left out if part of it is gone.
    """

    items: list[StoredResponse]
    has_more: bool
    last: str | None = None


class ResponseLoader:
    """Reads responses by their ids. Responses that have expired are not found.

    Args:
        records: the store.
        decoder: decodes the stored values.
        retention: decides which responses have expired.
        page_bytes: a page ends once its responses reach this size.
    """

    def __init__(self, records: Records, decoder: Decoder, retention: Retention, page_bytes: int) -> None:
        self._records = records
        self._decoder = decoder
        self._retention = retention
        self._page_bytes = page_bytes

    async def load(
        self, response_id: str, hold: Callable[[int], object] | None = None, *, expired: bool = False
    ) -> StoredResponse | None:
        """Return the response; None if it is unknown, deleted or expired.

        Args:
            hold: called with the size of the response; it may raise.
            expired: return it also if it has expired, and is not deleted yet.
        """
        entries, _ = await self.entries([response_id], expired=expired)
        for stored in (await self.page(entries)).items:
            if hold:
                hold(stored.size)
            return stored
        return None

    async def entry(self, response_id: str) -> Entry | None:
        """Return the response's record without content that is stored elsewhere; None as from `load`."""
        entry = await self.entry_version(response_id)
        return entry[0] if entry else None

    async def entry_version(self, response_id: str) -> tuple[Entry, int] | None:
        """Return what `entry` returns, and the version of the record."""
        entries, _ = await self.entries([response_id])
        return (entries[0].entry, entries[0].version) if entries else None

    async def entries(
        self, response_ids: Sequence[str], hold: Callable[[int], object] | None = None, *, expired: bool = False
    ) -> tuple[Sequence[FoundEntry], int]:
        """Return the records of the first responses, up to the size of a page, and how many of the ids they cover."""
        keys = [f"r/{response_id}" for response_id in response_ids]
        values, seen = await first_decoded(self._records, self._decoder, keys, self._page_bytes, hold)
        oldest = self._retention.oldest()
        entries = [
            FoundEntry(Entry.from_stored(value), record.version, size) for record, value, size in values.values()
        ]
        return [each for each in entries if expired or each.entry.order >= oldest], seen

    def is_full(self, entries: Sequence[FoundEntry], limit: int) -> bool:
        """Return whether the responses fill a page of `limit`."""
        return len(entries) >= limit or sum(each.size for each in entries) >= self._page_bytes

    async def page(self, entries: Sequence[FoundEntry], hold: Callable[[int], object] | None = None) -> ResponsePage:
        """Return a page: the first of the responses, until they reach its size limit."""
        return await self._page(self._shared(hold), entries)

    async def with_inputs(self, response_ids: Sequence[str]) -> AsyncIterator[tuple[StoredResponse, list[Json]]]:
        """Yield those of the responses that exist, each with the input items of `own_inputs`, a page at a time."""
        async for shared, _, items in self._pages(response_ids):
            inputs = await own_inputs(shared, [each.input for each in items], self._page_bytes)
            for stored, own in zip_longest(items, inputs):
                yield stored, own or []

    async def queued(self, response_ids: Sequence[str]) -> AsyncIterator[tuple[FoundEntry, StoredResponse]]:
        """Yield those of the responses that are queued, also expired ones, each with its record."""
        async for _, entries, items in self._pages(response_ids, expired=True):
            found = {each.entry.id: each for each in entries}
            for each in items:
                if each.response["status"] == "queued":
                    yield found[each.response["id"]], each

    async def _pages(
        self, response_ids: Sequence[str], *, expired: bool = False
    ) -> AsyncIterator[tuple[SharedContent, Sequence[FoundEntry], Sequence[StoredResponse]]]:
        """Yield pages of the responses that exist: the content that was read, the records, and the responses.

        The records may be those of further responses too.
        """
        while response_ids:
            entries, seen = await self.entries(response_ids, expired=expired)
            shared = self._shared()
            page = await self._page(shared, entries)
            yield shared, entries, page.items
            if page.last:
                seen = response_ids.index(page.last) + 1
            response_ids = response_ids[seen:]

    def _shared(self, hold: Callable[[int], object] | None = None) -> SharedContent:
        return SharedContent(self._records, self._decoder, self._page_bytes, hold)

    async def _page(self, shared: SharedContent, entries: Sequence[FoundEntry]) -> ResponsePage:
        items, size = list[StoredResponse](), 0
        for number, each in enumerate(entries):
            if size >= self._page_bytes:
                return ResponsePage(items, has_more=True, last=entries[number - 1].entry.id)
            ahead = (key for later in entries[number:] for key in content_of(later.entry))
            content = await shared.get(content_of(each.entry), ahead)
            size_of_it = each.size + sum(of_it for _, _, of_it in content.values())
            size += size_of_it
            items += assembled(each, content, size_of_it)
        return ResponsePage(items, has_more=False)

    async def own_inputs(
        self, stored: Sequence[StoredResponse], hold: Callable[[int], object] | None = None
    ) -> list[list[Json]]:
        """Return each response's input items after the last item that a model generated, in at most two round trips.

        The list is empty if these items are no longer stored. The answer ends once the inputs reach the
        size of a page.

        Args:
            hold: called with the bytes of what is read, before it is decoded; it may raise.
        """
        return await own_inputs(self._shared(hold), [each.input for each in stored], self._page_bytes)
