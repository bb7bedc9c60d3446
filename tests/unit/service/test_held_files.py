"""How long the contents of a response's files count as held."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, Round, finish, text
from tests.support.records import WatchedRecords
from tests.support.waiting import until
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]
type Start = Callable[..., OpenAIResponsesImpl]

FILE: Final = {
    "type": "input_file",
    "filename": "a.txt",
    "file_data": f"data:text/plain;base64,{b64encode(b'Otters hold hands. ' * 1_000).decode()}",
}
ASKED: Final[Json] = {"model": "m", "input": [{"role": "user", "content": [FILE]}]}


@pytest.fixture
def records() -> WatchedRecords:
    """The records that store the responses."""
    return WatchedRecords(MemoryRecords())


@pytest.fixture
async def start(records: WatchedRecords) -> AsyncIterator[Start]:
    """Start a server whose model has these rounds."""
    created: list[OpenAIResponsesImpl] = []

    def started(*rounds: Round) -> OpenAIResponsesImpl:
        created.append(server(records, FakeInference(*rounds), SingleUserAccess()))
        return created[-1]

    yield started
    for each in created:
        await each.shutdown()


def held(impl: OpenAIResponsesImpl) -> int:
    return impl._factory.attachments.contents.held


async def test_files_are_held_until_response_ends(start: Start) -> None:
    resume = asyncio.Event()
    impl = start([text("I"), resume, finish()])
    run = await impl.create(ASKED)
    assert isinstance(run, ForegroundRun)
    await run.begin()
    assert held(impl) > 19_000
    resume.set()
    await run.finish()
    assert held(impl) == 0


@pytest.mark.parametrize("end", [ForegroundRun.abandon, ForegroundRun.shut_down])
async def test_files_of_aborted_response_are_released(start: Start, end: Callable[[ForegroundRun], None]) -> None:
    impl = start([text("I"), asyncio.Event(), finish()])
    run = await impl.create(ASKED)
    assert isinstance(run, ForegroundRun)
    end(run)
    await run.wait_ended()
    assert held(impl) == 0


async def test_files_of_refused_response_are_released(start: Start) -> None:
    impl = start(ApiError(429, "Slow down."))
    run = await impl.create(ASKED)
    assert isinstance(run, ForegroundRun)
    with pytest.raises(ApiError, match="Slow down"):
        await run.finish()
    assert held(impl) == 0


async def test_files_of_response_that_cannot_be_stored_are_released(start: Start, records: WatchedRecords) -> None:
    impl = start([text("I"), finish()])
    records.away = True
    with pytest.raises(ApiError):
        await impl.create(ASKED | {"stream": True})
    assert held(impl) == 0


async def test_files_of_background_response_are_held_while_it_runs(start: Start) -> None:
    resume = asyncio.Event()
    impl = start([text("I"), resume, finish()])
    kept: Any = await impl.create(ASKED | {"background": True})
    await until(lambda: held(impl) > 19_000)
    resume.set()
    await impl.detached.finish(kept.response["id"])
    await until(lambda: held(impl) == 0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda impl: impl.counting.count(dict(ASKED)),
        lambda impl: impl.compaction.compact(dict(ASKED)),
    ],
    ids=["count", "compact"],
)
async def test_files_of_counted_or_compacted_input_are_released(
    start: Start, ask: Callable[[OpenAIResponsesImpl], Awaitable[Json]]
) -> None:
    impl = start([text("They hold hands."), finish()])
    assert (await ask(impl))["object"]
    assert held(impl) == 0
