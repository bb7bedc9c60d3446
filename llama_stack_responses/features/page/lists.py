"""The list of a user's responses: pages, and a stream of its changes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core.errors import bad_request
from ...core.owner import Owner
from ...core.statuses import UNFINISHED
from ...core.types import Json
from ...items.listed_items import Order
from ...jobs.background import BackgroundJobs
from ...store.archive import Archive
from ...store.list_row_pages import Rows, Span, merged
from ...store.list_rows import Row
from ...store.records import Record
from .refused.rows import STATUS, RefusedRequests

_CURSOR: Final = re.compile("([0-9a-f]{14})-((?:resp|refused)_[0-9a-zA-Z_-]{1,64})")


@dataclass(frozen=True, slots=True)
class ListFilter:
    """What a list is restricted to; None and empty restrict nothing.

    Attributes:
        statuses, conversation: as in the row.
        model: as in the row, or without the name of its provider.
        metadata: pairs of a key and its value, or None for any value; all of them have to be there.
        text: a part of the first words of the question or of the answer, in any case.
        failed_tools: whether a tool call has to have failed.
        waits: whether the response has to wait for an approval or a client's output.
        tokens, seconds: least number of tokens, read and written, and of seconds; 0 for a response that has not ended.
        since, until: bounds of the creation in seconds since the epoch.
    """

    statuses: frozenset[str] = frozenset()
    model: str | None = None
    conversation: str | None = None
    metadata: Sequence[tuple[str, str | None]] = ()
    text: str | None = None
    failed_tools: bool = False
    waits: bool = False
    tokens: int | None = None
    seconds: float | None = None
    since: float | None = None
    until: float | None = None

    @property
    def restricts_rows(self) -> bool:
        """Whether rows have to be read."""
        return bool(
            self.statuses
            or self.model
            or self.conversation
            or self.metadata
            or self.text
            or self.failed_tools
            or self.waits
        ) or (self.tokens, self.seconds) != (None, None)

    def may_match(self, row: Row) -> bool:
        """Return whether a row matches, as far as its own fields show it: a queued one may have started."""
        statuses = self.statuses if self.statuses.isdisjoint(UNFINISHED) else self.statuses.union(UNFINISHED)
        return (
            (not statuses or row["status"] in statuses)
            and (self.model is None or self.model in (row["model"], row["model"].partition("/")[2]))
            and (self.conversation is None or row["conversation"] == self.conversation)
            and all(_has(row["metadata"], *pair) for pair in self.metadata)
            and (self.text is None or _says(row, self.text.casefold()))
            and (not self.waits or row["waits_for"] is not None)
            and (not self.failed_tools or row["failed_tool_calls"] > 0)
            and (self.tokens is None or (row["input_tokens"] or 0) + (row["output_tokens"] or 0) >= self.tokens)
            and (self.seconds is None or (row["seconds"] or 0.0) >= self.seconds)
        )

    def matches(self, row: Row) -> bool:
        """Return whether a row with its current status matches."""
        created = row["created_at"]
        return (
            (not self.statuses or row["status"] in self.statuses)
            and (self.since is None or created >= int(self.since))
            and (self.until is None or created < int(self.until))
            and self.may_match(row)
        )


class Lists:
    """Reads the lists of users.

    Args:
        archive: the stored responses.
        jobs: says which queued responses have started.
        refused: the requests that have no response because they were refused.
    """

    def __init__(self, archive: Archive, jobs: BackgroundJobs, refused: RefusedRequests) -> None:
        self._archive = archive
        self._jobs = jobs
        self._refused = refused

    async def page(self, owner: Owner, wanted: ListFilter, after: str | None, limit: int, order: Order) -> Json:
        """Return a page of the owner's list.

        Raises:
            ApiError: 400, `after` is not a cursor.
        """
        span = Span(wanted.since, wanted.until, _parsed(after) if after else None, order == "asc")
        page = await self._page(owner, span, limit, wanted)
        rows = await self._archive.listing.unanswered(owner, await self.current(page.rows))
        return {
            "object": "list",
            "data": [row for row in rows if wanted.matches(row)],
            "has_more": page.next is not None,
            "next": "-".join(page.next) if page.next else None,
        }

    async def _page(self, owner: Owner, span: Span, limit: int, wanted: ListFilter) -> Rows:
        """Return the rows of responses and of refused requests, as the statuses say."""
        matches = wanted.may_match if wanted.restricts_rows else None
        pages = []
        if wanted.statuses != {STATUS}:
            pages.append(self._archive.listing.page(owner, span, limit, matches))
        if not wanted.statuses or STATUS in wanted.statuses:
            pages.append(self._refused.page(owner, span, limit, matches))
        return merged(await asyncio.gather(*pages), span, limit)

    async def rows(self, records: Sequence[tuple[str, Record]]) -> list[Row]:
        """Return rows with their current status, given their keys and records."""
        return await self.current(await self._archive.listing.rows(records))

    async def current(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with the current status of those that were queued."""
        queued = [row["id"] for row in rows if row["status"] in UNFINISHED]
        jobs = await self._jobs.find_many(queued)
        running = {each for each, job in jobs.items() if job.state.worker}
        return [row | {"status": "in_progress"} if row["id"] in running else row for row in rows]


def _parsed(cursor: str) -> tuple[str, str]:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise bad_request("Invalid 'after': it is not the 'next' of a page.", "after", "invalid_value")
    return match[1], match[2]


def _says(row: Row, text: str) -> bool:
    return text in row["words"].casefold() or text in row["answer"].casefold()


def _has(metadata: Any, name: str, value: str | None) -> bool:
    return name in metadata and (value is None or metadata[name] == value)
