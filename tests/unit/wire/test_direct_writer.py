"""Deltas are written to the client's transport past ASGI, only while the client reads and all middlewares are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from llama_stack_responses.wire.direct_writer import DirectWriter, direct_writer

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class Transport:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.closing


class ServedRequest:
    """A request that uvicorn serves, on a transport of this process."""

    def __init__(self, *middleware: Middleware) -> None:
        self.transport = Transport()
        self.flow = FlowControl(self.transport)  # type: ignore[arg-type]
        self.scope: dict[str, Any] = {"type": "http", "method": "POST", "app": Starlette(middleware=middleware)}
        names = (
            "logger access_logger access_log default_headers message_event expect_100_continue keep_alive on_response"
        )
        others: dict[str, Any] = dict.fromkeys(names.split(), None) | {"default_headers": [], "keep_alive": True}
        self.cycle = RequestResponseCycle(self.scope, self.transport, self.flow, **others)  # type: ignore[arg-type]

    async def writer(self) -> DirectWriter | None:
        """Send the head, and return the writer."""
        await self.cycle.send(HEAD)  # type: ignore[arg-type]
        self.transport.data = b""
        return direct_writer(self.scope, self.cycle.receive)  # type: ignore[arg-type]


async def test_part_is_written_as_uvicorn_writes_it() -> None:
    served = ServedRequest()
    direct = await served.writer()
    assert direct
    assert direct.write(b"x" * 300)
    written, served.transport.data = served.transport.data, b""
    await served.cycle.send({"type": "http.response.body", "body": b"x" * 300, "more_body": True})
    assert written == served.transport.data


@pytest.mark.parametrize("why", ["paused", "left", "closing", "complete"])
async def test_nothing_is_written_to_client_that_does_not_read(why: str) -> None:
    served = ServedRequest()
    direct = await served.writer()
    assert direct
    match why:
        case "paused":
            served.flow.pause_writing()
        case "left":
            served.cycle.disconnected = True
        case "closing":
            served.transport.closing = True
        case "complete":
            served.cycle.response_complete = True
    assert not direct.write(b"x")
    assert served.transport.data == b""


async def test_writing_goes_on_once_client_reads_again() -> None:
    served = ServedRequest()
    direct = await served.writer()
    assert direct
    served.flow.pause_writing()
    assert not direct.write(b"x")
    served.flow.resume_writing()
    assert direct.write(b"x")


@pytest.mark.parametrize(
    ("middleware", "is_direct"),
    [(Middleware(CORSMiddleware, allow_origins=["*"]), True), (Middleware(GZipMiddleware), False)],
    ids=["cors", "gzip"],
)
async def test_only_known_middlewares_are_passed_by(middleware: Middleware, is_direct: bool) -> None:
    assert (await ServedRequest(middleware).writer() is not None) is is_direct


async def test_answer_without_head_is_not_passed_by() -> None:
    served = ServedRequest()
    assert direct_writer(served.scope, served.cycle.receive) is None  # type: ignore[arg-type]


async def test_wrapped_or_unknown_receive_is_not_passed_by() -> None:
    served = ServedRequest()
    assert await served.writer()

    async def receive() -> Any:
        raise NotImplementedError

    assert direct_writer(served.scope, receive) is None
    assert direct_writer(served.scope, SimpleNamespace(receive=receive).receive) is None
