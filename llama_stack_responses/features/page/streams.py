"""Streams of changes: of a user's list, of running responses, and of this server's counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Final

from ...core.errors import ApiError
from ...core.owner import Owner
from ...core.statuses import UNFINISHED
from ...core.types import Json
from ...jobs.overview import JobNow
from ...service.responses import OpenAIResponsesImpl
from ...store.content_names import Hasher
from ...store.list_rows import Row, first_words
from ...store.records import Record
from .lists import ListFilter, Lists
from .refused.rows import PREFIX, RefusedRequests
from .shared_values import SharedValues

type NamedEvent = tuple[str, Json]
"""The name of an event and its data."""

_WINDOW_ROWS: Final = 200
"""Newest rows of a list whose changes are reported."""

_LIFETIME_SECONDS: Final = 600.0
"""Seconds after which a stream ends: the client connects again, with a token that is then checked again."""

_SILENCE_SECONDS: Final = 15.0
_MAX_SHOWN: Final = 200


class Streams:
    """Makes the streams of users.

    Args:
        impl: the responses.
        lists: reads the lists.
        refused: the refused requests.
    """

    def __init__(self, impl: OpenAIResponsesImpl, lists: Lists, refused: RefusedRequests) -> None:
        self._impl = impl
        self._refused = refused
        self._lists = lists
        seconds = impl.intervals.watch_seconds
        self._heads: SharedValues[list[tuple[str, Record]]] = SharedValues(0.9 * seconds)
        self._states: SharedValues[Json] = SharedValues(0.9 * seconds)

    async def changes(self, owner: Owner, wanted: ListFilter) -> AsyncIterator[NamedEvent | None]:
        """Yield the changes of the owner's list from now on; None from time to time."""
        follower, of_refused = _Changes(self._lists, wanted), _Changes(self._lists, wanted)
        key = Hasher(owner).owner

        async def poll() -> list[NamedEvent]:
            head = await self._heads.get(key, lambda: self._impl.archive.listing.head(owner, _WINDOW_ROWS))
            news = await follower.of(head)
            refused = await self._heads.get(f"{PREFIX}{key}", lambda: self._refused.head(owner, _WINDOW_ROWS))
            return [*news, *(each for each in await of_refused.of(refused) if each[0] != "ready")]

        async for event in self._every(poll):
            yield event

    async def live(self, owner: Owner, response_id: str | None = None) -> AsyncIterator[NamedEvent | None]:
        """Yield the state of the owner's running responses whenever it changes; None from time to time."""
        last: Json = {}

        async def poll() -> list[NamedEvent]:
            nonlocal last
            state = await self._states.get((owner.identity, response_id), lambda: self._state(owner, response_id))
            changed, last = state != last, state
            return [("state", state)] if changed else []

        async for event in self._every(poll):
            yield event

    async def stats(self, owner: Owner) -> AsyncIterator[NamedEvent | None]:
        """Yield the owner's counts on this server once a second."""

        async def poll() -> list[NamedEvent]:
            return [("stats", {"at": time.time(), **await self._impl.processes.counts(owner)})]

        async for event in self._every(poll):
            yield event

    async def _every(self, poll: Callable[[], Awaitable[list[NamedEvent]]]) -> AsyncIterator[NamedEvent | None]:
        """Yield what `poll` returns, once in an interval, until the stream is old or the server closes."""
        loop = asyncio.get_running_loop()
        began = spoke = loop.time()
        while loop.time() - began < _LIFETIME_SECONDS and not self._impl.shutdown_coordinator.begun:
            try:
                news = await poll()
            except ApiError:
                news = []  # the store is unavailable: poll again
            for event in news:
                yield event
            if news:
                spoke = loop.time()
            elif loop.time() - spoke >= _SILENCE_SECONDS:
                spoke = loop.time()
                yield None
            await asyncio.sleep(self._impl.intervals.watch_seconds)

    async def _state(self, owner: Owner, response_id: str | None) -> Json:
        """Return the owner's running and queued responses on all servers of the store."""
        live_responses, servers, waiting, own_waiting = self._impl.jobs.live_responses, 1, 0, 0
        processes = await self._impl.processes.running(owner, response_id)
        states = {each: {**one, "this_server": True} for here in processes.values() for each, one in here.items()}
        jobs: dict[str, JobNow] = {}
        if self._impl.archive.transactional:
            await live_responses.watch(owner, response_id)
            elsewhere = await live_responses.elsewhere(owner)
            others = {server: theirs for server, theirs in elsewhere.items() if server not in processes}
            servers += len(others)
            for server, theirs in others.items():
                for each, one in theirs.items():
                    states.setdefault(each, {**one, "server": server, "this_server": False})
            overview = await self._impl.jobs.overview(owner)
            jobs = {job.response_id: job for job in overview.jobs}
            waiting, own_waiting = overview.waiting, overview.own_waiting
            states |= await self._unknown([each for each in jobs if each not in states])
            if response_id and response_id not in states:
                states |= await self._silent(owner, response_id)
        leases = await self._leases(states, jobs)
        # The last started first, as the sort keeps it for responses of one second.
        responses = [_with_job(one, jobs.get(each), leases) for each, one in reversed(states.items())]
        responses.sort(key=_sort_key)
        if response_id:
            responses = [one for one in responses if one["id"] == response_id]
        shown = responses[:_MAX_SHOWN]
        left_out = own_waiting - sum(one["queue_place"] is not None for one in shown)
        return {"responses": shown, "left_out": max(0, left_out), "queued": waiting, "servers": servers}

    async def _unknown(self, response_ids: Sequence[str]) -> dict[str, Json]:
        """Return what is shown of jobs of which no server shows anything: those that wait."""
        rows = await self._impl.archive.listing.summaries(response_ids[:_MAX_SHOWN]) if response_ids else {}
        names = ("id", "status", "model", "words", "created_at", "background")
        return {
            each: {**{name: row[name] for name in names}, "streamed": False} | _NOTHING_KNOWN
            for each, row in rows.items()
        }

    async def _silent(self, owner: Owner, response_id: str) -> dict[str, Json]:
        """Return what is shown of a foreground response of which no server shows anything: its server may be dead."""
        running = await self._impl.archive.running(response_id)
        if running is None or running.owner.identity != owner.identity:
            return {}
        shown = {name: running.response[name] for name in ("id", "status", "model", "created_at")}
        words = first_words(running.input_items)
        server = {"server": running.worker, "this_server": False}
        return {response_id: {**shown, "words": words, "background": False, "streamed": True} | _NOTHING_KNOWN | server}

    async def _leases(self, states: Mapping[str, Json], jobs: Mapping[str, JobNow]) -> Mapping[str, float]:
        """Return for how many seconds the leases of the workers hold; an expired one is left out."""
        if not states or not self._impl.archive.transactional:
            return {}
        until = {job.worker: job.lease_until for job in jobs.values() if job.worker}
        servers = {one["server"] for one in states.values() if one["server"]}
        found = until | await self._impl.jobs.leases(servers - until.keys())
        now = await self._impl.archive.now()
        return {worker: round(max(0.0, end - now), 1) for worker, end in found.items() if end is not None}


