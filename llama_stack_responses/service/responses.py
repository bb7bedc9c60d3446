"""The Responses API, without HTTP and without the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ..admission import Admission, InFlightCounter
from ..concurrency.large_work import LargeWork
from ..concurrency.offloading import in_thread_if_large
from ..concurrency.turns import Turns
from ..config import ResponsesConfig
from ..config.limits import Limits
from ..config.stores import accepts_losses
from ..core.access import Access
from ..core.errors import ApiError, OutcomeUnknown, bad_request
from ..core.json_values import VALUE_BYTES
from ..core.statuses import UNFINISHED
from ..core.types import Json
from ..generation.connection_options import ConnectionOptions
from ..generation.dependencies import Card, Dependencies
from ..generation.factory import build_factory
from ..generation.run import ForegroundRun
from ..inputs.history import HistoryBounds, HistoryReader, Hold
from ..inputs.prompts import with_prompt
from ..inputs.request_parser import RequestParser
from ..inputs.resolver import RequestResolver
from ..intervals import DEFAULT, Intervals
from ..jobs.background import BackgroundJobs
from ..jobs.worker import WorkerLimits
from ..lifecycle.certificate_check import CertificateCheck
from ..lifecycle.certificates import watched
from ..lifecycle.clock_check import ClockCheck
from ..lifecycle.durability_check import DurabilityCheck
from ..lifecycle.integrity_check import IntegrityCheck
from ..lifecycle.provider_check import ProviderCheck
from ..lifecycle.secret_check import SecretCheck
from ..lifecycle.sweeper import ConversationSweeper, ResponseSweeper, Sweeper
from ..process_pool.pool import WorkerPool
from ..requests.request import CreateRequest
from ..sealing.sealer import Sealer, SecretKeeper
from ..store.archive import Archive
from ..store.clock import StoreClock
from ..store.commit_outcome import until_known
from ..store.decoder import Decoder
from ..store.records import Conflict, Records
from ..store.retention import Retention
from ..store.running_response import RunningResponse
from ..store.sweep_guard import SweepGuard, conversation_guard
from ..telemetry.gauges import GaugeSources
from ..tools.registry import available_tools
from .compact import Compaction
from .conversations import Conversations
from .detached_responses import DetachedResponse, DetachedResponses
from .foreground_responses import ForegroundResponses
from .gauge_values import GaugeValues
from .health import Health
from .idempotency import IdempotencyClaim, IdempotencyKeys
from .process_set import ProcessSet
from .readiness import Readiness, ReadinessCheck, ReadinessReport
from .response_reader import ResponseReader
from .server_lifecycle import ServerLifecycle
from .token_counting import TokenCounting

_BEGINNINGS: Final = 8
"""Responses that begin at a time, until the model server has accepted them; users take turns."""
_BEGINNING_SECONDS: Final = 0.02
"""Time after which a beginning that waits, for the model server or a URL, no longer counts if the server is idle."""


class OpenAIResponsesImpl:
    """Creates, stores and serves responses.

    Nothing is bound to an event loop before the first request: the host creates providers in another event loop than
    the one that serves.

    Args:
        config: the provider's configuration.
        records: the store.
        keeper: keeps the secret that the servers of the store share if none is configured.
        dependencies: the services of the stack.
        access: the identity and permissions of the caller.
        intervals: intervals and timeouts of this server.

    Attributes:
        archive: the stored responses.
        jobs: the detached responses.
        clock: the store's clock.
        reader: reads responses.
        processes: this process and those beside it, as one server.
        streams: counts the open event streams and WebSockets.
        sockets: counts the WebSockets among them.
        abort_connection, shutdown_coordinator: of the `ServerLifecycle`.
        finish: of the `DetachedResponses`.
    """

    def __init__(
        self,
        config: ResponsesConfig,
        records: Records,
        keeper: SecretKeeper,
        dependencies: Dependencies,
        access: Access,
        intervals: Intervals = DEFAULT,
    ) -> None:
        self.config = config
        self.intervals, self.access = intervals, access
        self.streams, self.sockets = Admission(config.limits.stream_quota), InFlightCounter()
        self._dependencies, self._beginnings = dependencies, Turns(_BEGINNINGS, _BEGINNING_SECONDS)
        self.clock = clock = StoreClock(records)
        self.archive = archive = _archive(records, config, clock, intervals, dependencies)
        history = HistoryReader(archive, access, _history_bounds(config.limits))
        sealer = Sealer(config.secret_bytes, keeper)
        self.large_work = large = LargeWork()
        self._parser = parser = _parser(config, large)
        self._factory = factory = build_factory(config, dependencies, records, sealer, large, history.prompt_of, clock)
        self._resolver = resolver = self._request_resolver(history)
        self.conversations = self._stored_conversations(history)
        self.counting = TokenCounting(factory, resolver, parser)
        admission = Admission(config.limits.response_quota)
        self.compaction = Compaction(factory, resolver, parser, admission, archive)
        self.jobs = jobs = self._background_jobs(records, sealer)
        self.reader = reader = ResponseReader(archive, history, jobs, access)
        self._detached = DetachedResponses(
            factory, parser, jobs, IdempotencyKeys(records), archive, reader, access, config.stream_refusal_seconds
        )
        self.finish = self._detached.finish
        self._foreground = self._foreground_responses(admission)
        self._secret_check = SecretCheck(records, sealer, intervals)
        self._sweepers = _sweepers(records, archive, clock, config)
        self._durability = DurabilityCheck(records, accepts_losses(config.store), intervals)
        self._providers = ProviderCheck(dependencies.inference, config.ready_providers, intervals)
        self._integrity, self._health = IntegrityCheck(records, intervals), Health(records, jobs.worker)
        self.processes = ProcessSet(self._checks_of_readiness(), factory.activity, jobs.live_responses, intervals)
        self._lifecycle = self._server_lifecycle(records)
        self.abort_connection, self.shutdown_coordinator = self._lifecycle.abort_connection, self._lifecycle.shutdown

    @property
    def sealer(self) -> Sealer:
        """Opens what was sealed for a user."""
        return self._factory.sealed.sealer

    @property
    def pool(self) -> WorkerPool:
        """Runs work on foreign content in processes."""
        return self._dependencies.pool

    @property
    def cards(self) -> Sequence[Card]:
        """What features show on the page."""
        return self._dependencies.cards

    async def available_tools(self) -> dict[str, str]:
        """Return the hosted tools that this stack can run for the current user, each with its details.

        Raises:
            ApiError: 503, the stack cannot list its own tools.
        """
        return await available_tools(self._dependencies.tool_services)

    async def _filled(self, request: CreateRequest) -> CreateRequest:
        """Return the request with its prompt filled in, and what the features fill in."""
        characters = self.config.limits.prompt_characters
        request = await with_prompt(request, self._dependencies.prompts, characters)
        for fill in self._dependencies.fills:
            request = await fill(request, self.large_work)
        return request

    def _request_resolver(self, history: HistoryReader) -> RequestResolver:
        factory = self._factory
        return RequestResolver(
            history,
            self.access,
            factory.sealed,
            factory.moderation,
            self._filled,
            self.large_work,
            self.config.input_policy,
        )

    def _stored_conversations(self, history: HistoryReader) -> Conversations:
        return Conversations(
            self.archive,
            history,
            self.access,
            self._factory.sealed,
            self.config.request_limits,
            self.large_work,
            self.intervals,
            self.config.input_policy,
            refuse_unknown=self._parser.refuse_unknown,
        )

    def _background_jobs(self, records: Records, sealer: Sealer) -> BackgroundJobs:
        return BackgroundJobs(
            records,
            self.archive,
            self.access,
            self._factory,
            limits=WorkerLimits.of(self.config.background),
            input_quota=self.config.limits.job_input_quota,
            event_log_seconds=self.config.background.event_log_seconds,
            parse=self._parser.parse_stored,
            sealer=sealer,
            intervals=self.intervals,
            share_of=self.config.share_of,
        )

    def _foreground_responses(self, admission: Admission) -> ForegroundResponses:
        config = self.config
        return ForegroundResponses(
            self._factory,
            self.archive,
            self.jobs.foreground,
            admission,
            (config.finish_seconds, config.leave_seconds),
            config.stream_refusal_seconds,
            self.intervals,
        )

    def _server_lifecycle(self, records: Records) -> ServerLifecycle:
        gauge_values = GaugeValues(
            records, self._durability, self._integrity, self.jobs, self._foreground, self.streams, self.sockets
        )
        places = watched(self.config.watched_certificates, self.config.store)
        certificates = CertificateCheck(places, self.config.certificate_warning_days, self.intervals)
        return ServerLifecycle(
            self.config,
            self.jobs,
            self._foreground,
            self._dependencies,
            [
                *self._sweepers,
                self._secret_check,
                ClockCheck(self.clock, self.intervals),
                self._durability,
                self._integrity,
                self._providers,
                certificates,
            ],
            self._factory.telemetry,
            GaugeSources(
                gauge_values.counts,
                gauge_values.store,
                self._providers.up,
                certificates.remaining,
                lambda: self.clock.difference,
            ),
            self.processes,
        )

    def _checks_of_readiness(self) -> Readiness:
        checks: dict[str, ReadinessCheck] = {
            "store": self._health.store,
            "worker": self._health.worker,
            "model_server": self._providers.is_ready,
        }
        return Readiness(
            checks, lambda: self._foreground.finishing.begun, self.intervals, notes=self._notes, faults=self._faults
        )

    def _notes(self) -> dict[str, str]:
        durability = self._durability
        notes = {
            "secrets": "different" if self._secret_check.differs else "",
            "sweep": "held" if any(each.held for each in self._sweepers) else "",
            "durability": "volatile" if durability.volatile else "" if durability.known else "unknown",
            "model_servers": self._ill_model_servers(),
        }
        return {name: note for name, note in notes.items() if note}

    def _ill_model_servers(self) -> str:
        ill, all_of_them = self._providers.unavailable, len(self._providers.up())
        # If all are, the part `model_server` says so.
        return f"{ill} of {all_of_them} unavailable" if 0 < ill < all_of_them else ""

    def _faults(self) -> dict[str, str]:
        faults = {
            "clock": "wrong" if self.clock.is_wrong else "",
            "durability": "volatile" if self._durability.refused else "",
            "integrity": "damaged" if self._integrity.damaged else "",
        }
        return {name: fault for name, fault in faults.items() if fault}

    async def prepare(self) -> None:
        """Read the store's clock and settings before the first request, in any event loop.

        The store need not answer yet.

        Raises:
            VolatileStore: it may lose responses, and the configuration does not accept that.
        """
        try:
            with suppress(ApiError):
                await self.clock.read()
                await self._durability.refuse()
        finally:
            await self.archive.close()

    def start(self) -> bool:
        """Start the background tasks in the running event loop; return False if that was done before."""
        return self._lifecycle.start()

    async def health(self) -> Json:
        """Return the `status` of this server, and a `message` if it is not healthy."""
        self.start()
        return await self._health.report()

    async def ready(self) -> ReadinessReport:
        """Return whether requests should be sent to this server. Anyone may ask: it reveals no names or addresses."""
        self.start()
        return await self.processes.ready()

    async def create(
        self, body: Any, key: str | None = None, hold: Hold | None = None
    ) -> ForegroundRun | DetachedResponse:
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
        return await self._in_turn(partial(self._created, body, key, hold))

    async def _in_turn[Created: ForegroundRun | DetachedResponse](
        self, create: Callable[[], Awaitable[Created]]
    ) -> Created:
        """Create a response once it is the user's turn, which lasts until the model server has accepted it."""
        turn = await self._beginnings.take()
        try:
            created = await create()
        except BaseException:
            turn.end()
            raise
        if isinstance(created, ForegroundRun):
            created.on_accepted(turn.end)
        else:
            turn.end()
        return created

    async def _created(self, body: Any, key: str | None, hold: Hold | None) -> ForegroundRun | DetachedResponse:
        request = await self._parser.parse(body)
        if key is None:
            return await self._create(request, body, None, hold)
        if not request.store:
            raise bad_request(
                "An Idempotency-Key needs a stored response: omit 'store: false', or send no key.",
                "store",
                "unsupported_value",
            )
        claim = await in_thread_if_large(partial(IdempotencyClaim.of, self.access.current_user(), key, body), body)
        while True:
            if joined := await self._detached.find(claim, hold):
                return joined
            with suppress(Conflict):
                return await self._claimed(request, body, claim, hold)

    async def _claimed(
        self, request: CreateRequest, body: Json, claim: IdempotencyClaim, hold: Hold | None
    ) -> ForegroundRun | DetachedResponse:
        try:
            return await self._create(request, body, claim, hold)
        except OutcomeUnknown as error:
            message = (
                "The response store did not confirm whether it stored this request. Send it again with the same key."
            )
            raise ApiError(503, message, retry_after=1) from error

    async def create_on_connection(
        self, body: Any, connection: ConnectionOptions, hold: Hold | None = None
    ) -> ForegroundRun:
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
        return await self._in_turn(partial(self._created_on_connection, body, connection, hold))

    async def _created_on_connection(
        self, body: Any, connection: ConnectionOptions, hold: Hold | None
    ) -> ForegroundRun:
        request = await self._parser.parse(body, may_be_empty=not connection.generate)
        if not request.store:
            await connection.memory.check(request.input_items)
        asks_model = connection.generate or request.prewarms

        async def run() -> ForegroundRun:
            start = await self._resolver.resolve(request, connection.memory, may_be_empty=not asks_model, hold=hold)
            return await self._foreground.run(start, connection)

        return await (self._admitted(request, run) if asks_model else run())

    async def _create(
        self, request: CreateRequest, body: Json, claim: IdempotencyClaim | None, hold: Hold | None
    ) -> ForegroundRun | DetachedResponse:
        async def create() -> ForegroundRun | DetachedResponse:
            start = await self._resolver.resolve(request, hold=hold)
            if request.background or claim:
                return await self._detached.create(start, body, claim)
            return await self._foreground.run(start)

        return await self._admitted(request, create)

    async def _admitted[Created: ForegroundRun | DetachedResponse](
        self, request: CreateRequest, create: Callable[[], Awaitable[Created]]
    ) -> Created:
        """Create a response within the limits of its user.

        Raises:
            ApiError: 429, a limit is reached. 403, limits of the key cannot be enforced.
        """
        user = self.access.current_user()
        if self._dependencies.admit is None:
            if user.limits:
                message = "The key of this request has limits, which this server cannot enforce: use another key."
                raise ApiError(403, message, code="insufficient_permissions")
            return await create()
        permit = await self._dependencies.admit(user, request)
        try:
            created = await create()
        except BaseException:
            permit.release()
            raise
        created.headers = permit.headers
        if isinstance(created, ForegroundRun):
            created.on_ended(lambda _: permit.release())
        else:
            permit.release()
        return created

    async def delete(self, response_id: str) -> None:
        """Delete a response; content that later responses refer to stays until they are deleted too."""
        response = await self.reader.find(response_id, "delete")
        if isinstance(response, RunningResponse):
            if await self.jobs.foreground.delete(response):
                return
        elif response.response["status"] in UNFINISHED:
            await self.jobs.cancel(response_id)
        await until_known(
            lambda _: self.archive.delete(response_id),
            f"The response store did not confirm whether it deleted response '{response_id}': delete it again. "
            "A 404 means that it was deleted.",
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
        stored = await self.reader.find(response_id, "update")
        if not stored.response["background"]:
            raise bad_request("Cannot cancel a synchronous response.")
        if stored.response["status"] in UNFINISHED:
            await self.jobs.cancel(response_id)
        return await self.reader.retrieve(response_id, hold)

    async def shutdown(self) -> None:
        """Stop the background tasks, and close the dependencies and the store; the host calls it when it stops."""
        await self._lifecycle.stop()
        await self.archive.ends.stop()
        self.large_work.close()
        await self._dependencies.close()
        await self.archive.close()


def _parser(config: ResponsesConfig, large_work: LargeWork) -> RequestParser:
    refuse_unknown = config.unknown_fields == "refuse"
    return RequestParser(config.passthrough, config.request_limits, large_work, refuse_unknown=refuse_unknown)


def _history_bounds(limits: Limits) -> HistoryBounds:
    return HistoryBounds(limits.request_bytes, limits.history_of_one, _max_input_bytes(limits))


def _max_input_bytes(limits: Limits) -> int:
    return limits.request_bytes + limits.bodies.json_values * VALUE_BYTES


def _archive(
    records: Records, config: ResponsesConfig, clock: StoreClock, intervals: Intervals, dependencies: Dependencies
) -> Archive:
    return Archive(
        records,
        retention=config.retention_seconds,
        clock=clock,
        # A worker reads the history of a background response together with its input.
        recent_bytes=config.limits.history_of_one + _max_input_bytes(config.limits),
        scan_rows=config.limits.scanned_responses,
        scan_seconds=intervals.list_scan_seconds,
        decoder=Decoder(config.limits.decoding_bytes),
        at_end=dependencies.at_end,
        on_end=dependencies.on_end,
    )


def _sweepers(records: Records, archive: Archive, clock: StoreClock, config: ResponsesConfig) -> list[Sweeper]:
    guard = SweepGuard(records, archive.count, config.max_swept_share)
    sweepers: list[Sweeper] = [ResponseSweeper(archive, clock, guard, config.sweep_seconds)]
    if seconds := config.conversation_retention_seconds:
        guard = conversation_guard(records, archive.conversations, config.max_swept_share)
        rule = Retention(seconds, clock)
        sweepers.append(ConversationSweeper(archive.conversations, rule, clock, guard, config.sweep_seconds))
    return sweepers
