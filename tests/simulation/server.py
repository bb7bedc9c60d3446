"""A server of a simulation: the real service with its features, in a process of its own, without HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from io import BytesIO
from typing import Any, BinaryIO, Final

import orjson

from llama_stack_responses.admission import Admission
from llama_stack_responses.concurrency.fair_budget import FairBudget
from llama_stack_responses.concurrency.share import equal_share
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.access import Action, Kind
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.features.batches.dispatcher import Dispatcher as BatchDispatcher
from llama_stack_responses.features.batches.ends import LineEnds, Tries
from llama_stack_responses.features.batches.model_slots import ModelSlots
from llama_stack_responses.features.batches.parts import Parts as BatchParts
from llama_stack_responses.features.batches.rows import WORK
from llama_stack_responses.features.batches.settings import Batches
from llama_stack_responses.features.batches.stored_batches import StoredBatches
from llama_stack_responses.features.usage.counting import count
from llama_stack_responses.features.usage.naming import Bounds
from llama_stack_responses.features.usage.tables import Tables
from llama_stack_responses.features.webhooks.deliveries import Deliveries
from llama_stack_responses.features.webhooks.dispatcher import Dispatcher as WebhookDispatcher
from llama_stack_responses.features.webhooks.dispatcher import Retries
from llama_stack_responses.features.webhooks.endpoints import Endpoints
from llama_stack_responses.features.webhooks.opened import recorded, recorded_of_object
from llama_stack_responses.features.webhooks.rows import DAY_SECONDS
from llama_stack_responses.features.webhooks.sending import Answer
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.generation.dependencies import Dependencies
from llama_stack_responses.inputs.attachments import open_attachments
from llama_stack_responses.inputs.files import NoFiles
from llama_stack_responses.inputs.moderation import NoModeration
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.lifecycle.clock_check import ClockCheck
from llama_stack_responses.lifecycle.sweeper import ConversationSweeper, ResponseSweeper
from llama_stack_responses.process_pool.pool import WorkerPool
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.service.idempotency import IdempotencyKeys
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.clock import StoreClock
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.ends import AtEnd
from llama_stack_responses.store.object_events import ObjectEvents
from llama_stack_responses.store.placement import Placement
from llama_stack_responses.store.records import partitions_of
from llama_stack_responses.store.retention import Retention
from llama_stack_responses.store.sweep_guard import SweepGuard, conversation_guard
from llama_stack_responses.telemetry.instrumentation import Telemetry
from llama_stack_responses.tools.registry import HostedTool, HostedToolServices
from tests.simulation.faults import Faults
from tests.simulation.ledger import Ledger
from tests.simulation.model import SimulatedModel, SimulatedTools
from tests.simulation.store import SharedStore, remote_records
from tests.simulation.world import Process, World

type Json = dict[str, Any]

SECRET: Final = bytes(range(32))
RETENTION_DAYS: Final = 1.0
EVENT_LOG_SECONDS: Final = 60.0
CONFIG: Final = ResponsesConfig.model_validate(
    {
        "retention_days": RETENTION_DAYS,
        "sweep_seconds": 60.0,
        "max_swept_share": 1.0,
        "background": {"event_log_seconds": EVENT_LOG_SECONDS, "concurrency": 4},
        "host_shortcuts": False,
    }
)
_BATCHES: Final = Batches(ahead=4, retry_seconds=1.0, retention_days=RETENTION_DAYS)
_KEPT_SECONDS: Final = 2 * DAY_SECONDS
_NETWORK_SECONDS: Final = 0.02
_DROP_SECONDS: Final = 0.01
"""How long a message takes at most, and until a client notices that its server has ended."""
_user: ContextVar[Owner] = ContextVar("user", default=ANONYMOUS)


class ConnectionLost(Exception):  # noqa: N818 - what a client notices
    """The server is gone, or its answer."""


class SimulatedAccess:
    """The access of a stack whose users may do everything with what is theirs."""

    def current_user(self) -> Owner:
        return _user.get()

    def provider_credentials(self) -> Mapping[str, Any]:
        return {}

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        @contextmanager
        def acting() -> Iterator[None]:
            token = _user.set(owner)
            try:
                yield
            finally:
                _user.reset(token)

        return acting()

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        return owner.identity == _user.get().identity


@dataclass
class SharedFiles:
    """The file store, which never fails."""

    contents: dict[str, bytes] = field(default_factory=dict)

    async def open(self, file_id: str, max_bytes: int) -> BinaryIO:
        if file_id not in self.contents:
            raise ApiError(400, "The file was not found.", code="file_not_found")
        return BytesIO(self.contents[file_id])

    async def write(self, name: str, content: BinaryIO, seconds: int | None) -> str:
        content.seek(0)
        file_id = f"file-{len(self.contents)}"
        self.contents[file_id] = content.read()
        return file_id

    async def delete(self, file_id: str) -> None:
        self.contents.pop(file_id, None)


@dataclass(frozen=True, slots=True)
class Sender:
    """Posts webhooks to receivers, some of which do not accept them."""

    process: Process
    ledger: Ledger
    faults: Faults

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post a message, which arrives whatever becomes of its sender meanwhile."""
        if self.process.buried:
            return Answer(None, "The simulation is over.")
        world, answer = self.process.world, self.process.create_future()
        accepted = world.random.random() >= self.faults.receiver_fails

        def arrive() -> None:
            self.ledger.on_message(url, headers["webhook-id"], orjson.loads(body), accepted=accepted)
            world.after(there, reply, self.process)

        def reply() -> None:
            if not answer.done():
                answer.set_result(Answer(200, "") if accepted else Answer(503, "Not now."))

        there = world.random.uniform(0.0, 0.2)
        world.after(there, arrive)
        sent: Answer = await answer
        return sent


