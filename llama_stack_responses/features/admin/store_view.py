"""The stored data of all owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...core.ids import tag_of
from ...core.owner import Owner
from ...core.types import Json
from ...jobs import fair_order
from ...jobs.dead_workers import lease_key
from ...jobs.event_log import EventLog
from ...jobs.job import JobState
from ...jobs.notifier import Notifier
from ...jobs.queue import JobQueue
from ...jobs.served_partitions import living_workers
from ...jobs.work_class import WorkClass
from ...store.all_lists import buckets_of
from ...store.archive import Archive
from ...store.codec import TooLarge
from ...store.content_names import Hasher
from ...store.conversation_store import Conversation
from ...store.layout import owner_of_bucket, tags_of, used
from ...store.partitions import KNOWN_SECONDS
from ...store.read_allowance import ReadAllowance
from ...store.records import (
    Conflict,
    Delete,
    Empty,
    Op,
    Records,
    after_prefix,
    pages_in,
    pages_of,
    partitions_of,
    range_in,
)

type Wanted = Callable[[Json], bool]

_PAGE_ROWS: Final = 500
_MAX_PAGES: Final = 20
"""Pages of rows that one page of conversations looks at."""

_INPUT_BYTES: Final = 2**29
"""More than the default limits allow for one response."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job.

    Attributes:
        response_id: the id of its response.
        owner: the owner.
        state: `waiting`, `running`, or `stalled`, its worker has no lease.
        worker: the worker that holds it.
        seconds: how long it has waited; None unless it waits.
    """

    response_id: str
    owner: Owner
    state: str
    worker: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Conversations:
    """A page of conversations.

    Attributes:
        data: the conversations, without their items.
        last: the id after which the next page begins; None if there is none.
    """

    data: Sequence[Conversation]
    last: str | None


class StoreView:
    """Reads and deletes what a store holds, of any owner.

    Args:
        records: the store.
        page: rows that one read takes.
        input_bytes: maximum size of an input that is read whole.
    """

    def __init__(self, records: Records, page: int = _PAGE_ROWS, input_bytes: int = _INPUT_BYTES) -> None:
        self._records = records
        self._page = page
        self._input_bytes = input_bytes
        # What has expired is listed until a server deletes it.
        self.archive = Archive(records, retention=None)

    async def newest(self, limit: int, owner: Owner | None, wanted: Wanted) -> list[Json]:
        """Return the newest rows of lists, newest first, each with `owner` and `order`.

        Args:
            owner: only this owner's; None for all.
            wanted: returns whether a row is wanted.
        """
        newest: list[Json] = []
        async for owners in self.buckets(owner):
            bucket: list[Json] = []
            for of, digits in owners:
                bucket += await self.rows(of, digits, limit - len(newest), wanted)
            newest += sorted(bucket, key=lambda row: (str(row["order"]), str(row["id"])), reverse=True)
            if len(newest) >= limit:
                break
        return [await self.with_owner(row) for row in newest[:limit]]

    async def conversations(self, tenant: str, owner: Owner | None, limit: int, after: str | None) -> Conversations:
        """Return a page of the conversations of a tenant's owners, by their ids.

        Args:
            owner: only this owner's; None for all.
            after: the id of the conversation before the page.
        """
        start, found = f"c/{after}\0" if after else "c/", list[Conversation]()
        for _ in range(_MAX_PAGES):
            rows = await self._records.range(start, after_prefix("c/"), limit=self._page)
            for key, record in rows:
                conversation = Conversation.decode(key.removeprefix("c/"), record)
                whose = conversation.owner
                if whose.tenant == tenant and (owner is None or whose.identity == owner.identity):
                    found.append(conversation)
                if len(found) == limit:
                    return Conversations(found, conversation.id)
            if len(rows) < self._page:
                return Conversations(found, None)
            start = rows[-1][0] + "\0"
        return Conversations(found, start[2:-1])

    async def buckets(self, owner: Owner | None, since: str = "") -> AsyncIterator[list[tuple[str, str]]]:
        """Yield the keys of owners with responses in each bucket of time, and the bucket, newest first.

        Args:
            owner: only this owner; None for all.
            since: only buckets with this order and greater ones.
        """
        of = Hasher(owner).owner if owner else None
        async for digits, owners in buckets_of(self._records, since):
            yield [(each, digits) for each in owners if of in (None, each)]

    async def rows(
        self,
        of: str,
        digits: str,
        limit: int,
        wanted: Wanted = lambda _: True,
        since: str = "",
    ) -> list[Json]:
        """Return the newest wanted rows of one owner in one bucket, newest first, each with `order`.

        Args:
            of: the owner's key.
            digits: the bucket.
            since: only rows with this order and greater ones.
        """
        matching: list[Json] = []
        start, end = f"l/{of}/{max(digits, since)}", after_prefix(f"l/{of}/{digits}")
        while len(matching) < limit:
            page = await self._records.range(start, end, limit=min(self._page, limit), reverse=True)
            rows = zip(page, await self.archive.listing.rows(page), strict=True)
            matching += (row | {"order": key.split("/")[2]} for (key, _), row in rows if wanted(row))
            if len(page) < min(self._page, limit):
                break
            end = page[-1][0]
        return matching[:limit]

    async def with_owner(self, row: Json) -> Json:
        """Return the row of a list with its `owner`."""
        entry = await self.archive.entry(row["id"])
        return row | {"owner": entry.owner if entry else Owner("(gone)")}

    async def show(self, response_id: str) -> Json | None:
        """Return a response with its owner and its input, or as it is while it runs; None if it is unknown.

        `input_cut` says that only the newest turns of a large input are returned, or none.
        """
        stored = await self.archive.load(response_id)
        if stored is None:
            running = await self.archive.running(response_id)
            if running is None:
                return None
            return {"owner": owner_fields(running.owner), "response": running.response, "input": None}
        items, whole = await self._input(stored.input)
        cut = {} if whole else {"input_cut": True}
        return {"owner": owner_fields(stored.owner), "response": stored.response, "input": items, **cut}

    async def _input(self, name: str | None) -> tuple[Sequence[Json], bool]:
        """Return the items of a history or, if it is too large, its newest turns; and whether it is whole."""
        try:
            return await self.archive.history(name, ReadAllowance(self._input_bytes)), True
        except TooLarge:
            pass
        try:
            return await self.archive.recent(name, ReadAllowance(self._input_bytes)), False
        except TooLarge:
            return [], False

    async def chain(self, response_id: str) -> list[Json]:
        """Return the rows of a response and of those that it continues, newest first; empty if it is unknown."""
        responses: list[Json] = []
        left: str | None = response_id
        seen: set[str] = set()
        while left and left not in seen:
            seen.add(left)
            entry = await self.archive.entry(left)
            if entry is None or (row := await self.archive.listing.row(entry.owner, entry.order, left)) is None:
                break
            responses.append(row | {"owner": entry.owner})
            left = entry.response.get("previous_response_id")
        return responses

    async def queue(self) -> list[QueuedJob]:
        """Return all jobs: those that wait, in their order, and then those that workers hold."""
        now, jobs = await self._records.now(), list[QueuedJob]()
        async for rows in pages_of(self._records, "q/", self._page):
            for key, _ in rows:
                _, order, response_id = key.split("/")
                if state := await self._job_state(response_id):
                    seconds = max(now - fair_order.queued_at(order), 0.0)
                    jobs.append(QueuedJob(response_id, state.owner, "waiting", None, seconds))
        async for rows in pages_of(self._records, "h/", self._page):
            for key, _ in rows:
                _, worker, response_id = key.split("/")
                lease = lease_key(worker, tag_of(response_id))
                alive = await self._records.get_many([lease])
                if (state := await self._job_state(response_id)) and state.worker == worker:
                    jobs.append(QueuedJob(response_id, state.owner, "running" if alive else "stalled", worker, None))
        return jobs

    async def _job_state(self, response_id: str) -> JobState | None:
        record = (await self._records.get_many([f"j/{response_id}"])).get(f"j/{response_id}")
        return JobState.decode(record) if record else None

    async def stats(self) -> Json:
        """Count the stored objects."""
        owners: set[str] = set()
        prefixes = {
            "conversations": "c/",
            **{store.name: store.prefix for store in self.archive.of_features},
            "waiting": "q/",
            "held by workers": "h/",
            "foreground": "o/",
        }
        counts = dict.fromkeys(["responses", *prefixes], 0) | {"workers": len(await living_workers(self._records))}
        oldest, newest = "", ""
        async for rows in pages_of(self._records, "l/", self._page):
            for key, _ in rows:
                _, of, order, _ = key.split("/")
                owners.add(of)
                oldest, newest = min(oldest or order, order), max(newest, order)
            counts["responses"] += len(rows)
        for name, prefix in prefixes.items():
            async for rows in pages_of(self._records, prefix, self._page):
                counts[name] += len(rows)
        moments = {"oldest": _second(oldest), "newest": _second(newest)}
        return {**counts, "owners": len(owners), **moments, "bytes": await self._records.size()}

    async def responses_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's responses, oldest first.

        Behind them come those in partitions in which the owner is not known to have any: a failover may have lost that.
        """
        listed, count = f"l/{Hasher(owner).owner}/", partitions_of(self._records)
        known = {0, *(tag % count for tag in await tags_of(self._records, owner))}
        others = (pages_in(self._records, number, listed, self._page) for number in range(count) if number not in known)
        for pages in (pages_of(self._records, listed, self._page), *others):
            async for rows in pages:
                for key, _ in rows:
                    yield key.rpartition("/")[2]

    async def conversations_of(self, owner: Owner) -> AsyncIterator[Conversation]:
        """Yield an owner's conversations. All owners' are read, because the store has no list of them."""
        async for rows in pages_of(self._records, "c/", self._page):
            for key, record in rows:
                conversation = Conversation.decode(key.removeprefix("c/"), record)
                if conversation.owner.identity == owner.identity:
                    yield conversation

    async def items_of(self, conversation: Conversation) -> AsyncIterator[Json]:
        """Yield a conversation's items, oldest first, and hold one page of them at a time."""
        async for page in self.archive.conversations.pages(conversation.id, conversation.end):
            for item in page:
                yield item

    async def forget(self, owner: Owner) -> None:
        """Delete the rows with the owner's key that are of no response, unless a response was stored meanwhile.

        They are the buckets of time in which the owner had responses, and the last turn of their jobs.
        """
        of = Hasher(owner).owner
        turns = pages_of(self._records, fair_order.last_of(of, WorkClass.BACKGROUND), self._page)
        rows = {key: f"l/{of}/" async for page in turns for key, _ in page}
        async for page in pages_of(self._records, "x/", self._page):
            rows |= {key: f"l/{of}/{key.split('/')[1]}" for key, _ in page if owner_of_bucket(key) == of}
        for key, responses in rows.items():
            with suppress(Conflict):
                await self._records.commit([Delete(key)], [Empty(responses)])
        if not await self._records.range(f"l/{of}/", after_prefix(f"l/{of}/"), limit=1):
            await self._forget_tags(owner)

    async def _forget_tags(self, owner: Owner) -> None:
        """Delete the rows with the owner's tags, but those of what was stored meanwhile."""
        listed, tags = f"l/{Hasher(owner).owner}/", await tags_of(self._records, owner)
        for tag in tags:
            await self._records.commit([Delete(each.key) for each in used(owner, tag)])
        if tags and (count := partitions_of(self._records)) > 1:
            # A server that has just written such a row takes it to be there, and lists would lack what it stores.
            await asyncio.sleep(KNOWN_SECONDS)
            talks = {tag_of(each.id) async for each in self.conversations_of(owner)}
            for tag in tags:
                is_listed = await range_in(self._records, tag % count, listed, after_prefix(listed), limit=1)
                if is_listed or tag in talks:
                    await self._records.commit(used(owner, tag))

    async def delete(self, response_id: str) -> bool:
        """Delete a response, and its job and event log; return False if it is not stored.

        A worker that runs it can no longer write, and drops it.
        """
        while True:
            job = await JobQueue(self._records, 0).find(response_id)
            waiting: list[Op] = [Delete(f"q/{job.state.order}/{response_id}")] if job else []
            ops, fence = ([*job.delete_ops(), *waiting], [job.fence]) if job else ([], [])
            try:
                deleted = await self.archive.delete(response_id, extra_ops=ops, conditions=fence)
            except Conflict:
                continue  # a worker has just written: read the job again
            if deleted and self._records.transactional:
                await EventLog(self._records, Notifier()).forget(response_id)
            return deleted


def owner_fields(owner: Owner) -> Json:
    """Return an owner as JSON."""
    return {"principal": owner.principal, "attributes": dict(owner.attributes), "tenant": owner.tenant}


def _second(order: str) -> int | None:
    return int(order[:8], 16) if order else None
