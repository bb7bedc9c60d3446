"""The streams of the built-in page: the order of running responses."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.core.types import Json
from llama_stack_responses.features.page.lists import Lists
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.streams import Streams
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_short_requests import server


async def state_of(impl: OpenAIResponsesImpl, count: int) -> Json:
    """Return the state of the live view once it has so many responses."""
    refused = RefusedRequests(MemoryRecords())
    streams = Streams(impl, Lists(impl.archive, impl.jobs, refused), refused)
    async for event in streams.live(ANONYMOUS):
        if event and len(event[1]["responses"]) == count:
            return event[1]
    raise AssertionError("the stream ended")


async def test_running_responses_of_one_second_are_listed_newest_first() -> None:
    go = asyncio.Event()
    answer: Any = [text("Hello"), go, finish()]
    impl = server(MemoryRecords(), FakeInference(*[answer] * 8), SingleUserAccess())
    created = []
    for _ in range(8):
        run = await impl.create({"model": "m", "input": "Hello", "stream": True})
        assert isinstance(run, ForegroundRun)
        created.append(run.response["id"])
    state = await asyncio.wait_for(state_of(impl, 8), 60)
    assert [one["id"] for one in state["responses"]] == created[::-1]
    go.set()
    await impl.shutdown()


async def test_waiting_responses_that_are_not_listed_are_counted() -> None:
    go = asyncio.Event()
    answer: Any = [text("Hello"), go, finish()]
    impl = server(MemoryRecords(), FakeInference(*[answer] * 230), SingleUserAccess())
    for _ in range(230):
        await impl.create({"model": "m", "input": "Hello", "background": True})
    state = await asyncio.wait_for(state_of(impl, 200), 60)
    assert state["left_out"] == 30
    go.set()
    await impl.shutdown()
