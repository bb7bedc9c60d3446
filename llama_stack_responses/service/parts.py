"""The parts of the service. Each is made once, when it is first used, from those that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from ..admission import Admission, InFlightCounter
from ..chat.adaptation.adaptation import Step
from ..concurrency.large_work import LargeWork
from ..concurrency.turns import Turns
from ..config import ResponsesConfig
from ..config.limits import Limits
from ..core.access import Access
from ..core.json_values import VALUE_BYTES
from ..generation.dependencies import Dependencies
from ..generation.factory import GenerationFactory, build_factory
from ..inputs.history import HistoryBounds, HistoryReader
from ..inputs.prompts import with_prompt
from ..inputs.request_parser import RequestParser
from ..inputs.resolver import RequestResolver
from ..intervals import DEFAULT, Intervals
from ..jobs.background import BackgroundJobs
from ..jobs.worker import WorkerLimits
from ..lifecycle.shutdown import ShutdownCoordinator
from ..requests.request import CreateRequest
from ..sealing.sealer import Sealer
from ..store.archive import Archive
from ..store.clock import StoreClock
from ..store.decoder import Decoder
from ..store.records import Records, reader_of
from ..telemetry.gauges import GaugeSources
from ..telemetry.model_failures import LastFailures
from .compact import Compaction
from .conversations import Conversations
from .detached_responses import DetachedResponses
from .foreground_responses import ForegroundResponses
from .gauge_values import GaugeValues
from .health import Health
from .idempotency import IdempotencyKeys
from .limited_requests import LimitedRequests
from .process_set import ProcessSet
from .readiness import Readiness, ReadinessCheck
from .refusals import Refusals
from .response_reader import ResponseReader
from .server_checks import ServerChecks
from .server_lifecycle import ServerLifecycle
from .token_counting import TokenCounting

_BEGINNINGS: Final = 8
"""Responses that begin at a time, until the model server has accepted them; users take turns."""
_BEGINNINGS_PER_USER: Final = 1
"""Those of one authenticated user: in the time in which the request of another user begins, one of theirs does too."""
_BEGINNING_SECONDS: Final = 0.001
"""Time after which a beginning that waits, for the store or a model server, no longer counts if the server is idle."""


class Parts:
    """The parts of the service, to which a further one is added as a property.

    Nothing is bound to an event loop before the first request: the host creates providers in another event loop than
    the one that serves.

    Args:
        config: the provider's configuration.
        records: the store.
        sealer: seals values for users, and opens them.
        dependencies: the services of the stack.
        access: the identity and permissions of the caller.
        intervals: intervals and timeouts of this server.
    """

    def __init__(
        self,
        config: ResponsesConfig,
        records: Records,
        sealer: Sealer,
        dependencies: Dependencies,
        access: Access,
        intervals: Intervals = DEFAULT,
    ) -> None:
        self.config, self.intervals, self.access, self.sealer = config, intervals, access, sealer
        self._records, self._dependencies = records, dependencies
        self._lifecycle  # noqa: B018  (what is wrong in the configuration is found now, not with the first request)

    @cached_property
    def streams(self) -> Admission:
        """Counts the open event streams and WebSockets."""
        return Admission(self.config.limits.stream_quota)

    @cached_property
    def sockets(self) -> InFlightCounter:
        """Counts the WebSockets among them."""
        return InFlightCounter()

    @cached_property
    def _beginnings(self) -> Turns:
        return Turns(_BEGINNINGS, _BEGINNINGS_PER_USER, _BEGINNING_SECONDS)

    @cached_property
    def _admission(self) -> Admission:
        return Admission(self.config.limits.response_quota)

    @cached_property
    def clock(self) -> StoreClock:
        """The store's clock."""
        return StoreClock(self._records)

    @cached_property
    def archive(self) -> Archive:
        """The stored responses."""
        return self._archive_of(self._records, Decoder(self.config.limits.decoding_bytes))

    def _archive_of(self, records: Records, decoder: Decoder) -> Archive:
        config = self.config
        return Archive(
            records,
            retention=config.retention_seconds,
            clock=self.clock,
            knows_time=lambda: self.clock.is_known,
            # A worker reads the history of a background response together with its input.
            recent_bytes=config.limits.history_of_one + _max_input_bytes(config.limits),
            scan_rows=config.limits.scanned_responses,
            scan_seconds=self.intervals.list_scan_seconds,
            decoder=decoder,
            at_end=self._dependencies.at_end,
            on_end=self._dependencies.on_end,
        )

    @cached_property
    def _history(self) -> HistoryReader:
        return self._history_of(self.archive)

    def _history_of(self, archive: Archive) -> HistoryReader:
        limits = self.config.limits
        bounds = HistoryBounds(limits.request_bytes, limits.history_of_one, _max_input_bytes(limits))
        return HistoryReader(archive, self.access, bounds)

    @cached_property
    def large_work(self) -> LargeWork:
        """Runs large work of requests in threads, users in turn."""
        return LargeWork()

    @cached_property
    def _parser(self) -> RequestParser:
        config = self.config
        refuse_unknown = config.unknown_fields == "refuse"
        return RequestParser(config.passthrough, config.request_limits, self.large_work, refuse_unknown=refuse_unknown)

    @cached_property
    def _factory(self) -> GenerationFactory:
        return build_factory(
            self.config,
            self._dependencies,
            self._records,
            self.sealer,
            self.large_work,
            self._history.prompt_of,
            self.clock,
        )

    @cached_property
    def _resolver(self) -> RequestResolver:
        return RequestResolver(
            self._history,
            self.access,
            self._factory.sealed,
            self._factory.moderation,
            self._filled,
            self.large_work,
            self.config.input_policy,
        )

    @cached_property
    def conversations(self) -> Conversations:
        """The stored conversations."""
        return Conversations(
            self.archive,
            self._history,
            self.access,
            self._factory.sealed,
            self.config.request_limits,
            self.large_work,
            self.intervals,
            self.config.input_policy,
            refuse_unknown=self._parser.refuse_unknown,
            admit_items=self._dependencies.admit_items,
            clock_ready=self.clock.ready,
        )

    @cached_property
    def counting(self) -> TokenCounting:
        """Counts the tokens of requests."""
        return TokenCounting(self._factory, self._resolver, self._parser)

    @cached_property
    def compaction(self) -> Compaction:
        """Compacts conversations."""
        return Compaction(
            self._factory,
            self._resolver,
            self._parser,
            self._admission,
            self.archive,
            self._foreground,
            self.limited,
        )

    @cached_property
    def limited(self) -> LimitedRequests:
        """Admits requests within the limits of their users."""
        return LimitedRequests(self._dependencies.admit, self.archive, self.access)

    @cached_property
    def jobs(self) -> BackgroundJobs:
        """The detached responses."""
        return BackgroundJobs(
            self._records,
            self.archive,
            self.access,
            self._factory,
            limits=WorkerLimits.of(self.config.background),
            input_quota=self.config.limits.job_input_quota,
            event_log_seconds=self.config.background.event_log_seconds,
            parse=self._parser.parse_stored,
            sealer=self.sealer,
            beginnings=self._beginnings,
            intervals=self.intervals,
            share_of=self.config.share_of,
        )

    @cached_property
    def reader(self) -> ResponseReader:
        """Reads responses."""
        return ResponseReader(self.archive, self._history, self.jobs, self.access, self._reader_of_moved)

    def _reader_of_moved(self) -> ResponseReader:
        """Return what reads a response that is at another place, and leaves it there."""
        archive = self._archive_of(reader_of(self._records), self.archive.decoder)
        return ResponseReader(archive, self._history_of(archive), self.jobs, self.access)

    @cached_property
    def refusals(self) -> Refusals:
        """Tells the features which requests were refused."""
        return Refusals(
            self._dependencies.on_refused, self._dependencies.activity, self.access.current_user, self.clock
        )

    @cached_property
    def detached(self) -> DetachedResponses:
        """Creates the responses that need no connection."""
        return DetachedResponses(
            self._factory,
            self._parser,
            self.jobs,
            IdempotencyKeys(self._records),
            self.archive,
            self.reader,
            self.access,
            self.config.stream_refusal_seconds,
        )

    @cached_property
    def _foreground(self) -> ForegroundResponses:
        config = self.config
        return ForegroundResponses(
            self._factory,
            self.archive,
            self.jobs.foreground,
            self._admission,
            self._beginnings,
            (config.finish_seconds, config.leave_seconds),
            config.stream_refusal_seconds,
            self.intervals,
        )

    @cached_property
    def checks(self) -> ServerChecks:
        """What this server checks at intervals."""
        return ServerChecks(
            self.config,
            self._records,
            self.archive,
            self.clock,
            self.sealer,
            self._dependencies,
            self.intervals,
            lambda: self._foreground.running + self.jobs.worker.running,
        )

    @cached_property
    def _health(self) -> Health:
        return Health(self._records, self.jobs.worker)

    @cached_property
    def processes(self) -> ProcessSet:
        """This process and those beside it, as one server."""
        parts: dict[str, ReadinessCheck] = {
            "store": self._health.store,
            "worker": self._health.worker,
            "model_server": self.checks.providers.is_ready,
        }
        readiness = Readiness(
            parts,
            lambda: self._foreground.finishing.begun,
            self.intervals,
            notes=self.checks.notes,
            faults=self.checks.faults,
        )
        return ProcessSet(readiness, self._factory.activity, self.jobs.live_responses, self.intervals)

    @cached_property
    def gauge_sources(self) -> GaugeSources:
        """The numbers that metrics show."""
        checks = self.checks
        values = GaugeValues(
            self._records,
            checks.durability,
            checks.integrity,
            self.jobs,
            self._foreground,
            self.streams,
            self.sockets,
        )
        return GaugeSources(
            values.counts,
            values.store,
            checks.providers.up,
            checks.certificates.remaining,
            lambda: self.clock.difference,
            self._factory.queues.counts,
        )

    @cached_property
    def _lifecycle(self) -> ServerLifecycle:
        return ServerLifecycle(
            self.config,
            self.jobs,
            self._foreground,
            self._dependencies,
            self.checks.periodic,
            self._factory.telemetry,
            self.gauge_sources,
            self.processes,
        )

    @property
    def model_failures(self) -> LastFailures:
        """The last failures of model servers."""
        return self._factory.telemetry.failures

    async def adaptations_of(self, model: str) -> Sequence[Step]:
        """Return the changes that all chat requests to a model get.

        Raises:
            ApiError: 503, the store does not answer.
        """
        return await self._factory.servers.steps_of(model)

    @property
    def shutdown_coordinator(self) -> ShutdownCoordinator:
        """Notifies open connections of the shutdown."""
        return self._lifecycle.shutdown

    def abort_connection(self, scope: Mapping[str, Any]) -> None:
        """Abort the connection of a request, identified by its ASGI scope, without waiting for the client."""
        self._lifecycle.abort_connection(scope)

    async def _filled(self, request: CreateRequest) -> CreateRequest:
        """Return the request with its prompt filled in, and what the features fill in."""
        characters = self.config.limits.prompt_characters
        request = await with_prompt(request, self._dependencies.prompts, characters)
        for fill in self._dependencies.fills:
            request = await fill(request, self.large_work)
        return request


def _max_input_bytes(limits: Limits) -> int:
    return limits.request_bytes + limits.bodies.json_values * VALUE_BYTES
