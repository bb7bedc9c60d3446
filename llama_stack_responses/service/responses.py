"""The Responses API, without HTTP and without the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ..admission import Admission, Level, Reservation
from ..concurrency import shorten_switch_interval
from ..config import Limits, ResponsesConfig
from ..core.access import Access, Action
from ..core.errors import ApiError, OutcomeUnknown, bad_request, not_found
from ..core.ids import check_response_id
from ..core.json_values import VALUE_BYTES
from ..core.listing import Order, Page, listed, page_after
from ..core.owner import Owner
from ..core.schema.request import CreateRequest
from ..core.stream.events import TERMINAL, Event
from ..core.stream.transcript import Transcript
from ..core.types import Json
from ..generation.activity import Activity
from ..generation.connection_options import ConnectionOptions
from ..generation.dependencies import Dependencies
from ..generation.event_buffer import EventBuffer
from ..generation.factory import build_factory
from ..generation.run import Run
from ..inputs.history import HistoryBounds, HistoryReader, Hold
from ..inputs.large_work import LargeWork
from ..inputs.parser import RequestParser
from ..inputs.prompts import with_prompt
from ..inputs.resolver import RequestResolver, Start
from ..intervals import DEFAULT, Intervals
from ..jobs.background import BackgroundJobs
from ..jobs.worker import WorkerLimits
from ..lifecycle.finishing import Finishing
from ..lifecycle.secret_check import SecretCheck
from ..lifecycle.shutdown import ShutdownCoordinator
from ..lifecycle.signals import Connections, install_signal_handlers
from ..lifecycle.sweeper import Sweeper
from ..process_pool.pool import WorkerPool
from ..sealing.sealer import Sealer
from ..store.archive import Archive, StoredResponse
from ..store.decoder import Decoder
from ..store.outcome import until_known
from ..store.reading import computed
from ..store.records import Conflict, Put, Records, VersionIs
from ..store.running_response import RunningResponse
from ..telemetry.gauges import Load, StoreLoad
from ..telemetry.loop_monitor import LoopMonitor
from .compaction import Compaction
from .conversations import Conversations
from .health import Health
from .idempotency import IdempotencyClaim, IdempotencyKeys
from .persistence import ResponseExtras, ResponseWriter
from .readiness import Check, Readiness, ReadinessReport
from .replays import Replays
from .token_counting import TokenCounting

RUNNING: Final = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class DetachedResponse:
    """A response that outlives its request and can be followed.

    Attributes:
        response: the response as it is now.
        replayed: whether an earlier request with the same Idempotency-Key created it.
    """

    response: Json
    replayed: bool = False


class ServerClosing(Exception):  # noqa: N818 (nothing went wrong)
    """This server shuts down while a client follows a response that continues; the client can follow it elsewhere."""


class OpenAIResponsesImpl:
    """Creates, stores and serves responses.

    Nothing is bound to an event loop before the first request: the host creates providers in another event loop than
    the one that serves.

    Args:
        config: the provider's configuration.
        records: the store.
        dependencies: the services of the stack.
        access: the identity and permissions of the caller.
        intervals: intervals and timeouts of this server.

    Attributes:
        archive: the stored responses.
        jobs: the detached responses.
        streams: counts the open event streams and WebSockets.
        sockets: counts the WebSockets among them.
    """

    def __init__(
        self,
        config: ResponsesConfig,
        records: Records,
        dependencies: Dependencies,
        access: Access,
        intervals: Intervals = DEFAULT,
    ) -> None:
        self.config = config
        self.intervals, self.access = intervals, access
        self.shutdown_coordinator = ShutdownCoordinator()
        self.streams, self.sockets = Admission(config.limits.of_streams), Level()
        self._records = records
        self._dependencies, self.containers = dependencies, dependencies.services.containers
        self.archive = archive = _archive(records, config, intervals)
        self._history_reader = HistoryReader(archive, access, _history_bounds(config.limits))
        sealer, limits = Sealer(config.secret_bytes), config.of_requests
        self.large_work = large = LargeWork(access.who)
        self._parser = _parser(config, large)
        self._factory = build_factory(config, dependencies, sealer, large)
        sealed = self._factory.sealed
        fill = partial(with_prompt, prompts=dependencies.prompts, characters=config.limits.prompt_characters)
        self._resolver = RequestResolver(self._history_reader, access, sealed, self._factory.checks, fill, large)
        self.conversations = Conversations(archive, self._history_reader, access, sealed, limits, large, intervals)
        self.counting = TokenCounting(self._factory, self._resolver, self._parser)
        self._running, self._replays = Admission(config.limits.of_responses), Replays()
        self.compaction = Compaction(self._factory, self._resolver, self._parser, self._running)
        self._keys = IdempotencyKeys(records)
        self._secret_check = SecretCheck(records, sealer, intervals)
        self._sweeper = Sweeper(archive, config.sweep_seconds)
        self.jobs = self._background_jobs(records, sealer)
        self._leases = self.jobs.foreground
        self._writer = ResponseWriter(archive, self._leases, intervals)
        self._health = Health(records, self.jobs.worker)
        self._readiness = self._checks_of_readiness()
        self._runs = set[Run]()
        self._finishing = Finishing(self._runs, config.finish_seconds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._monitor: LoopMonitor | None = None
        self._connections: Connections | None = None

    @property
    def activity(self) -> Activity:
        """The current and past work of this server."""
        return self._factory.activity

    @property
    def pool(self) -> WorkerPool:
        """Runs work on foreign content in processes."""
        return self._dependencies.pool

    def _background_jobs(self, records: Records, sealer: Sealer) -> BackgroundJobs:
        return BackgroundJobs(
            records,
            self.archive,
            self.access,
            self._factory,
            limits=WorkerLimits.of(self.config.background),
            event_log_seconds=self.config.background.event_log_seconds,
            parse=self._parser.parse_stored,
            sealer=sealer,
            intervals=self.intervals,
        )

    def _checks_of_readiness(self) -> Readiness:
        checks: dict[str, Check] = {
            "store": self._health.store,
            "worker": self._health.worker,
            "model_server": self._factory.inference.answers,
        }
        return Readiness(checks, lambda: self._finishing.begun, self.intervals, self._notes)

    def _notes(self) -> dict[str, str]:
        return {"secrets": "different"} if self._secret_check.differs else {}

    def start(self) -> bool:
        """Start the background tasks in the running event loop; return False if that was done before."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return False
        self._loop = loop
        shorten_switch_interval()
        self._sweeper.start()
        self._secret_check.start()
        self.jobs.start()
        if self.containers:
            self.containers.start()
        if threshold := self.config.loop_hold_seconds:
            self._monitor = self._factory.telemetry.monitor_loop(threshold)
        self._factory.telemetry.show(Load(self._counts, self._store_load))
        self._connections = install_signal_handlers(self._on_signal, self.config.drain_seconds, self._finish)
        return True

    def _counts(self) -> dict[tuple[str, str], int]:
        sockets = self.sockets.value
        return {
            ("responses.running", "foreground"): len(self._runs),
            ("responses.running", "detached"): self.jobs.worker.running,
            ("connections.open", "websocket"): sockets,
            ("connections.open", "stream"): self.streams.held - sockets,
        }

    async def _store_load(self) -> StoreLoad:
        length, age = await self.jobs.waiting()
        return StoreLoad(length, age, await self._records.size())

    def _finish(self) -> asyncio.Future[None] | None:
        """Begin nothing that another server can do, and let foreground responses finish."""
        self.jobs.worker.retire()
        return self._finishing.begin()

    def _on_signal(self) -> asyncio.Future[None] | None:
        for run in self._runs:
            run.shut_down()
        # The host may stop its inference providers before this one, which would fail the jobs that run.
        self.jobs.worker.hand_over()
        self.jobs.events.close()
        return self.shutdown_coordinator.begin()

    def break_off(self, scope: Mapping[str, Any]) -> None:
        """Abort the connection of a request, identified by its ASGI scope, without waiting for the client."""
        if self._connections:
            self._connections.abort(scope)

    async def health(self) -> Json:
        """Return the `status` of this server, and a `message` if it is not healthy."""
        self.start()
        return await self._health.report()

    async def ready(self) -> ReadinessReport:
        """Return whether requests should be sent to this server. Anyone may ask: it reveals no names or addresses."""
        self.start()
        return await self._readiness.report()

    async def create(self, body: Any, key: str | None = None, hold: Hold | None = None) -> Run | DetachedResponse:
        """Create a response, or return the one that was created with the same key.

        Args:
            body: the request's decoded JSON.
            key: the request's Idempotency-Key.
            hold: called with the number of stored bytes that are about to be held; it may raise.

        Raises:
            ApiError: the request is invalid, or 429 or 503, too many responses run here; nothing has been sent to the
                model server. Or the key belongs to another request. With a key, also: the model server refused the
                request. In each case nothing is stored, and the key is not taken.
        """
        self.start()
        request = await self._parser.parse(body)
        if key is None:
            return await self._create(request, body, None, hold)
        if not request.store:
            raise bad_request(
                "An Idempotency-Key needs a stored response: omit 'store: false', or send no key.",
                "store",
                "unsupported_value",
            )
        claim = await computed(partial(IdempotencyClaim.of, self.access.who(), key, body), body)
        while True:
            if joined := await self._join(claim, hold):
                return joined
            with suppress(Conflict):
                return await self._claimed(request, body, claim, hold)

    async def _claimed(
        self, request: CreateRequest, body: Json, claim: IdempotencyClaim, hold: Hold | None
    ) -> Run | DetachedResponse:
        try:
            return await self._create(request, body, claim, hold)
        except OutcomeUnknown as error:
            message = "The response store did not say whether it took this request. Send it again with the same key."
            raise ApiError(503, message, retry_after=1) from error

    async def create_on_connection(self, body: Any, connection: ConnectionOptions, hold: Hold | None = None) -> Run:
        """Create a streamed response on a connection, which remembers the response if it is not stored.

        Args:
            body: the request's decoded JSON.
            connection: the options and the memory of the connection.
            hold: as in `create`.

        Raises:
            ApiError: the request is invalid, or 429 or 503, too many responses run here. Nothing has been sent to the
                model server, and nothing is stored.
        """
        self.start()
        request = await self._parser.parse(body)
        if not request.store:
            await connection.memory.check(request.input_items)
        start = await self._resolver.resolve(request, connection.memory, hold=hold)
        return await self._run(start, connection)

    async def _join(self, claim: IdempotencyClaim, hold: Hold | None) -> DetachedResponse | None:
        """Return the response that was created with the key, once it has begun; None if the key is free."""
        while response_id := await self._keys.find(claim):
            await self.jobs.events.begun(response_id)
            if await self.archive.entry(response_id):
                return DetachedResponse(await self.retrieve(response_id, hold), replayed=True)
            if await self._keys.find(claim) == response_id:
                raise ApiError(
                    409,
                    "The response that was made under this Idempotency-Key is no longer stored. "
                    "To create it again, send a new key.",
                    code="idempotency_key_reused",
                )
        return None

    async def _create(
        self, request: CreateRequest, body: Json, claim: IdempotencyClaim | None, hold: Hold | None
    ) -> Run | DetachedResponse:
        start = await self._resolver.resolve(request, hold=hold)
        if request.background or claim:
            return await self._create_detached(start, body, claim)
        return await self._run(start)

    async def _create_detached(self, start: Start, body: Json, claim: IdempotencyClaim | None) -> DetachedResponse:
        """Create a detached response: in the background, or with a key.

        Raises:
            Conflict: another request took the key.
        """
        request, stored = start.request, start.stored
        response = self._factory.begin(request, start.moderation)
        # The input is stored with the response; this stands in for it, since a request must have one.
        newest = body["input"][-1:] if request.compacts else "..."
        work = self._parser.fields(body) | {"input": newest, "previous_response_id": None}
        keys = self.access.provider_credentials()
        taken: list[Put] = []
        free: list[VersionIs] = []
        if claim:
            take, is_free = await self._keys.take(claim, response["id"])
            taken, free = [take], [is_free]
        if request.background:
            await self._factory.inference.check_model(request.model)
            response |= {"status": "queued"}
            context = self._factory.context(request, response, start.owner, start.opened)
            # The worker reads the files again. Reading them now refuses the request if one cannot be read.
            with context.held() as held:
                await context.shown(start.items, held)
            events = context.assembler.enqueue()
            await self.jobs.submit(response, work, events, keys=keys, extra_ops=taken, conditions=free, **stored)
        else:
            patience = self.intervals.stream_refusal_seconds if request.stream else None
            await self.jobs.open(
                response, work, keys=keys, extra_ops=taken, conditions=free, patience=patience, **stored
            )
        return DetachedResponse(response)

    async def finish(self, response_id: str, hold: Hold | None = None) -> Json:
        """Wait for the end of a detached response, and return it; `hold` as in `create`.

        Raises:
            ApiError: 503, this server shuts down first.
        """
        await self.jobs.events.ended(response_id)
        response = await self.retrieve(response_id, hold)
        if response["status"] in RUNNING:
            raise ApiError(
                503, "The server is shutting down, and another one continues. Send the request again.", retry_after=1
            )
        return response

    async def _run(self, start: Start, connection: ConnectionOptions | None = None) -> Run:
        request, stored = start.request, start.stored
        response = self._factory.begin(request, start.moderation)
        context = self._factory.context(request, response, start.owner, start.opened)
        # Only a client that reads the stream knows event numbers, and the response's id before it is stored.
        transcript = Transcript() if request.store and request.stream else None
        pace = context.timeline.pace if transcript else None
        event_buffer = EventBuffer(wanted=request.stream, transcript=transcript, pace=pace)

        async def keep(final: Json) -> None:
            made = ResponseExtras(generation.exchanges, context.timeline.recording())
            if transcript:
                await self._writer.write_streamed(final, transcript, stored, made)
            elif request.store:
                await self._writer.write(final, stored, made)
            else:
                await self._save_items_only(final, start, generation.exchanges, connection)

        async def drop() -> None:
            if transcript:
                await self._leases.withdraw(response["id"])

        with ExitStack() as unless_begun:
            place = unless_begun.enter_context(self._running.lease(start.owner).take(1))
            generation = await context.generation_for(start.items, event_buffer, connection)
            unless_begun.callback(generation.release)
            if transcript:
                await self._leases.acquire(response, **stored)
            unless_begun.pop_all()
        run = Run(generation, context.assembler, event_buffer, keep, drop, self.intervals.stream_refusal_seconds)
        self._runs.add(run)
        run.when_settled(lambda: self._ended(run))
        run.when_settled(place.release)
        return run

    def _ended(self, run: Run) -> None:
        self._runs.discard(run)
        self._finishing.look()
        self._leases.released(run.response["id"])

    async def _save_items_only(
        self, final: Json, start: Start, exchanges: Mapping[str, Json], connection: ConnectionOptions | None
    ) -> None:
        """Keep the items of a response that is not stored: in its conversation, and in its connection's memory."""
        if start.request.conversation:
            await self._writer.join(final, start.stored, exchanges)
        if connection:
            await connection.memory.keep(final, start.remembered, exchanges, start.history.link, start.history.base)

    async def retrieve(self, response_id: str, hold: Hold | None = None) -> Json:
        """Return the response as stored or, while it is streamed in the foreground, as it was when it began.

        Args:
            response_id: the id of the response.
            hold: as in `create`.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's.
        """
        return (await self.find(response_id, "read", hold)).response

    async def follow(
        self, response_id: str, after: int, silence: float, lease: Callable[[], Reservation]
    ) -> AsyncIterator[list[Event]]:
        """Return an iterator over the events of a response after number `after`, existing and new ones.

        It yields an empty list after `silence` seconds without an event, and raises `ServerClosing` if this server
        shuts down before the response ends.

        Args:
            response_id: the id of the response.
            after: the number of the last event to skip.
            silence: seconds.
            lease: creates the reservation for the bytes of events that are read from the store, or made from a stored
                response.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's; 400, it is a foreground response that
                still runs; 429 or 503, the reservation is refused.
        """
        status, version = await self._status_and_version(response_id)
        if status in RUNNING:
            with lease().take(1):
                pass  # refuses the request while this user's other readers hold all that they may
            return self._follow(response_id, after, silence, lease)
        return await self._replay(response_id, version, after, lease)

    async def _follow(
        self, response_id: str, after: int, silence: float, lease: Callable[[], Reservation]
    ) -> AsyncIterator[list[Event]]:
        async for events in self.jobs.events.follow(response_id, after, silence, lease):
            yield events
            if events and events[-1]["type"] in TERMINAL:
                return
            after = events[-1]["sequence_number"] if events else after
        status, version = await self._status_and_version(response_id)
        if status in RUNNING:
            raise ServerClosing
        async for events in await self._replay(response_id, version, after, lease):
            yield events

    async def _status_and_version(self, response_id: str) -> tuple[str, int]:
        """Return the status and the version of a response that the caller reads, without reading its content.

        Raises:
            ApiError: as from `_stored`.
        """
        check_response_id(response_id, "response_id")
        if found := await self.archive.entry_version(response_id):
            entry, version = found
            self._check_access(response_id, entry.owner, "read")
            return entry.response["status"], version
        stored = await self._stored(response_id, "read")
        return stored.response["status"], stored.version

    async def _replay(
        self, response_id: str, version: int, after: int, lease: Callable[[], Reservation]
    ) -> AsyncIterator[list[Event]]:
        load = partial(self._stored, response_id, "read")
        return await self._replays.events(response_id, version, load, after, lease)

    async def delete(self, response_id: str) -> None:
        """Delete a response; content that later responses refer to stays until they are deleted too."""
        found = await self.find(response_id, "delete")
        if isinstance(found, RunningResponse):
            if await self._leases.delete(found):
                return
        elif found.response["status"] in RUNNING:
            await self.jobs.cancel(response_id)
        await until_known(
            lambda _: self.archive.delete(response_id),
            f"The response store did not say whether it deleted response '{response_id}': delete it again. "
            "A 404 says that it was deleted.",
            self.intervals,
        )
        await self.jobs.forget(response_id)

    async def cancel(self, response_id: str, hold: Hold | None = None) -> Json:
        """Cancel a background response, whichever server runs it, and return it; do nothing if it has ended.

        Args:
            response_id: the id of the response.
            hold: as in `create`.

        Raises:
            ApiError: 400, the response is not a background response.
        """
        stored = await self.find(response_id, "update")
        if not stored.response["background"]:
            raise bad_request("Cannot cancel a synchronous response.")
        if stored.response["status"] in RUNNING:
            await self.jobs.cancel(response_id)
        return await self.retrieve(response_id, hold)

    async def list(
        self, *, limit: int, after: str | None, order: Order, model: str | None, hold: Hold | None = None
    ) -> Page:
        """Return a page of the caller's responses by creation time, each with the `input` that host clients require.

        Args:
            hold: called with the bytes of what is read, before it is decoded; it may raise.
        """
        page = await self.archive.list(self.access.who(), limit=limit, after=after, order=order, model=model, hold=hold)
        inputs = await self.archive.own_inputs(page.items, hold)
        current = [await self._current(stored) for stored in page.items[: len(inputs)]]
        made = [each.response | {"input": listed(items)} for each, items in zip(current, inputs, strict=False)]
        cut = len(inputs) < len(page.items)
        return Page(made, page.has_more or cut, None if cut else page.last)

    async def input_items(
        self, response_id: str, *, limit: int, after: str | None, order: Order, hold: Hold | None = None
    ) -> Page:
        """Return a page of the response's input items, including the history, each with its id.

        Args:
            response_id: the id of the response.
            limit: most items of the page.
            after: the id of the item before the page; None for the first page.
            order: `asc` for oldest first, `desc` for newest first.
            hold: as in `create`.
        """
        items = await self._history_reader.input_of(await self._stored(response_id, "read"), hold)
        if order == "desc":
            items.reverse()
        page = page_after(items, after, limit)
        return Page(listed(page.data), page.has_more)

    async def shutdown(self) -> None:
        """Stop the background tasks, and close the dependencies and the store; the host calls it when it stops."""
        if self._monitor:
            self._monitor.stop()
        await self._sweeper.stop()
        await self._secret_check.stop()
        await self.jobs.worker.stop()
        await self.jobs.board.stop()
        self.large_work.close()
        await self._dependencies.close()
        await self.archive.close()

    async def _stored(self, response_id: str, action: Action) -> StoredResponse:
        """Return the stored response, on which the caller wants to perform `action`.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's; 403, the action is not allowed; 400, it
                is a foreground response that still runs.
        """
        found = await self.find(response_id, action)
        if isinstance(found, RunningResponse):
            raise bad_request(
                f"Response '{response_id}' is still in progress. Its stream, and the list of its input, can be read "
                "again when it has ended.",
                code="response_not_ready",
            )
        return found

    async def find(
        self, response_id: str, action: Action, hold: Hold | None = None
    ) -> StoredResponse | RunningResponse:
        """Return the response, stored or running in the foreground, on which the caller wants to perform `action`.

        Args:
            response_id: the id of the response.
            action: what the caller wants to do.
            hold: as in `create`.

        Raises:
            ApiError: 404, the response is unknown, deleted, or another user's; 403, the action is not allowed.
        """
        check_response_id(response_id, "response_id")
        found = await self.archive.load(response_id, hold) or await self.archive.running(response_id)
        # It may have ended between the two reads.
        found = found or await self.archive.load(response_id, hold)
        if found is None:
            raise not_found(response_id)
        self._check_access(response_id, found.owner, action)
        return found if isinstance(found, RunningResponse) else await self._current(found)

    def _check_access(self, response_id: str, owner: Owner, action: Action) -> None:
        if not self.access.allows("read", "response", response_id, owner):
            raise not_found(response_id)
        if not self.access.allows(action, "response", response_id, owner):
            raise ApiError(403, f"You may not {action} response '{response_id}'.")

    async def _current(self, stored: StoredResponse) -> StoredResponse:
        """Return the response with its current status: a queued response is written again only when it ends."""
        if stored.response["status"] != "queued":
            return stored
        held = await self.jobs.find(stored.response["id"])
        if held is None:
            return await self.archive.load(stored.response["id"]) or stored
        status = "in_progress" if held.job.worker else "queued"
        return replace(stored, response=stored.response | {"status": status})


def _parser(config: ResponsesConfig, large_work: LargeWork) -> RequestParser:
    refuse_unknown = config.unknown_fields == "refuse"
    return RequestParser(config.passthrough, config.of_requests, large_work, refuse_unknown=refuse_unknown)


def _history_bounds(limits: Limits) -> HistoryBounds:
    return HistoryBounds(limits.request_bytes, limits.history_of_one, _most_of_input(limits))


def _most_of_input(limits: Limits) -> int:
    return limits.request_bytes + limits.bodies.json_values * VALUE_BYTES


def _archive(records: Records, config: ResponsesConfig, intervals: Intervals) -> Archive:
    return Archive(
        records,
        retention=config.retention_seconds,
        # A worker reads the history of a background response together with its input.
        recent_bytes=config.limits.history_of_one + _most_of_input(config.limits),
        scan_rows=config.limits.scanned_responses,
        scan_seconds=intervals.list_scan_seconds,
        decoder=Decoder(config.limits.decoding_bytes),
    )
