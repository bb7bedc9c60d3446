"""Users take turns where responses begin, over HTTP and on WebSockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation.connection_options import ConnectionOptions
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.inputs.connection_memory import ConnectionMemory
from llama_stack_responses.service import foreground_responses
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, writes_of
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, Round, finish, text
from tests.support.records import WatchedRecords
from tests.support.shares import as_user
from tests.support.waiting import turns
from tests.unit.service.test_running_share import ROOM
from tests.unit.service.test_short_requests import server

MANY = 60
BODY = {"model": "m", "input": "Hello", "stream": True}


@pytest.fixture
async def impl() -> AsyncIterator[OpenAIResponsesImpl]:
    """A server whose model answers at once."""
    inference = FakeInference(*[[text("Hello"), finish()]] * (MANY + 1))
    created = server(MemoryRecords(), inference, SingleUserAccess(), config=ResponsesConfig())
    yield created
    await created.shutdown()


@pytest.mark.parametrize("websocket", [False, True])
async def test_request_of_one_user_begins_before_most_of_sixty_of_another(
    impl: OpenAIResponsesImpl, websocket: bool
) -> None:
    begun: list[str] = []

    async def ask(user: str) -> None:
        if websocket:
            memory = ConnectionMemory(0, ROOM.reserve(Owner(user)))
            run = await impl.create_on_connection(BODY, ConnectionOptions(memory, generate=True))
        else:
            created = await impl.create(BODY)
            assert isinstance(created, ForegroundRun)
            run = created
        begun.append(user)
        while await run.event_buffer.get(60) is not None:
            pass
        await run.finish()

    await asyncio.gather(*(as_user("many", ask("many")) for _ in range(MANY)), as_user("one", ask("one")))
    assert begun.index("one") < MANY / 3
    assert len(begun) == MANY + 1


@pytest.mark.parametrize("stream", [True, False])
async def test_stream_ends_after_all_others_of_its_user_have_begun(
    impl: OpenAIResponsesImpl, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    """A request without a stream has shown nothing before its end, and gives way to no other."""
    monkeypatch.setattr(foreground_responses, "_GIVES_WAY_SECONDS", 3600.0)
    seen: list[str] = []

    async def ask() -> None:
        run = await impl.create({**BODY, "stream": stream})
        assert isinstance(run, ForegroundRun)
        seen.append("begun")
        await run.finish()
        seen.append("ended")

    await asyncio.gather(*(as_user("many", ask()) for _ in range(MANY)))
    ended_before = seen[: len(seen) - seen[::-1].index("begun")].count("ended")
    assert (ended_before < MANY / 5) if stream else (ended_before > MANY / 3)


class SlowRecords(WatchedRecords):
    """Records whose commits of responses that have ended take some iterations of the event loop.

    Attributes:
        most: of these commits at a time.
    """

    def __init__(self) -> None:
        super().__init__(MemoryRecords())
        self.most = self._now = 0

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        is_end = any(op.key.startswith("r/") for op in writes_of(ops))
        self._now += is_end
        self.most = max(self.most, self._now)
        try:
            if is_end:
                await turns(2)
            await super().commit(ops, conditions)
        finally:
            self._now -= is_end


async def test_streams_that_end_together_are_stored_a_few_at_a_time() -> None:
    records, answer_now = SlowRecords(), asyncio.Event()
    rounds: list[Round] = [[text("Hello"), answer_now, finish()]] * MANY
    inference = FakeInference(*rounds)
    impl = server(records, inference, SingleUserAccess(), config=ResponsesConfig())
    created = [await impl.create(BODY) for _ in range(MANY)]
    answer_now.set()
    for run in created:
        assert isinstance(run, ForegroundRun)
        await run.finish()
    assert 1 < records.most <= MANY / 3
    await impl.shutdown()


async def test_server_that_has_started_lets_users_take_turns_for_threads(impl: OpenAIResponsesImpl) -> None:
    impl.start()
    began, may_end = list[str](), threading.Event()

    def work(user: str) -> None:
        began.append(user)
        assert may_end.wait(60)

    many = [as_user("many", asyncio.to_thread(work, "many")) for _ in range(100)]
    await turns(3)
    one = as_user("one", asyncio.to_thread(work, "one"))
    await turns(3)
    may_end.set()
    await asyncio.gather(one, *many)
    assert began.index("one") < 70
