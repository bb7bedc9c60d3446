"""A client that reads nothing of its answer loses its connection; a client that waits for its answer does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from traceback import walk_stack

import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from llama_stack_responses.wire.request_cycle import while_connected
from llama_stack_responses.wire.request_handling import JsonErrorRoute
from tests.support.asgi import Answer as Sent
from tests.support.asgi import App, Body, scope_of
from tests.support.waiting import until


async def test_client_that_reads_nothing_is_disconnected() -> None:
    app, stalled = App({"answers": {"unread_seconds": 0.05}}), asyncio.Event()

    async def answer(_: Request) -> Response:
        return Response(b"x")

    async def send(_: Message) -> None:
        await stalled.wait()

    serving = asyncio.ensure_future(app.serve(answer)(scope_of(), Body().receive, send))
    await until(lambda: bool(app.broken_off))
    stalled.set()
    await serving


async def test_client_that_stops_reading_later_is_disconnected() -> None:
    app, stalled = App({"answers": {"unread_seconds": 0.05}}), asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(0.2)
        yield b"y"

    async def answer(_: Request) -> Response:
        return StreamingResponse(parts())

    async def send(message: Message) -> None:
        if message.get("body") == b"y":
            await stalled.wait()

    serving = asyncio.ensure_future(app.serve(answer)(scope_of(), Body().receive, send))
    await until(lambda: bool(app.broken_off))
    stalled.set()
    await serving


async def test_answer_holds_nothing_of_fastapi_while_it_is_sent() -> None:
    held: list[str] = []

    class Answer(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            held.extend({"fastapi_inner_astack", "fastapi_function_astack"} & scope.keys())
            names = [frame.f_code.co_qualname for frame, _ in walk_stack(None)]
            held.extend(name for name in names if name.startswith("request_response."))
            await super().__call__(scope, receive, send)

    async def answer(_: Request) -> Response:
        return Answer(b"x")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await App().serve(answer)(scope_of(), Body().receive, send)
    assert [message.get("body") for message in sent] == [None, b"x"]
    assert held == []


async def test_client_waiting_for_slow_answer_stays_connected() -> None:
    app = App({"answers": {"unread_seconds": 0.05}})

    async def answer(_: Request) -> Response:
        await asyncio.sleep(0.5)
        return Response(b"x")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app.serve(answer)(scope_of(), Body().receive, send)
    assert len(sent) == 2
    assert app.broken_off == []


async def test_unknown_method_is_refused_in_the_format_of_errors() -> None:
    sent: list[Message] = []

    async def answer(_: Request) -> Response:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    await App().serve(answer)(scope_of(method="PROPFIND"), Body().receive, send)
    start, body = sent
    assert start["status"] == 405
    [allowed] = [value for name, value in start["headers"] if name.lower() == b"allow"]
    assert sorted(allowed.split(b", ")) == [b"GET", b"POST"]
    assert b'"code":"method_not_supported"' in body["body"]


def test_route_whose_endpoint_takes_more_than_request_and_path_is_refused() -> None:
    async def wants_query(_: Request, limit: str) -> Response:
        return Response(limit)

    with pytest.raises(TypeError, match="the request and texts of its path"):
        App().serve(wants_query)


def test_route_of_included_router_is_described_with_the_texts_of_its_path_once() -> None:
    async def get_part(request: Request, thing_id: str) -> Response:
        """Describe a part."""
        return Response(f"{request.method} {thing_id}")

    inner = APIRouter(route_class=JsonErrorRoute)
    extra = {"parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer"}}]}
    inner.add_api_route("/{thing_id}/{part}", get_part, openapi_extra=extra)
    outer = APIRouter()
    outer.include_router(inner, prefix="/things")
    app = FastAPI()
    app.include_router(outer)
    described = app.openapi()["paths"]["/things/{thing_id}/{part}"]["get"]
    assert [(each["name"], each["in"]) for each in described["parameters"]] == [
        ("thing_id", "path"),
        ("limit", "query"),
    ]
    assert (described["summary"], described["description"]) == ("Get Part", "Describe a part.")


class Endless:
    """An endpoint that works for its answer until it is stopped."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def answer(self, request: Request) -> Response:
        await while_connected(request.scope, self._work())
        raise AssertionError

    async def _work(self) -> None:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def test_work_for_an_answer_ends_when_its_client_leaves() -> None:
    endless, sent = Endless(), Sent()

    async def receive() -> Message:
        await endless.begun.wait()
        return {"type": "http.disconnect"}

    async with asyncio.timeout(60):
        await App().serve(endless.answer)(scope_of(method="GET"), receive, sent.send)
    assert endless.ended.is_set()
    assert sent.status == 499


async def test_work_for_an_answer_ends_with_its_request() -> None:
    endless, body = Endless(), Body(then="silence")
    serving = asyncio.ensure_future(App().serve(endless.answer)(scope_of(method="GET"), body.receive, Sent().send))
    await endless.begun.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert endless.ended.is_set()
