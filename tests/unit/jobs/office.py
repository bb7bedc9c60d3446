"""A store, and those who make background responses on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.access import Action, Kind
from llama_stack_responses.core.listing import with_ids
from llama_stack_responses.core.moderation import asked_texts, policy_of
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.schema.request import parse_create
from llama_stack_responses.core.stream.replay import replay
from llama_stack_responses.core.stream.response import new_response
from llama_stack_responses.generation.context_lengths import ContextLengths
from llama_stack_responses.generation.factory import Workshop
from llama_stack_responses.generation.loop import TurnLimits
from llama_stack_responses.generation.token_counts import TokenCounts
from llama_stack_responses.inputs.attachments import open_attachments
from llama_stack_responses.inputs.files import NoFiles
from llama_stack_responses.inputs.prompts import Prompts, with_prompt
from llama_stack_responses.jobs.event_log import Journal
from llama_stack_responses.jobs.notifier import Bell
from llama_stack_responses.jobs.queue import Held, Jobs
from llama_stack_responses.jobs.runner import Attempt
from llama_stack_responses.jobs.secrets import JobSecrets
from llama_stack_responses.jobs.worker import Crew, CrewBounds
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Put, Records
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.toolset import Makers
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
"""Longer than anything here takes."""

ROUNDS: Final[Sequence[Round]] = (
    [reasoning("hm"), text("Let me"), text(" look."), call("hidden", "h1"), finish("tool_calls", tokens=5)],
    [text("And"), text(" again."), call("hidden", "h1"), finish("tool_calls", tokens=6)],
    [text("Hel"), text("lo"), finish(tokens=7)],
)
"""Three model rounds: the first two call a tool that there is not."""

SAID: Final = ["Let me look.", "And again.", "Hello"]


class OneUser:
    """Access of a stack that has one user.

    Attributes:
        acted: for whom work was done, and with which keys.
    """

    def __init__(self) -> None:
        self.acted: list[tuple[Owner, Mapping[str, Any]]] = []

    def who(self) -> Owner:
        return ANNA

    def keys(self) -> Mapping[str, Any]:
        return {}

    def acting_for(self, owner: Owner, keys: Mapping[str, Any]) -> AbstractContextManager[None]:
        @contextmanager
        def acting() -> Any:
            self.acted.append((owner, keys))
            yield

        return acting()

    def allows(self, action: Action, kind: Kind, identifier: str, owner: Owner) -> bool:
        return True


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if holds():
                return
            await asyncio.sleep(0.001)


def shared(**options: Any) -> WatchedRecords:
    """Records whose every call takes a turn of the loop before it is made, and one after."""

    async def turn(_: str) -> None:
        await asyncio.sleep(0)

    return WatchedRecords(MemoryRecords(**options), before=turn, after=turn)


LIMITS: Final = TurnLimits(rounds=8, idle_seconds=30.0, tool_seconds=30.0)


class Office:
    """One process on a store.

    Args:
        records: the store.
        rounds: what the provider answers to this process.
        accept: what has to be set before the provider accepts a request.
        moderator: who checks what is to be checked.
    """

    def __init__(
        self,
        records: Records,
        *rounds: Round,
        limits: TurnLimits = LIMITS,
        makers: Makers | None = None,
        accept: asyncio.Event | None = None,
        moderator: FakeModerator | None = None,
    ) -> None:
        self.records = records
        self.inference = FakeInference(*rounds, accept=accept)
        self.archive = Archive(records)
        self.access = OneUser()
        lengths = ContextLengths(self.inference)
        attachments = open_attachments(NoFiles(), ResponsesConfig(), WorkerPool(PoolLimits()))
        self.workshop = Workshop(
            self.inference,
            attachments,
            makers or client_tools(),
            [],
            limits,
            Sealer([SECRET]),
            lengths,
            TokenCounts(self.inference, []),
            checks(moderator),
        )
        self.sealer = Sealer([SECRET])
        self.bell = Bell()
        self.jobs = Jobs(records, 100)
        self.journal = Journal(records, self.bell)

    def crew(self, *, size: int = 2, waiting: int = 100, share: int = 100) -> Crew:
        """Workers in this process; they have to be started."""
        return Crew(
            self.records,
            self.archive,
            self.access,
            self.workshop,
            bounds=CrewBounds(size, share, waiting, waiting),
            keep_journal=KEEP,
            parse=parse_create,
            sealer=self.sealer,
        )

    async def submit(
        self,
        crew: Crew,
        response_id: str = ID,
        *,
        keys: Mapping[str, Any] | None = None,
        prompts: Prompts | None = None,
        **fields: Any,
    ) -> None:
        """Queues a response."""
        body = {"model": "m", "input": "hi", "background": True, **fields}
        request = await with_prompt(parse_create(body), prompts, 10_000)
        items = with_ids(request.input_items)
        policy = policy_of(request)
        moderation = await self.workshop.checks.of_input(policy, asked_texts(request, items)) if policy else None
        response = self.workshop.begin(request, moderation) | {"id": response_id, "status": "queued"}
        events = self.workshop.bench(request, response, ANNA).assembler.enqueue()
        work = body | {"input": "..."}
        await crew.submit(response, work, events, owner=ANNA, keys=keys or {}, base=None, input_items=items)

    async def open(self, crew: Crew, response_id: str = ID, *, patience: float | None = None) -> None:
        """Begins a response that a client waits for, beside which something else is stored."""
        body = {"model": "m", "input": "hi"}
        request = parse_create(body)
        response = new_response(request, id=response_id, created_at=int(time.time()))
        items = with_ids(request.input_items)
        beside = [Put("y/key", b"")]
        history: Json = {"base": None, "input_items": items}
        await crew.open(response, body, owner=ANNA, keys={}, beside=beside, patience=patience, **history)

    async def claim(self, worker: str = "w1") -> Held:
        held = await self.jobs.claim(worker)
        assert held is not None
        return held

    def attempt(self, held: Held) -> Attempt:
        return Attempt(
            held,
            records=self.records,
            jobs=self.jobs,
            journal=self.journal,
            bell=self.bell,
            archive=self.archive,
            access=self.access,
            workshop=self.workshop,
            parse=parse_create,
            keep_journal=KEEP,
            secrets=JobSecrets(self.sealer),
        )

    async def work(self, worker: str = "w1") -> None:
        """Takes the next job and does it."""
        async with asyncio.timeout(PATIENCE):
            await self.attempt(await self.claim(worker)).run()
        assert self.inference.streaming == 0

    async def read(self, response_id: str = ID) -> list[Json]:
        """What a reader sees from the beginning to the end."""

        async def lasts() -> bool:
            return await self.jobs.find(response_id) is not None

        async def fence() -> Condition | None:
            held = await self.jobs.find(response_id)
            return held.fence if held else None

        seen: list[Json] = []
        async for events in self.journal.follow(response_id, -1, PATIENCE, lasts, fence):
            seen += events
        return seen

    async def result(self, response_id: str = ID, *, background: bool = True) -> Json:
        """The finished response, after checking all that holds however it came about."""
        events = await self.journal.read_all(response_id, -1)
        final = check_stream(events)
        stored = await self.archive.load(response_id)
        assert stored is not None
        assert stored.response == final
        assert (stored.owner, stored.response["background"]) == (ANNA, background)
        assert list(replay(stored.response, stored.transcript)) == events
        rows = [key for key, _ in await self.records.range("!", "~", limit=1000)]
        assert not [row for row in rows if row[0] in "qhjk" and row.endswith(f"/{response_id}")]
        return final


def said(response: Json, status: str | None = None) -> list[str]:
    """The texts of a response's messages."""
    return [
        part["text"]
        for item in response["output"]
        if item["type"] == "message" and status in (None, item["status"])
        for part in item["content"]
    ]
