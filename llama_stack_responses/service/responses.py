"""The Responses API itself, without HTTP and without the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ..admission import Lease
from ..config import ResponsesConfig
from ..core.access import Access, Action
from ..core.errors import ApiError, OutcomeUnknown, bad_request, not_found
from ..core.ids import check_response_id
from ..core.listing import Order, Page, listed
from ..core.schema.request import CreateRequest, parse_create, read_fields
from ..core.stream.events import TERMINAL, Event
from ..core.stream.transcript import Transcript
from ..generation.connection_options import OnConnection
from ..generation.dependencies import Surroundings
from ..generation.event_buffer import Outbox
from ..generation.factory import equipped
from ..generation.run import Run
from ..inputs.history import Historian
from ..inputs.prompts import with_prompt
from ..inputs.resolver import Intake, Start
from ..jobs.worker import Crew, CrewBounds
from ..lifecycle.shutdown import Closing
from ..lifecycle.signals import Connections, hear_end
from ..lifecycle.sweeper import Sweeper
from ..sealing.sealer import Sealer
from ..store.archive import Archive, StoredResponse
from ..store.outcome import certain
from ..store.records import Conflict, Put, Records, VersionIs
from ..store.vouched import Vouched
from ..telemetry.loop_monitor import LoopMonitor
from .compaction import Compaction
from .conversations import Conversations
from .health import Health
from .idempotency import Claim, Keys
from .persistence import Keeper
from .replays import Replays
from .token_counting import Counting

Json = dict[str, Any]


RUNNING: Final = ("queued", "in_progress")


PATIENCE: Final = 2.0
"""Seconds for which an event stream waits for the provider's verdict before its headers go out."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A response that is made whether its client waits or not, and can be followed.

    Attributes:
        response: the response as it is now.
        replayed: whether an earlier request with the same Idempotency-Key began it.
    """

    response: Json
    replayed: bool = False


class LetGo(Exception):  # noqa: N818 (nothing went wrong)
    """This server ends, and not the response that somebody follows: the rest of it is to be had elsewhere, or later."""


class OpenAIResponsesImpl:
    """Makes responses and gives them back.

    Nothing here is bound to an event loop before the first request: the host builds providers in another loop
    than the one that serves.

    Args:
        config: the provider's configuration.
        records: where responses are kept.
        surroundings: what of the stack it works with.
        access: who asks, and what they may see.
    """

    def __init__(
        self,
        config: ResponsesConfig,
        records: Records,
        surroundings: Surroundings,
        access: Access,
    ) -> None:
        self.config = config
        self.access = access
        self.closing = Closing()
        self.containers = surroundings.services.containers
        self._surroundings = surroundings
        self._archive = archive = Archive(records, retention=config.retention_seconds)
        self._historian = Historian(archive, access, config.limits.request_bytes)
        sealer, limits = Sealer(config.secret_bytes), config.of_requests
        self._workshop = equipped(config, surroundings, sealer)
        fill = partial(with_prompt, prompts=surroundings.prompts, characters=config.limits.prompt_characters)
        self._intake = Intake(self._historian, access, self._workshop.sealer, self._workshop.checks, fill)
        self.conversations = Conversations(archive, self._historian, access, self._workshop.sealer, limits)
        self.counting = Counting(self._workshop, self._intake, self._parse)
        self.compaction = Compaction(self._workshop, self._intake, self._parse, config.passthrough)
        self._keys = Keys(records)
        self._sweeper = Sweeper(archive, config.sweep_seconds)
        self._crew = Crew(
            records,
            archive,
            access,
            self._workshop,
            bounds=CrewBounds.of(config.background),
            keep_journal=config.background.journal_seconds,
            parse=self._parse_stored,
            sealer=sealer,
        )
        self._keeper = Keeper(archive, self._crew)
        self._health = Health(records, self._crew)
        self._replays = Replays()
        self._runs: set[Run] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._monitor: LoopMonitor | None = None
        self._connections: Connections | None = None

    def start(self) -> bool:
        """Starts, in the event loop that serves, what goes on beside the requests; False if that was done before."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return False
        self._loop = loop
        self._sweeper.start()
        self._crew.start()
        if self.containers:
            self.containers.start()
        if threshold := self.config.loop_hold_seconds:
            self._monitor = self._workshop.telemetry.monitor_loop(threshold)
        self._connections = hear_end(self._hear_end, self.config.drain_seconds)
        return True

    def _hear_end(self) -> asyncio.Future[None] | None:
        for run in self._runs:
            run.shut_down()
        self._crew.hang_up()
        return self.closing.begin()

    def break_off(self, scope: Mapping[str, Any]) -> None:
        """Ends the connection of a request, named by its ASGI scope, without waiting for the client."""
        if self._connections:
            self._connections.abort(scope)

    async def health(self) -> Json:
        """Whether all is well: `status`, and a `message` if not."""
        self.start()
        return await self._health.report()

    async def create(self, body: Any, key: str | None = None) -> Run | Kept:
        """Begins a response, or finds the one that was begun under the same key.

        Args:
            body: the request's decoded JSON.
            key: the request's Idempotency-Key.

        Raises:
            ApiError: the request is wrong, and nothing has been sent to a model; or the key is another request's. With
                a key, also: the provider refused the request. In each case nothing is stored, and the key stays free.
        """
        self.start()
        request = self._parse(body)
        if key is None:
            return await self._create(request, body, None)
        if not request.store:
            raise bad_request(
                "An Idempotency-Key leads to a stored response: leave 'store' out, or send no key.",
                "store",
                "unsupported_value",
            )
        claim = Claim.of(self.access.who(), key, body)
        while True:
            if joined := await self._join(claim):
                return joined
            with suppress(Conflict):
                return await self._claimed(request, body, claim)

    async def _claimed(self, request: CreateRequest, body: Json, claim: Claim) -> Run | Kept:
        try:
            return await self._create(request, body, claim)
        except OutcomeUnknown as error:
            message = "The response store did not say whether it took this request. Send it again with the same key."
            raise ApiError(503, message, retry_after=1) from error

    async def go_on(self, body: Any, connection: OnConnection) -> Run:
        """Begins a streamed response on a connection, which remembers it if it is not stored.

        Raises:
            ApiError: the request is wrong, and nothing has been sent to a model. Nothing is stored then.
        """
        self.start()
        start = await self._intake.take(self._parse(body), connection.chains)
        return await self._run(start, connection)

    async def _join(self, claim: Claim) -> Kept | None:
        """The response that the key leads to, once it cannot be refused any more; None if the key is free."""
        while response_id := await self._keys.find(claim):
            await self._crew.begun(response_id)
            if await self._archive.entry(response_id):
                return Kept(await self.retrieve(response_id), replayed=True)
            if await self._keys.find(claim) == response_id:
                raise ApiError(
                    409,
                    "The response that was made under this Idempotency-Key is no longer stored. "
                    "To have it made again, send a new key.",
                    code="idempotency_key_reused",
                )
        return None

    async def _create(self, request: CreateRequest, body: Json, claim: Claim | None) -> Run | Kept:
        start = await self._intake.take(request)
        if request.background or claim:
            return await self._keep(start, body, claim)
        return await self._run(start)

    def _parse(self, body: Any) -> CreateRequest:
        config = self.config
        refuse = config.unknown_fields == "refuse"
        return parse_create(body, passthrough=config.passthrough, limits=config.of_requests, refuse_unknown=refuse)

    def _parse_stored(self, body: Any) -> CreateRequest:
        """A request that was taken before, perhaps by an earlier version."""
        return parse_create(body, passthrough=self.config.passthrough, limits=self.config.of_requests)

    async def _keep(self, start: Start, body: Json, claim: Claim | None) -> Kept:
        """Begins what goes on without its client: in the background, or under a key.

        Raises:
            Conflict: somebody else took the key.
        """
        request, stored = start.request, start.stored
        response = self._workshop.begin(request, start.moderation)
        # The input is stored with the response; a request just has to have some.
        told = body["input"][-1:] if request.compacts else "..."
        work = read_fields(body, self.config.passthrough) | {"input": told, "previous_response_id": None}
        keys = self.access.keys()
        taken: list[Put] = []
        free: list[VersionIs] = []
        if claim:
            take, is_free = await self._keys.take(claim, response["id"])
            taken, free = [take], [is_free]
        if request.background:
            await self._workshop.inference.check_model(request.model)
            response |= {"status": "queued"}
            bench = self._workshop.bench(request, response, start.owner)
            # Whoever makes it reads it again; what cannot be read is refused while the client listens.
            await bench.shown(start.items)
            events = bench.assembler.enqueue()
            await self._crew.submit(response, work, events, keys=keys, beside=taken, conditions=free, **stored)
        else:
            patience = PATIENCE if request.stream else None
            await self._crew.open(response, work, keys=keys, beside=taken, conditions=free, patience=patience, **stored)
        return Kept(response)

    async def finish(self, response_id: str) -> Json:
        """Waits for the end of a response that is made whether anybody waits or not, and returns it.

        Raises:
            ApiError: 503, if this server ends before.
        """
        await self._crew.ended(response_id)
        response = await self.retrieve(response_id)
        if response["status"] in RUNNING:
            raise ApiError(503, "The server is shutting down, and another goes on. Ask again.", retry_after=1)
        return response

    async def _run(self, start: Start, connection: OnConnection | None = None) -> Run:
        request, stored = start.request, start.stored
        bench = self._workshop.bench(request, self._workshop.begin(request, start.moderation), start.owner)
        # Only who reads the stream knows numbers of events, and of the response before it is stored.
        transcript = Transcript() if request.store and request.stream else None
        response, outbox = bench.assembler.response, Outbox(wanted=request.stream, transcript=transcript)

        async def keep(final: Json) -> None:
            if transcript:
                await self._keeper.keep_vouched(final, transcript, stored, turn.exchanges)
            elif request.store:
                await self._keeper.keep(final, stored, turn.exchanges)
            else:
                await self._keep_elsewhere(final, start, turn.exchanges, connection)

        async def drop() -> None:
            if transcript:
                await self._crew.withdraw(response["id"])

        turn = await bench.making(start.items, outbox, connection)
        if transcript:
            await self._crew.vouch(response, **stored)
        run = Run(turn, bench.assembler, outbox, keep, drop)
        self._runs.add(run)
        run.when_settled(lambda: self._ended(run))
        return run

    def _ended(self, run: Run) -> None:
        self._runs.discard(run)
        self._crew.ended_here(run.response["id"])

    async def _keep_elsewhere(
        self, final: Json, start: Start, exchanges: Mapping[str, Json], connection: OnConnection | None
    ) -> None:
        """Keeps what a response that is not stored said in its conversation, and for its connection."""
        if start.request.conversation:
            await self._keeper.join(final, start.stored, exchanges)
        if connection:
            connection.chains.keep(final, start.remembered, exchanges, start.history.link, start.history.base)

    async def retrieve(self, response_id: str) -> Json:
        """The response: the stored one, or what a streamed one was when it began, while it is made.

        Raises:
            ApiError: 404 when it is unknown, deleted, or another user's.
        """
        return (await self._found(response_id, "read")).response

    async def follow(
        self, response_id: str, after: int, silence: float, lease: Callable[[], Lease]
    ) -> AsyncIterator[list[Event]]:
        """The events of a response behind number `after`: those that are there, and then those that come.

        An empty list says that none came for `silence` seconds. The iterator raises `LetGo` when this server ends
        before the response does.

        Args:
            lease: makes the lease that the bytes of a response go onto whose events are made again.

        Raises:
            ApiError: 404 when it is unknown, deleted, or another user's; 429 or 503 when there is no room for it.
        """
        stored = await self._stored(response_id, "read")
        if stored.response["status"] in RUNNING:
            return self._follow(response_id, after, silence, lease)
        return self._replays.events(stored, after, lease)

    async def _follow(
        self, response_id: str, after: int, silence: float, lease: Callable[[], Lease]
    ) -> AsyncIterator[list[Event]]:
        async for events in self._crew.follow(response_id, after, silence):
            yield events
            if events and events[-1]["type"] in TERMINAL:
                return
            after = events[-1]["sequence_number"] if events else after
        stored = await self._stored(response_id, "read")
        if stored.response["status"] in RUNNING:
            raise LetGo
        async for events in self._replays.events(stored, after, lease):
            yield events

    async def delete(self, response_id: str) -> None:
        """Deletes a response; what later responses stand on stays until they go too."""
        found = await self._found(response_id, "delete")
        if isinstance(found, Vouched):
            if await self._crew.delete_under_way(found):
                return
        elif found.response["status"] in RUNNING:
            await self._crew.cancel(response_id)
        await certain(
            lambda _: self._archive.delete(response_id),
            f"The response store did not say whether it deleted response '{response_id}': delete it again. "
            "A 404 says that it was deleted.",
        )
        await self._crew.forget(response_id)

    async def cancel(self, response_id: str) -> Json:
        """Ends a background response, wherever it is made, and returns it; one that has ended stays as it is.

        Raises:
            ApiError: 400 for a response that is not made in the background.
        """
        stored = await self._found(response_id, "update")
        if not stored.response["background"]:
            raise bad_request("Cannot cancel a synchronous response.")
        if stored.response["status"] in RUNNING:
            await self._crew.cancel(response_id)
        return await self.retrieve(response_id)

    async def list(self, *, limit: int, after: str | None, order: Order, model: str | None) -> Page:
        """The caller's responses by time of creation, each with the `input` that the hosts' clients require."""
        page = await self._archive.list(self.access.who(), limit=limit, after=after, order=order, model=model)
        inputs = await self._archive.own_inputs(page.items)
        current = [await self._current(stored) for stored in page.items]
        made = [each.response | {"input": listed(items)} for each, items in zip(current, inputs, strict=True)]
        return Page(made, page.has_more)

    async def input_items(self, response_id: str, *, limit: int, after: str | None, order: Order) -> Page:
        """All items that the response was made from, the history included, each with its id."""
        items = await self._historian.input_of(await self._stored(response_id, "read"))
        if order == "desc":
            items.reverse()
        first = 0
        if after is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise bad_request(f"No item with id '{after}' is in this list.", "after", "invalid_value")
            first = ids.index(after) + 1
        return Page(listed(items[first : first + limit]), len(items) > first + limit)

    async def shutdown(self) -> None:
        """Ends what runs beside the requests and closes the store; the host calls it when it stops."""
        if self._monitor:
            self._monitor.stop()
        await self._sweeper.stop()
        await self._crew.stop()
        await self._surroundings.close()
        await self._archive.close()

    async def _stored(self, response_id: str, action: Action) -> StoredResponse:
        """The stored response, to which the caller is about to do this.

        Raises:
            ApiError: 404 when it is unknown, deleted, another user's, or a foreground response that is under way; 403.
        """
        found = await self._found(response_id, action)
        if isinstance(found, Vouched):
            raise bad_request(
                f"Response '{response_id}' is still being made. Its stream, and the list of its input, can be read "
                "again when it has ended.",
                code="response_not_ready",
            )
        return found

    async def _found(self, response_id: str, action: Action) -> StoredResponse | Vouched:
        """The response, stored or under way in the foreground, to which the caller is about to do this.

        Raises:
            ApiError: 404 when it is unknown, deleted, or another user's; 403.
        """
        check_response_id(response_id, "response_id")
        found = await self._archive.load(response_id) or await self._archive.under_way(response_id)
        # It may have ended between the two looks.
        found = found or await self._archive.load(response_id)
        if found is None or not self.access.allows("read", "response", response_id, found.owner):
            raise not_found(response_id)
        if not self.access.allows(action, "response", response_id, found.owner):
            raise ApiError(403, f"You may not {action} response '{response_id}'.")
        return found if isinstance(found, Vouched) else await self._current(found)

    async def _current(self, stored: StoredResponse) -> StoredResponse:
        """The response as it is now: a waiting one is written anew only at its end."""
        if stored.response["status"] != "queued":
            return stored
        held = await self._crew.find(stored.response["id"])
        if held is None:
            return await self._archive.load(stored.response["id"]) or stored
        status = "in_progress" if held.job.worker else "queued"
        return replace(stored, response=stored.response | {"status": status})
