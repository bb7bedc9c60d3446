"""Reads stored and running responses for the users who may read them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

from ..admission import Reservation
from ..concurrency.fair_budget import FairBudget
from ..core.access import Access, Action
from ..core.errors import ApiError, bad_request, not_found
from ..core.ids import check_response_id
from ..core.owner import Owner
from ..core.statuses import UNFINISHED
from ..core.types import Json
from ..inputs.history import HistoryReader, Hold
from ..items.listed_items import Order, Page, listed, page_after
from ..jobs.background import BackgroundJobs
from ..jobs.direct_delivery import DirectClient
from ..store.archive import Archive
from ..store.loaded_response import StoredResponse
from ..store.records import NoRoom
from ..store.response_loader import ResponsePage
from ..store.running_response import RunningResponse
from ..stream.events import TERMINAL, Event
from .shared_replays import Replays

_MOVED: Final = 2
"""Requests that read responses at a time where these were moved to: what each has read last is held as a whole."""


class ServerClosing(Exception):  # noqa: N818 (nothing went wrong)
    """This server shuts down while a client follows a response that continues; the client can follow it elsewhere."""


class ResponseReader:
    """Reads responses, their input and their events.

    Args:
        archive: the stored responses.
        history_reader: reads their histories.
        jobs: the detached responses.
        access: the identity and permissions of the caller.
        reader_of_moved: returns what reads, for one request, responses at the place where they were moved to, if the
            store has no room to bring them back.
    """

    def __init__(
        self,
        archive: Archive,
        history_reader: HistoryReader,
        jobs: BackgroundJobs,
        access: Access,
        reader_of_moved: Callable[[], ResponseReader] | None = None,
    ) -> None:
        self._archive = archive
        self._history_reader = history_reader
        self._jobs = jobs
        self._access = access
        self._replays = Replays()
        self._reader_of_moved, self._moved = reader_of_moved, FairBudget(_MOVED)

    async def retrieve(self, response_id: str, hold: Hold | None = None) -> Json:
        """Return the response as stored or, while it is streamed in the foreground, as it was when it began.

        Args:
            response_id: the id of the response.
            hold: called with the number of stored bytes that are about to be held; it may raise.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's.
        """
        return await self._read(lambda reader: reader._retrieved(response_id, hold))

    async def _retrieved(self, response_id: str, hold: Hold | None) -> Json:
        return (await self.find(response_id, "read", hold)).response

    async def _read[Found](self, read: Callable[[ResponseReader], Awaitable[Found]]) -> Found:
        """Return what is read of responses, where they were moved to if the store has no room for them."""
        try:
            return await read(self)
        except NoRoom:
            if self._reader_of_moved is None:
                raise
        share = await self._moved.enter(may_refuse=False)
        try:
            return await read(self._reader_of_moved())
        finally:
            self._moved.leave(share)

    async def follow(
        self,
        response_id: str,
        after: int,
        silence: float,
        reserve: Callable[[], Reservation],
        client: DirectClient | None = None,
    ) -> AsyncGenerator[list[Event]]:
        """Return an iterator over the events of a response after number `after`, existing and new ones.

        It yields an empty list after `silence` seconds without an event, and raises `ServerClosing` if this server
        shuts down before the response ends.

        Args:
            response_id: the id of the response.
            after: the number of the last event to skip.
            silence: seconds.
            reserve: creates the reservation for the bytes of events that are read from the store, or built from a
                stored response.
            client: may be written to directly. Events that were written to it are not yielded.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's; 400, it is a foreground response that
                still runs; 429 or 503, the reservation is refused.
        """
        if replayed := await self._replay(response_id, after, reserve):
            return replayed
        with reserve().add(1):
            pass  # refuses the request while this user's other readers hold all that they may
        return self._follow(response_id, after, silence, reserve, client)

    async def _follow(
        self,
        response_id: str,
        after: int,
        silence: float,
        reserve: Callable[[], Reservation],
        client: DirectClient | None,
    ) -> AsyncGenerator[list[Event]]:
        async with aclosing(self._jobs.events.follow(response_id, after, silence, reserve, client)) as followed:
            async for events in followed:
                yield events
                if events and events[-1]["type"] in TERMINAL:
                    return
                after = events[-1]["sequence_number"] if events else after
        after = max(after, client.last) if client else after
        replayed = await self._replay(response_id, after, reserve)
        if replayed is None:
            raise ServerClosing
        async with aclosing(replayed):
            async for events in replayed:
                yield events

    async def _status_and_version(self, response_id: str) -> tuple[str, int]:
        """Return the status and the version of a response that the caller reads, without reading its content.

        Raises:
            ApiError: as from `_stored`.
        """
        check_response_id(response_id, "response_id")
        if found := await self._archive.entry_version(response_id):
            entry, version = found
            self.check_access(response_id, entry.owner, "read")
            return entry.response["status"], version
        stored = await self._stored(response_id, "read")
        return stored.response["status"], stored.version

    async def _replay(
        self, response_id: str, after: int, reserve: Callable[[], Reservation]
    ) -> AsyncGenerator[list[Event]] | None:
        """Return an iterator over the events of a response that has ended; None of another one."""
        status, version = await self._status_and_version(response_id)
        if status in UNFINISHED:
            return None
        load = partial(self._stored, response_id, "read")
        return await self._replays.events(response_id, version, load, after, reserve)

    async def list(
        self, *, limit: int, after: str | None, order: Order, model: str | None, hold: Hold | None = None
    ) -> Page:
        """Return a page of the caller's responses by creation time, each with the `input` that host clients require.

        Args:
            hold: called with the bytes of what is read, before it is decoded; it may raise.
        """

        async def read(reader: ResponseReader) -> tuple[ResponsePage, Sequence[Sequence[Json]]]:
            owner, archive = self._access.current_user(), reader._archive
            page = await archive.list(owner, limit=limit, after=after, order=order, model=model, hold=hold)
            return page, await archive.own_inputs(page.items, hold)

        page, inputs = await self._read(read)
        current = [await self._current(stored) for stored in page.items[: len(inputs)]]
        responses = [each.response | {"input": listed(items)} for each, items in zip(current, inputs, strict=False)]
        cut = len(inputs) < len(page.items)
        return Page(responses, page.has_more or cut, None if cut else page.last)

    async def input_items(
        self, response_id: str, *, limit: int, after: str | None, order: Order, hold: Hold | None = None
    ) -> Page:
        """Return a page of the response's input items, including the history, each with its id.

        Args:
            response_id: the id of the response.
            limit: maximum number of items of the page.
            after: the id of the item before the page; None for the first page.
            order: `asc` for oldest first, `desc` for newest first.
            hold: as in `retrieve`.
        """
        items = [*await self._read(lambda reader: reader._input(response_id, hold))]
        if order == "desc":
            items.reverse()
        page = page_after(items, after, limit)
        return Page(listed(page.data), page.has_more)

    async def _input(self, response_id: str, hold: Hold | None) -> Sequence[Json]:
        return await self._history_reader.input_of(await self._stored(response_id, "read"), hold)

    async def _stored(self, response_id: str, action: Action) -> StoredResponse:
        """Return the stored response, on which the caller wants to perform `action`.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's; 403, the action is not allowed; 400, it
                is a foreground response that still runs.
        """
        response = await self.find(response_id, action)
        if isinstance(response, RunningResponse):
            raise bad_request(
                f"Response '{response_id}' is still in progress. Its stream, and the list of its input, can be read "
                "again when it has ended.",
                code="response_not_ready",
            )
        return response

    async def find(
        self, response_id: str, action: Action, hold: Hold | None = None
    ) -> StoredResponse | RunningResponse:
        """Return the response, stored or running in the foreground, on which the caller wants to perform `action`.

        Args:
            response_id: the id of the response.
            action: what the caller wants to do.
            hold: as in `retrieve`.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's; 403, the action is not allowed.
        """
        check_response_id(response_id, "response_id")

        async def load() -> StoredResponse | RunningResponse | None:
            response = await self._archive.load(response_id, hold) or await self._archive.running(response_id)
            # It may have ended between the two reads.
            response = response or await self._archive.load(response_id, hold)
            if response:
                self.check_access(response_id, response.owner, action)
            return await self._current(response) if isinstance(response, StoredResponse) else response

        def needs_replicas(response: StoredResponse | RunningResponse | None) -> bool:
            # What a worker has just written could still be lost with one server of the store, and so could a deletion.
            return response is None or (action == "read" and bool(response.response.get("background")))

        response = await self._archive.read_replicated(response_id, load, needs_replicas)
        if response is None:
            raise not_found(response_id)
        return response

    async def is_packed(self, response_id: str, action: Action) -> bool:
        """Return whether a response is packed, on which the caller may perform `action`.

        Raises:
            ApiError: as from `find`, if it is packed and the caller may not.
        """
        check_response_id(response_id, "response_id")
        owner = await self._archive.owner_of_packed(response_id)
        if owner is not None:
            self.check_access(response_id, owner, action)
        return owner is not None

    def check_access(self, response_id: str, owner: Owner, action: Action) -> None:
        """Check that the caller may do this to a response of an owner.

        Raises:
            ApiError: 404, the caller may not read it either; 403, the action is not allowed.
        """
        if not self._access.allows("read", "response", response_id, owner):
            raise not_found(response_id)
        if not self._access.allows(action, "response", response_id, owner):
            raise ApiError(403, f"You may not {action} response '{response_id}'.")

    async def _current(self, stored: StoredResponse) -> StoredResponse:
        """Return the response with its current status: a queued response is written again only when it ends."""
        if stored.response["status"] != "queued":
            return stored
        job = await self._jobs.find(stored.response["id"])
        if job is None:
            return await self._archive.load(stored.response["id"]) or stored
        status = "in_progress" if job.state.worker else "queued"
        return replace(stored, response=stored.response | {"status": status})
