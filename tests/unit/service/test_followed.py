"""The stream of a response that somebody follows: it begins at once, and says whether that was all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.service.responses import LetGo
from llama_stack_responses.wire import sse
from llama_stack_responses.wire.responses import followed

EVENT = {"type": "response.queued", "sequence_number": 1}


async def answered(batches: AsyncIterator[list[Any]]) -> list[bytes]:
    """The bodies that go out."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    await followed(batches)({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert sent[0]["status"] == 200
    return [message["body"] for message in sent[1:] if message["body"]]


async def test_at_the_end_it_is_done() -> None:
    async def batches() -> AsyncIterator[list[Any]]:
        yield []
        yield [EVENT]

    assert await answered(batches()) == [sse.KEEP_ALIVE, sse.encode([EVENT]), sse.DONE]


@pytest.mark.parametrize("reason", [LetGo(), ApiError(503, "The store is away.")])
async def test_left_alone_a_reader_is_not_told_that_it_has_all(reason: Exception) -> None:
    async def batches() -> AsyncIterator[list[Any]]:
        yield [EVENT]
        raise reason

    assert await answered(batches()) == [sse.encode([EVENT])]


async def test_it_begins_before_there_is_an_event() -> None:
    begun = asyncio.Event()

    async def batches() -> AsyncIterator[list[Any]]:
        await begun.wait()
        yield [EVENT]

    async def send(message: Any) -> None:
        begun.set()

    async def receive() -> Any:
        await asyncio.sleep(60)

    async with asyncio.timeout(60):
        await followed(batches())({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
