"""A store, and processes that run background responses on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Final

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.concurrency.turns import Turns
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.access import Action, Kind
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.moderation.by_checks import ModerationByChecks
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.generation.factory import GenerationFactory
from llama_stack_responses.generation.loop import GenerationLimits
from llama_stack_responses.generation.token_counts import TokenCounts
from llama_stack_responses.inputs.attachments import open_attachments
from llama_stack_responses.inputs.files import NoFiles
from llama_stack_responses.inputs.history import HistoryBounds, HistoryReader
from llama_stack_responses.inputs.prompts import Prompts, with_prompt
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.items.listed_items import with_ids
from llama_stack_responses.jobs.background import BackgroundJobs
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.held_inputs import HeldInputs
from llama_stack_responses.jobs.job import Job
from llama_stack_responses.jobs.job_secrets import JobSecrets
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.jobs.runner import JobRunner
from llama_stack_responses.jobs.shared_commits import SharedCommits
from llama_stack_responses.jobs.work_class import BACKGROUND, Work
from llama_stack_responses.jobs.worker import WorkerLimits
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.sealing.sealed_items import SealedItems
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Put, Records
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.response import new_response
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Makers
from tests.support.generations import model_servers
from tests.support.inference import FakeInference, Round, call, finish, reasoning, text
from tests.support.moderation import FakeModerator, checks
from tests.support.records import WatchedRecords
from tests.support.strict import check_stream

type Json = dict[str, Any]

ID: Final = "resp_1"
ANNA: Final = Owner("anna", {"teams": ["search"]})
SECRET: Final = bytes(range(32))
KEEP: Final = 600.0
PATIENCE: Final = 60.0
"""Longer than any test here takes."""

ROUNDS: Final[Sequence[Round]] = (
    [reasoning("hm"), text("Let me"), text(" look."), call("hidden", "h1"), finish("tool_calls", tokens=5)],
    [text("And"), text(" again."), call("hidden", "h1"), finish("tool_calls", tokens=6)],
    [text("Hel"), text("lo"), finish(tokens=7)],
)
"""Three model rounds. The first two call a tool that does not exist."""

SAID: Final = ["Let me look.", "And again.", "Hello"]


HURRIED: Final = Intervals(
    heartbeat_seconds=0.005,
    grace_seconds=0.0,
    poll_seconds=0.001,
    fast_poll_seconds=0.001,
    event_poll_seconds=0.001,
    event_batch_seconds=0.0,
    store_retry_seconds=0.001,
)
"""Almost no pause between batches, retries, polls and heartbeats."""


class OneUser:
    """Access of a stack that has one user.

    Attributes:
        acted: the owners and keys that work was done for.
    """

    def __init__(self) -> None:
        self.acted: list[tuple[Owner, Mapping[str, Any]]] = []

    def current_user(self) -> Owner:
        return ANNA

    def provider_credentials(self) -> Mapping[str, Any]:
        return {}

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        @contextmanager
        def acting() -> Any:
            self.acted.append((owner, keys))
            yield

        return acting()

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        return True


def shared(**options: Any) -> WatchedRecords:
    """Return records that yield to the event loop before and after each call."""

    async def turn(_: str) -> None:
        await asyncio.sleep(0)

    return WatchedRecords(MemoryRecords(**options), before=turn, after=turn)


LIMITS: Final = GenerationLimits(rounds=8, idle_seconds=30.0, tool_seconds=30.0)


class ProcessHarness:
    """One process on a store.

    Args:
        records: the store.
        rounds: the provider's answers to this process.
        accept: an event that must be set before the provider accepts a request.
        moderator: the moderator of inputs and outputs.
        intervals: the poll, heartbeat and retry intervals of this process.
        beginning_seconds: the longest turn of a response that begins, while the event loop is idle.
    """

    def __init__(
        self,
        records: Records,
        *rounds: Round,
        limits: GenerationLimits = LIMITS,
        makers: Makers | None = None,
        accept: asyncio.Event | None = None,
        moderator: FakeModerator | None = None,
        intervals: Intervals = HURRIED,
        beginning_seconds: float = 0.001,
    ) -> None:
        self.intervals = intervals
        self.records = records
        self.inference = FakeInference(*rounds, accept=accept)
        self.ended: list[Ended] = []
        self.archive = Archive(records, on_end=[self.ended.append])
        self.access = OneUser()
        attachments = open_attachments(
            NoFiles(),
            ResponsesConfig(),
            WorkerPool(PoolLimits()),
            Admission(ResponsesConfig().files.content_quota),
            AddressPolicy(),
        )
        self.factory = GenerationFactory(
            self.inference,
            attachments,
            makers or client_tools(),
            [],
            limits,
            SealedItems(Sealer([SECRET]), 2**20),
            TokenCounts(self.inference, []),
            ModerationByChecks(checks(moderator)),
            model_servers(self.inference),
            LargeWork(),
            WorkerPool(PoolLimits()),
            HistoryReader(self.archive, self.access, HistoryBounds(2**20, 2**20, 2**20)).prompt_of,
        )
        self.sealer = Sealer([SECRET])
        self.beginnings = Turns(8, 1, beginning_seconds)
        self.notifier = Notifier()
        self.jobs = JobQueue(records, 100)
        self.event_log = EventLog(records, self.notifier, intervals.event_poll_seconds)

    def background_jobs(
        self,
        *,
        size: int = 2,
        waiting: int = 100,
        share: int = 100,
        deferred: int = 100,
        held_bytes: int = 2**30,
        at_once: Mapping[str, int] = MappingProxyType({}),
    ) -> BackgroundJobs:
        """Return the background jobs of this process, not yet started."""
        return BackgroundJobs(
            self.records,
            self.archive,
            self.access,
            self.factory,
            limits=WorkerLimits(size, share, deferred, waiting, waiting, at_once),
            input_quota=Quota("inputs", held_bytes, held_bytes),
            event_log_seconds=KEEP,
            parse=parse_create,
            sealer=self.sealer,
            beginnings=self.beginnings,
            intervals=self.intervals,
        )

    async def submit(
        self,
        background: BackgroundJobs,
        response_id: str = ID,
        *,
        keys: Mapping[str, Any] | None = None,
        prompts: Prompts | None = None,
        work: Work = BACKGROUND,
        **fields: Any,
    ) -> None:
        """Queue a response."""
        body = {"model": "m", "input": "hi", "background": True, **fields}
        request = await with_prompt(parse_create(body), prompts, 10_000)
        items = with_ids(request.input_items)
        moderation = await self.factory.moderation.of_input(request, items, self.factory.large_work)
        response = self.factory.begin(request, moderation) | {"id": response_id, "status": "queued"}
        events = self.factory.context(request, response, ANNA).assembler.enqueue()
        kept = body | {"input": "..."}
        await background.submit(
            response, kept, events, owner=ANNA, keys=keys or {}, work=work, base=None, input_items=items
        )

    async def open(
        self, background: BackgroundJobs, response_id: str = ID, *, acceptance_seconds: float | None = None
    ) -> None:
        """Begin a response that a client waits for, with another record stored in the same commit."""
        body = {"model": "m", "input": "hi"}
        request = parse_create(body)
        response = new_response(request, id=response_id, created_at=int(time.time()))
        items = with_ids(request.input_items)
        extra_ops = [Put("y/key", b"")]
        history: Json = {"base": None, "input_items": items}
        await background.submit_and_run(
            response, body, owner=ANNA, keys={}, extra_ops=extra_ops, acceptance_seconds=acceptance_seconds, **history
        )

    async def claim(self, worker: str = "w1") -> Job:
        job = await self.jobs.claim(worker)
        assert job is not None
        return job

    def runner(self, job: Job) -> JobRunner:
        return JobRunner(
            job,
            records=self.records,
            jobs=self.jobs,
            event_log=self.event_log,
            archive=self.archive,
            access=self.access,
            factory=self.factory,
            parse=parse_create,
            event_log_seconds=KEEP,
            intervals=self.intervals,
            secrets=JobSecrets(self.sealer),
            held_inputs=HeldInputs(Quota("inputs", 2**30, 2**30)),
            shared_commits=SharedCommits(self.records, self.intervals.event_batch_seconds),
            beginnings=self.beginnings,
        )

    async def run_job(self, worker: str = "w1") -> None:
        """Claim the next job and run it."""
        async with asyncio.timeout(PATIENCE):
            await self.runner(await self.claim(worker)).run()
        assert self.inference.streaming == 0

    async def read(self, response_id: str = ID, *, seen: list[Json] | None = None) -> list[Json]:
        """Return the events that a reader sees, from the first to the last; `seen` has them as they come."""

        async def lasts() -> bool:
            return await self.jobs.find(response_id) is not None

        async def fence() -> Condition | None:
            job = await self.jobs.find(response_id)
            return job.fence if job else None

        seen = [] if seen is None else seen
        async for events in self.event_log.follow(response_id, -1, PATIENCE, lasts, fence):
            seen += events
        return seen

    async def result(self, response_id: str = ID, *, background: bool = True, taken_over: bool = False) -> Json:
        """Return the finished response, after checking the invariants of every finished response.

        `taken_over` is as in `check_stream`.
        """
        events = await self.event_log.read_all(response_id, -1)
        final = check_stream(events, taken_over=taken_over)
        stored = await self.archive.load(response_id)
        assert stored is not None
        assert stored.response == final
        assert (stored.owner, stored.response["background"]) == (ANNA, background)
        assert list(replay(stored.response, stored.transcript)) == events
        rows = [key for key, _ in await self.records.range("!", "~", limit=1000)]
        assert not [row for row in rows if row[0] in "qhjk" and row.endswith(f"/{response_id}")]
        return final


def texts_of(response: Json, status: str | None = None) -> list[str]:
    """Return the texts of a response's messages."""
    return [
        part["text"]
        for item in response["output"]
        if item["type"] == "message" and status in (None, item["status"])
        for part in item["content"]
    ]
