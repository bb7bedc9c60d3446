"""The list of a user's responses: pages, and a stream of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ...concurrency.fair_budget import FairBudget
from ...core.owner import Owner
from ...core.statuses import UNFINISHED
from ...core.types import Json
from ...items.listed_items import Order
from ...jobs.background import BackgroundJobs
from ...store.all_lists import OwnedRows
from ...store.archive import Archive
from ...store.layout import SECOND_DIGITS
from ...store.list_row_pages import ReadRange, Rows, Span, cursor_text, merged, parsed_cursor
from ...store.list_rows import Row
from ...store.records import Record
from ...store.scores import Score
from .refused.rows import STATUS, RefusedRequests
from .search.box import NO_STATUS, NOTHING_SEARCHED, Searched, is_of_model, tightest
from .search.finding import Finding, Search
from .view import owner_of

_SEARCHES: Final = 2
"""Searches of all users that are made at a time, one of each user."""
_FIRST_WORDS: Final[Json] = {"covers": "first_words", "indexed": None, "waiting": 0}
"""What is searched in a store without an index."""


@dataclass(frozen=True, slots=True)
class ListFilter:
    """What a list is restricted to; None and empty restrict nothing.

    Attributes:
        statuses, conversation: as in the row.
        model: as in the row, or without the name of its provider.
        metadata: pairs of a key and its value, or None for any value; all of them have to be there.
        searched: what a user has typed to search.
        failed_tools: whether a tool call has to have failed.
        waits: whether the response has to wait for an approval or a client's output.
        tokens, seconds: least number of tokens, read and written, and of seconds; 0 for a response that has not ended.
        since, until: bounds of the creation in seconds since the epoch.
    """

    statuses: frozenset[str] = frozenset()
    model: str | None = None
    conversation: str | None = None
    metadata: Sequence[tuple[str, str | None]] = ()
    searched: Searched = NOTHING_SEARCHED
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
            or self.searched != NOTHING_SEARCHED
            or self.failed_tools
            or self.waits
        ) or (self.tokens, self.seconds) != (None, None)

    def may_match(self, row: Row) -> bool:
        """Return whether a row matches beside its words, as far as its fields show that: a queued one may run."""
        statuses = self.statuses if self.statuses.isdisjoint(UNFINISHED) else self.statuses.union(UNFINISHED)
        return (
            (not statuses or row["status"] in statuses)
            and (self.model is None or is_of_model(row, self.model))
            and (self.conversation is None or row["conversation"] == self.conversation)
            and all(_has(row["metadata"], *pair) for pair in self.metadata)
            and self.searched.filters(row)
            and (not self.waits or row["waits_for"] is not None)
            and (not self.failed_tools or row["failed_tool_calls"] > 0)
            and (self.tokens is None or (row["input_tokens"] or 0) + (row["output_tokens"] or 0) >= self.tokens)
            and (self.seconds is None or (row["seconds"] or 0.0) >= self.seconds)
        )

    def may_match_and_says(self, row: Row) -> bool:
        """Return whether a row matches, and its first words are those that are searched."""
        return self.may_match(row) and self.searched.says(row)

    def may_match_as(self, finding: Finding, row: Row) -> bool:
        """Return whether a row matches; of one that is not indexed, the first words are searched."""
        if not self.may_match(row):
            return False
        return self.searched.says(row) if finding.needs_first_words(row["id"]) else finding.is_candidate(row["id"])

    def matches(self, row: Row) -> bool:
        """Return whether a row with its current status matches beside its words."""
        created = row["created_at"]
        return (
            (not self.statuses or row["status"] in self.statuses)
            and (self.since is None or created >= int(self.since))
            and (self.until is None or created < int(self.until))
            and self.may_match(row)
        )


def restricted_to(typed: Searched, **chosen: Any) -> ListFilter:
    """Return a filter for what both allow: what a user has typed to search, and the fields that were chosen."""
    wanted = ListFilter(**chosen, searched=typed)
    statuses = wanted.statuses | typed.statuses
    if wanted.statuses and typed.statuses:
        statuses = wanted.statuses & typed.statuses or NO_STATUS
    since, until = tightest(max, wanted.since, typed.since), tightest(min, wanted.until, typed.until)
    return replace(wanted, statuses=statuses, since=since, until=until)


class Lists:
    """Reads the lists of users.

    Args:
        archive: the stored responses.
        jobs: says which queued responses have started.
        refused: the requests that have no response because they were refused; None if they are in no list.
        search: searches in the index of the store; None if only first words are searched.
    """

    def __init__(
        self, archive: Archive, jobs: BackgroundJobs, refused: RefusedRequests | None, search: Search | None = None
    ) -> None:
        self._archive = archive
        self._jobs = jobs
        self._refused = refused
        self._search = search
        self._searching = FairBudget(_SEARCHES, per_user=1)

    async def page(self, owner: Owner, wanted: ListFilter, after: str | None, limit: int, order: Order) -> Json:
        """Return a page of the owner's list.

        Raises:
            ApiError: 400, `after` is not a cursor.
        """
        span = Span(wanted.since, wanted.until, parsed_cursor(after) if after else None, order == "asc")
        terms = wanted.searched.terms
        async with self._searching.hold(1) if terms else nullcontext():
            finding = await self._search.begin(terms) if self._search and terms else None
            page = await self._page(owner, span, limit, wanted, finding)
            snippets = await finding.snippets([row["id"] for row in page.rows]) if finding else {}
        rows = await self._whole(owner, page.rows, page.cursors)
        data = [row | {"snippet": snippets.get(row["id"], [])} for row in rows if wanted.matches(row)]
        return _page_of(data, page, (finding.coverage if finding else _FIRST_WORDS) if terms else None)

    async def page_of_all(self, tenant: str, wanted: ListFilter, after: str | None, limit: int) -> Json:
        """Return a page of the lists of all owners of a tenant as one, newest first, each row with its `owner`.

        Refused requests are not part of it, and of words the first ones are searched.

        Raises:
            ApiError: 400, `after` is not a cursor.
        """
        span = Span(wanted.since, wanted.until, parsed_cursor(after) if after else None)
        matches: Callable[[Row], bool] | None = wanted.may_match_and_says if wanted.restricts_rows else None
        read: ReadRange | None = None
        if wanted.searched.scores:
            read, matches = self._with_scores(wanted, read, matches)
        found = OwnedRows()
        if wanted.statuses != {STATUS}:
            found = await self._archive.all_lists.page(tenant, span, limit, matches, read)
        rows = [
            row | {"snippet": [], "owner": owner_of(found.owners[row["id"]])}
            for row in await self._whole_of_several(found)
            if wanted.matches(row)
        ]
        return _page_of(rows, found.page, _FIRST_WORDS if wanted.searched.terms else None)

    async def _whole_of_several(self, found: OwnedRows) -> list[Row]:
        """Return the rows as `_whole` does, in their order."""
        owners = {each.identity: each for each in found.owners.values()}
        parts = {each: Rows() for each in owners}
        for row, cursor in zip(found.page.rows, found.page.cursors, strict=True):
            part = parts[found.owners[row["id"]].identity]
            part.rows.append(row)
            part.cursors.append(cursor)
        whole = await asyncio.gather(*(self._whole(owners[of], part.rows, part.cursors) for of, part in parts.items()))
        by_id = {row["id"]: row for rows in whole for row in rows}
        return [by_id[row["id"]] for row in found.page.rows]

    async def _whole(self, owner: Owner, found: Sequence[Row], cursors: Sequence[tuple[str, str]]) -> list[Row]:
        """Return an owner's rows with their current status and scores, and whether they still wait."""
        scores = await self._archive.scores.of_cursors(owner, cursors)
        current = [scored_row(row, scores) for row in await self.current(found)]
        return await self._archive.listing.unanswered(owner, current)

    async def _page(self, owner: Owner, span: Span, limit: int, wanted: ListFilter, finding: Finding | None) -> Rows:
        """Return the rows of responses and of refused requests, as the statuses say."""
        matches = wanted.may_match_and_says if wanted.restricts_rows else None
        has_refused = not wanted.searched.wants_score and (not wanted.statuses or STATUS in wanted.statuses)
        pages = []
        if wanted.statuses != {STATUS}:
            read: ReadRange | None = finding.read if finding else None
            of_responses: Callable[[Row], bool] | None = partial(wanted.may_match_as, finding) if finding else matches
            if wanted.searched.scores:
                read, of_responses = self._with_scores(wanted, read, of_responses)
            is_slow = finding is not None and not finding.is_exact
            pages.append(self._archive.listing.page(owner, span, limit, of_responses, read, slow=is_slow))
        if self._refused and has_refused:
            pages.append(self._refused.page(owner, span, limit, matches))
        return merged(await asyncio.gather(*pages), span, limit)

    def _with_scores(
        self, wanted: ListFilter, read: ReadRange | None, matches: Callable[[Row], bool] | None
    ) -> tuple[ReadRange, Callable[[Row], bool]]:
        """Return what reads rows together with their scores, and says whether a row matches with its score."""
        scored = self._archive.scores.with_rows(read, only=wanted.searched.wants_score)
        return scored.read, lambda row: matches is None or matches(scored_row(row, scored.known))

    async def rows(self, records: Sequence[tuple[str, Record]]) -> list[Row]:
        """Return rows with their current status, given their keys and records."""
        return await self.current(await self._archive.listing.rows(records))

    async def current(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with the current status of those that were queued."""
        queued = [row["id"] for row in rows if row["status"] in UNFINISHED]
        jobs = await self._jobs.find_many(queued)
        running = {each for each, job in jobs.items() if job.state.worker}
        return [row | {"status": "in_progress"} if row["id"] in running else row for row in rows]


def _page_of(data: Sequence[Json], page: Rows, search: Json | None) -> Json:
    return {
        "object": "list",
        "data": data,
        "has_more": page.next is not None,
        "next": cursor_text(page.next),
        "read_to": created_at(page.next) if page.next else None,
        "search": search,
    }


def scored_row(row: Row, scores: Mapping[str, Score]) -> Row:
    """Return a row with the score of its response, or None, given those that are known, by id."""
    score = scores.get(row["id"])
    return row | {"score": score.fields() if score else None}


def created_at(cursor: tuple[str, str]) -> int:
    """Return the second in which the row of a cursor was created, since the epoch."""
    return int(cursor[0][:SECOND_DIGITS], 16)


def _has(metadata: Any, name: str, value: str | None) -> bool:
    return name in metadata and (value is None or metadata[name] == value)