_NOTHING_KNOWN: Final[Json] = {
    **dict.fromkeys(("events", "quiet_since", "output_items", "tail", "doing", "server")),
    "this_server": False,
}


class _Changes:
    """What changes in the newest part of a list."""

    def __init__(self, lists: Lists, wanted: ListFilter) -> None:
        self._lists = lists
        self._wanted = wanted
        self._versions: dict[str, int] | None = None
        self._waiting: dict[str, Row] = {}

    async def of(self, head: Sequence[tuple[str, Record]]) -> list[NamedEvent]:
        """Return the events that lead from the last state to this one; at first, only that the stream is at work."""
        known = self._versions or {}
        read = [(key, record) for key, record in head if known.get(key) != record.version]
        gone = [] if self._versions is None else _gone(head, known)
        rows = await self._lists.rows(read)
        started = await self._started({row["id"] for row in rows})
        first, self._versions = self._versions is None, {key: record.version for key, record in head}
        self._remember(rows, started, gone)
        if first:
            return [("ready", {"newest": _cursor(head[0][0]) if head else None})]
        shown = (row for row in [*reversed(rows), *started] if self._wanted.matches(row))
        news: list[NamedEvent] = [("row", row) for row in shown if self._wanted.searched.says(row)]
        return [*news, *(("removed", {"id": response_id}) for response_id in gone)]

    async def _started(self, read: Set[str]) -> list[Row]:
        """Return the rows of queued responses that have started since: their rows are not written for that."""
        before = [row for each, row in self._waiting.items() if each not in read and row["status"] == "queued"]
        return [row for row in await self._lists.current(before) if row["status"] != "queued"]

    def _remember(self, rows: Sequence[Row], started: Sequence[Row], gone: Sequence[str]) -> None:
        for row in (*rows, *started):
            self._waiting.pop(row["id"], None)
            if row["status"] in UNFINISHED:
                self._waiting[row["id"]] = row
        for response_id in gone:
            self._waiting.pop(response_id, None)


def _gone(head: Sequence[tuple[str, Record]], known: Iterable[str]) -> list[str]:
    """Return the responses that are no longer there, without those that are only too old."""
    there = {key for key, _ in head}
    oldest = head[-1][0] if len(head) == _WINDOW_ROWS else ""
    return [key.rpartition("/")[2] for key in known if key not in there and key > oldest]


def _cursor(key: str) -> str:
    return "-".join(key.split("/")[2:])


def _sort_key(one: Json) -> tuple[bool, float]:
    """Return the key that sorts responses: those that run, newest first, then those that wait, as they stand."""
    queue_position = one["queue_place"]
    return queue_position is not None, -one["created_at"] if queue_position is None else queue_position


def _with_job(one: Json, job: JobNow | None, leases: Mapping[str, float]) -> Json:
    """Return what is shown of a response, with its job if it has one, and with its lease."""
    worker = job.worker if job else one["server"]
    return {
        **one,
        "status": "in_progress" if worker or job is None else "queued",
        "queue_place": job.position if job else None,
        "worker": job.worker if job else None,
        "attempt": job.attempt if job else None,
        "lease_seconds": leases.get(worker) if worker else None,
        "stalled": bool(worker) and worker not in leases and not one["this_server"],
    }
