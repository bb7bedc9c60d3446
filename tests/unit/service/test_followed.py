"""The stream of a followed response begins at once, and marks its end only if it is complete."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.service.response_reader import ServerClosing
from llama_stack_responses.wire import sse
from llama_stack_responses.wire.http_responses import FollowedResponse

EVENT = {"type": "response.queued", "sequence_number": 1}


async def answered(batches: AsyncGenerator[list[Any]]) -> list[bytes]:
    """Return the bodies that are sent."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    await FollowedResponse(batches)({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert sent[0]["status"] == 200
    return [message["body"] for message in sent[1:] if message["body"]]


async def test_followed_stream_ends_with_done() -> None:
    async def batches() -> AsyncGenerator[list[Any]]:
        yield []
        yield [EVENT]

    assert await answered(batches()) == [sse.KEEP_ALIVE, sse.encode([EVENT]), sse.DONE]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(ServerClosing(), []), (ApiError(503, "The store\nis unavailable."), [b": The store is unavailable.\n\n"])],
)
async def test_interrupted_followed_stream_sends_reason_and_no_done(reason: Exception, expected: list[bytes]) -> None:
    async def batches() -> AsyncGenerator[list[Any]]:
        yield [EVENT]
        raise reason

    assert await answered(batches()) == [sse.encode([EVENT]), *expected]


async def test_followed_stream_sends_headers_before_first_event() -> None:
    begun = asyncio.Event()

    async def batches() -> AsyncGenerator[list[Any]]:
        await begun.wait()
        yield [EVENT]

    async def send(message: Any) -> None:
        begun.set()

    async def receive() -> Any:
        await asyncio.sleep(60)

    async with asyncio.timeout(60):
        await FollowedResponse(batches())({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
