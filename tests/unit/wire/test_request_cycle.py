"""A client that reads nothing of its answer loses its connection; a client that waits for its answer does not."""

from __future__ import annotations

import asyncio

from fastapi import Request, Response
from starlette.types import Message

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
