"""Requests leave no reference cycles behind, however they end: nothing depends on collections of old objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import Request, Response

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.wire.http_responses import RunEventsResponse, RunJsonResponse
from tests.support.access import SingleUserAccess
from tests.support.asgi import App, Body, ask
from tests.support.inference import FakeInference, call, finish, text
from tests.support.memory import TIMES_DONE, cycles_left
from tests.support.waiting import until
from tests.unit.service.test_short_requests import server

ANSWERS: dict[str, Callable[[], Any]] = {
    "text": lambda: [text("Hello"), finish()],
    "call": lambda: [call("f", "call_1"), finish("tool_calls")],
    "refused": lambda: ApiError(400, "No such parameter."),
    "broken": lambda: [text("Hel"), ApiError(502, "The model server hung up.")],
    "silent": lambda: [text("Hel"), asyncio.Event()],
}


class Served:
    """A server whose model answers all requests alike, and its routes."""

    def __init__(self, impl: OpenAIResponsesImpl) -> None:
        self._impl = impl
        self._app = App()
        self.app = self._app.serve(self._answer)

    async def _answer(self, request: Request) -> Response:
        body = await self._app.bodies.json(request)
        run = await self._impl.create(body)
        assert isinstance(run, ForegroundRun)
        return RunEventsResponse(run) if body["stream"] else RunJsonResponse(run)

    async def ask(self, *, stream: bool, leaves: bool) -> None:
        """Ask, and read the answer or leave during it."""
        body = b'{"model": "m", "input": "Hello", "stream": %b, "tools": [%b]}'
        tool = b'{"type": "function", "name": "f", "parameters": {"type": "object"}}'
        await ask(self.app, Body([body % (b"true" if stream else b"false", tool)], "leave" if leaves else "end"))
        await until(lambda: not self._impl._foreground.running)


@pytest.fixture
async def impl(request: pytest.FixtureRequest) -> AsyncIterator[OpenAIResponsesImpl]:
    """A server whose model answers as the test says."""
    inference = FakeInference(*(ANSWERS[request.param]() for _ in range(TIMES_DONE)))
    created = server(MemoryRecords(), inference, SingleUserAccess())
    yield created
    await created.shutdown()


@pytest.mark.relatives
@pytest.mark.parametrize(
    ("impl", "leaves"),
    [("text", False), ("call", False), ("refused", False), ("broken", False), ("silent", True)],
    indirect=["impl"],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_request_leaves_no_cycles_however_it_ends(
    impl: OpenAIResponsesImpl, *, stream: bool, leaves: bool
) -> None:
    served = Served(impl)
    assert await cycles_left(lambda: served.ask(stream=stream, leaves=leaves)) == {}
