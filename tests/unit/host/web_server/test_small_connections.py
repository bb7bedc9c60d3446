"""An open connection of uvicorn holds no deque, and its client is still waited for, and its requests in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from llama_stack_responses.host.web_server.http_protocol import HttpProtocol
from tests.support.waiting import turns, until
from tests.unit.host.web_server.transport import MemoryTransport


class Transport(MemoryTransport):
    """A transport that keeps what is written."""

    def write(self, data: Any) -> None:
        self.written += data


class Server:
    """An application behind the protocol, which answers with the path of a request.

    Attributes:
        protocol: the protocol.
        transport: its transport.
    """

    def __init__(self) -> None:
        config = Config(self._serve, interface="asgi3", lifespan="off", log_config=None, proxy_headers=False)
        config.load()
        self.protocol: Any = HttpProtocol(config, ServerState(), {})
        self.transport = Transport()
        self.protocol.connection_made(self.transport)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"].encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": path})


async def test_connection_holds_no_deque() -> None:
    protocol = Server().protocol
    flow = protocol.flow
    held = [*vars(protocol).values(), *(getattr(flow, name) for name in flow.__slots__)]
    assert protocol.pipeline in held
    assert not any(isinstance(each, deque | asyncio.Event) for each in held)


async def test_pipelined_requests_are_answered_in_order() -> None:
    server = Server()
    server.protocol.data_received(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(4)))
    assert len(server.protocol.pipeline) == 3
    await until(lambda: server.transport.written.endswith(b"/3"))
    assert [part[:2] for part in server.transport.written.split(b"\r\n\r\n")[1:]] == [b"/0", b"/1", b"/2", b"/3"]


async def test_answer_waits_for_client_that_does_not_read() -> None:
    server = Server()
    server.protocol.pause_writing()
    server.protocol.data_received(b"GET /0 HTTP/1.1\r\n\r\n")
    await turns(5)
    assert server.transport.written == b""
    server.protocol.resume_writing()
    await until(lambda: server.transport.written.endswith(b"/0"))
