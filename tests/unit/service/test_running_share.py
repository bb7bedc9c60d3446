"""Limits on foreground responses and compactions that run at the same time, per user and in total."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.generation.connection_options import ConnectionOptions
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.inputs.connection_memory import ConnectionMemory
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_short_requests import server

ROOM = Admission(Quota("histories", 10**6, 10**6))
BODY = {"model": "m", "input": "Hello"}


class SwitchedAccess(SingleUserAccess):
    """The user that the test sets."""

    owner = Owner("ada")

    def current_user(self) -> Owner:
        return self.owner


@pytest.fixture
def users() -> SwitchedAccess:
    return SwitchedAccess()


@pytest.fixture
def go() -> asyncio.Event:
    """Set as soon as the model may answer."""
    return asyncio.Event()


@pytest.fixture
async def impl(users: SwitchedAccess, go: asyncio.Event) -> AsyncIterator[OpenAIResponsesImpl]:
    """A server with two places for one user and three in total, whose model waits."""
    answer: Any = [text("Hello"), go, finish()]
    inference = FakeInference(*[answer] * 20)
    config = ResponsesConfig.model_validate({"limits": {"responses": 3, "responses_per_user": 2}})
    created = server(MemoryRecords(), inference, users, config=config)
    yield created
    go.set()
    await created.shutdown()


async def unstreamed(impl: OpenAIResponsesImpl) -> ForegroundRun:
    created = await impl.create(BODY)
    assert isinstance(created, ForegroundRun)
    return created


async def streamed(impl: OpenAIResponsesImpl) -> ForegroundRun:
    created = await impl.create(BODY | {"stream": True})
    assert isinstance(created, ForegroundRun)
    return created


async def on_connection(impl: OpenAIResponsesImpl) -> ForegroundRun:
    return await impl.create_on_connection(
        BODY | {"stream": True, "store": False},
        ConnectionOptions(ConnectionMemory(0, ROOM.reserve(ANONYMOUS)), generate=True),
    )


@pytest.mark.parametrize("begin", [unstreamed, streamed, on_connection])
async def test_response_over_share_is_refused_until_another_ends(
    impl: OpenAIResponsesImpl, go: asyncio.Event, begin: Callable[[OpenAIResponsesImpl], Any]
) -> None:
    runs = [await begin(impl), await unstreamed(impl)]
    for refused in (begin(impl), impl.compaction.compact(BODY)):
        with pytest.raises(ApiError, match="You have too many running responses") as raised:
            await asyncio.wait_for(refused, 60)
        assert (raised.value.status, raised.value.retry_after) == (429, 5)
    go.set()
    for run in runs:
        await run.wait_ended()
    await (await begin(impl)).wait_ended()


async def test_abandoned_response_frees_its_place(impl: OpenAIResponsesImpl) -> None:
    for _ in range(4):
        run = await unstreamed(impl)
        run.abandon()
        await run.wait_ended()


async def test_other_user_has_separate_share(impl: OpenAIResponsesImpl, users: SwitchedAccess) -> None:
    for _ in range(2):
        await unstreamed(impl)
    users.owner = Owner("bob")
    await unstreamed(impl)
    with pytest.raises(ApiError, match="The server has too many running responses") as raised:
        await unstreamed(impl)
    assert raised.value.status == 503


async def test_anonymous_user_may_use_whole_quota(impl: OpenAIResponsesImpl, users: SwitchedAccess) -> None:
    users.owner = ANONYMOUS
    for _ in range(3):
        await unstreamed(impl)
    with pytest.raises(ApiError, match="You have too many running responses"):
        await unstreamed(impl)