class _Service(OpenAIResponsesImpl):
    """The service, on virtual time and without the signals and threads of a process."""

    def __init__(self, process: Process, *given: Any) -> None:
        self._process = process
        super().__init__(*given)

    @cached_property
    def clock(self) -> StoreClock:
        """The store's clock."""
        return StoreClock(self._records, wall=self._process.wall, elapsed=self._process.time)

    def start(self) -> bool:
        """Do nothing: the simulation starts the tasks."""
        return False


class Server:
    """A server, until it is killed or stopped.

    Args:
        world: the world.
        name: its name; one that is started again has another.
        store: the store that all servers share.
        ledger: is told of what it does.
        files: the file store.
        intervals: its intervals.
        pause: seconds between two chunks of the model at most.
        features: whether it runs batches and delivers webhooks, which look for work all the time.
    """

    def __init__(
        self,
        world: World,
        name: str,
        store: SharedStore,
        ledger: Ledger,
        files: SharedFiles,
        intervals: Intervals,
        pause: float,
        *,
        features: bool,
    ) -> None:
        self.process = process = Process(world, name)
        self.records = remote_records(store, process)
        self.sealer, self.access, self.telemetry = Sealer([SECRET]), SimulatedAccess(), Telemetry()
        self.accepts = True
        self._calls: dict[Callable[[], None], None] = {}
        events = ObjectEvents()
        self.batches = StoredBatches(self.records, RETENTION_DAYS * DAY_SECONDS, events)
        self._batch_work = BatchDispatcher(self.records)
        self.endpoints = Endpoints(self.records, self.sealer)
        self.deliveries = Deliveries(self.records, self.endpoints, {}, _KEPT_SECONDS)
        self._webhooks = WebhookDispatcher(
            self.records,
            self.endpoints,
            self.deliveries,
            {},
            Sender(process, ledger, store.faults),  # type: ignore[arg-type]
            Retries(1.0, 600.0),
            self.telemetry,
        )
        events.add(partial(recorded_of_object, _KEPT_SECONDS), lambda event: self._webhooks.happened(event.id))
        ends = LineEnds(Tries(_BATCHES.tries, _BATCHES.retry_seconds), self.telemetry)
        at_end: list[AtEnd] = [ends.ops, partial(recorded, _KEPT_SECONDS)] if features else []
        self._usage = Tables(self.records, Decoder(), Bounds(10, 10), None) if store.replicated else None
        if self._usage:
            at_end.append(partial(count, None, Placement(partitions_of(self.records))))
        pool = WorkerPool(CONFIG.files.pool_limits)
        tools = SimulatedTools(process, ledger, pause)
        dependencies = Dependencies(
            SimulatedModel(process, ledger, store.faults, pause),
            open_attachments(NoFiles(), CONFIG, pool, Admission(CONFIG.files.content_quota), AddressPolicy()),
            None,
            HostedToolServices(of_features={"web_search": HostedTool(tools.make)}),
            NoModeration(),
            self.telemetry,
            pool,
            at_end=at_end,
            on_end=[self._batch_work.ended, self._webhooks.ended],
        )
        self.impl = _Service(process, CONFIG, self.records, self.sealer, dependencies, self.access, intervals)
        self._webhooks.work_with(self.impl.jobs)
        if self._usage:
            self._usage.work_with(self.impl.jobs.watched)
        self._batch_work.parts = BatchParts(
            impl=self.impl,
            inference=None,  # type: ignore[arg-type]
            slots=FairBudget(4),
            model_slots=ModelSlots(lambda _: None),
            memory=FairBudget(2**28),
            batches=self.batches,
            places=self.impl.jobs.watched(WORK),
            keys=IdempotencyKeys(self.records),
            files=files,
            sealer=self.sealer,
            settings=_BATCHES,
            share_of=equal_share,
            telemetry=self.telemetry,
        )
        guard = SweepGuard(self.records, self.impl.archive.count, CONFIG.max_swept_share, lambda: world.now)
        archive, clock, interval = self.impl.archive, self.impl.clock, CONFIG.sweep_seconds
        talks = conversation_guard(self.records, archive.conversations, CONFIG.max_swept_share, lambda: world.now)
        rule = Retention(RETENTION_DAYS * DAY_SECONDS, clock)
        self._periodic = [
            ClockCheck(clock, intervals),
            ResponseSweeper(archive, clock, guard, interval),
            ConversationSweeper(archive.conversations, rule, clock, talks, interval),
            *([self._usage] if self._usage else ()),
        ]
        self._features = features
        ledger.workers[self.impl.jobs.foreground.worker] = name
        process.start(self._start)

    @property
    def alive(self) -> bool:
        """Whether it takes requests, as far as a load balancer can see."""
        return self.process.alive and self.accepts

    async def _start(self) -> None:
        self.process.log("starts")
        self.impl.jobs.start()
        for each in self._periodic:
            each.start()
        if self._features:
            self._batch_work.start()
            self._webhooks.start()

    def look(self, batch_id: str) -> None:
        """Have it look for work for a batch."""
        self._batch_work.look(batch_id)

    def kill(self) -> None:
        """End it without warning."""
        self.process.kill()
        self._drop_calls()

    def stop(self) -> None:
        """Have it stop in order, as on SIGTERM."""
        self.accepts = False
        self.process.log("is stopped")

        async def stop() -> None:
            self.impl.jobs.worker.hand_over()
            self.impl.jobs.events.close()
            for each in self._periodic:
                await each.stop()
            await self.impl.jobs.worker.stop()
            await self._batch_work.stop()
            await self._webhooks.stop()
            self.process.log("has stopped")
            self.process.end()
            self._drop_calls()

        self.process.start(stop)

    def _drop_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for each in calls:
            each()

    async def call[Result](self, client: Process, user: Owner, work: Callable[[Server], Awaitable[Result]]) -> Result:
        """Return what a handler returns for a client, in whose process this is called.

        Raises:
            ConnectionLost: the server has ended.
        """
        if not self.alive:
            raise ConnectionLost
        world, answer = client.world, client.create_future()

        def reply(set_answer: Callable[[], None]) -> None:
            self._calls.pop(drop, None)
            if not answer.done():
                set_answer()

        def drop() -> None:
            world.after(_DROP_SECONDS, partial(reply, lambda: answer.set_exception(ConnectionLost())), client)

        async def handle() -> None:
            _user.set(user)
            try:
                set_answer = partial(answer.set_result, await work(self))
            except Exception as raised:  # noqa: BLE001 - the client gets it
                set_answer = partial(answer.set_exception, raised)
            if not self.process.buried:
                world.after(world.random.uniform(0.0, _NETWORK_SECONDS), partial(reply, set_answer), client)

        self._calls[drop] = None
        world.after(world.random.uniform(0.0, _NETWORK_SECONDS), partial(self.process.start, handle), self.process)
        result: Result = await answer
        return result
