"""How answers are sent: large ones in blocks, between which others run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import orjson
import pytest
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Send

from llama_stack_responses.core.json_blocks import BLOCK_BYTES
from llama_stack_responses.wire.http_responses import FollowedResponse, JsonResponse
from llama_stack_responses.wire.websocket.connection import encoded
from tests.support.asgi import App, Body, scope_of
from tests.support.memory import no_garbage_collection

TEXT = "wörd " * 600_000
BLOCKS = 3_600_000 // (2 * BLOCK_BYTES)
EVENT: dict[str, Any] = {"type": "response.completed", "sequence_number": 1, "response": {"output": [TEXT]}}


async def other_turns(sent: list[bytes], work: asyncio.Task[Any]) -> int:
    """Return how often another task ran between two blocks."""
    found: set[int] = set()
    while not work.done():
        found.add(len(sent))
        await asyncio.sleep(0)
    await work
    return len(found)


@pytest.mark.parametrize("streams", [True, False])
async def test_others_run_between_blocks_of_answer_to_client_that_reads_at_once(*, streams: bool) -> None:
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))  # without waiting, as to a fast client

    async def batches() -> AsyncGenerator[list[dict[str, Any]]]:
        yield [EVENT]

    async def answer(_: Request) -> Response:
        return FollowedResponse(batches()) if streams else JsonResponse(EVENT)

    served = App().serve(answer)
    turns = await other_turns(sent, asyncio.create_task(_call(served, send)))
    assert TEXT.encode() in b"".join(sent)
    assert turns >= BLOCKS


async def _call(served: ASGIApp, send: Send) -> None:
    await served(scope_of(), Body().receive, send)


@pytest.mark.parametrize("leaves", ["while it is written to", "with an error"])
async def test_stream_whose_client_has_left_holds_no_events_without_the_garbage_collector(leaves: str) -> None:
    closed, gone = asyncio.Event(), asyncio.Event()

    async def batches() -> AsyncGenerator[list[dict[str, Any]]]:
        try:
            while True:
                yield [EVENT]
        finally:
            closed.set()

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            return
        if leaves == "with an error":
            raise OSError
        gone.set()
        await asyncio.Event().wait()

    with no_garbage_collection():
        version = "2.4" if leaves == "with an error" else "2.3"
        with suppress(ClientDisconnect):
            await FollowedResponse(batches())({"type": "http", "asgi": {"spec_version": version}}, receive, send)
        assert closed.is_set()


async def test_others_run_while_large_event_of_websocket_is_encoded() -> None:
    work = asyncio.create_task(encoded(EVENT))
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    assert orjson.loads(await work) == EVENT
    assert turns >= BLOCKS


async def test_small_event_of_websocket_is_encoded_without_a_break() -> None:
    with pytest.raises(StopIteration) as ended:
        encoded({"type": "x", "delta": "é"}).send(None)
    assert ended.value.value == '{"type":"x","delta":"é"}'
