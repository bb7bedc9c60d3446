"""Heads of requests and pipelined requests are bounded, and what was read is parsed in slices.

The protocol is uvicorn's; only its transport is replaced.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import orjson
import pytest
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from llama_stack_responses.host.web_server.http_protocol import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PARAMETERS,
    MAX_PIPELINED,
    MAX_URL_BYTES,
    SLICE_BYTES,
    SMALL_SLICE_BYTES,
    HttpProtocol,
)
from tests.support.memory import no_garbage_collection
from tests.support.waiting import turns, until
from tests.unit.host.web_server.transport import MemoryTransport

GET = b"GET / HTTP/1.1\r\n\r\n"
POST = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = 32_768


class Transport(MemoryTransport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None

    def get_protocol(self) -> Any:
        return self.protocol

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Server:
    """An application behind the protocol, which answers requests while `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.requests = 0
        self.bodies = bytearray()
        config = Config(self.serve, interface="asgi3", lifespan="off", log_config=None, proxy_headers=False)
        config.load()
        self.protocol = HttpProtocol(config, ServerState(), {})
        self.transport = Transport()
        self.transport.protocol = self.protocol
        self.protocol.connection_made(self.transport)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        more = True
        while more:
            message = await receive()
            self.bodies += message.get("body", b"")
            more = message.get("more_body", False)
        await self.answers.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def feed(self, begin: bytes, piece: bytes, size: int) -> None:
        """Send `begin` and then pieces while the server reads, up to `size` bytes."""
        self.protocol.data_received(begin)
        for _ in range(size // len(piece)):
            await until(lambda: self.transport.reads or self.transport.closed)
            if self.transport.closed:
                return
            self.protocol.data_received(piece)


@pytest.mark.parametrize(
    "begin",
    [b"GET / HTTP/1.1\r\nx", b"GET / HTTP/1.1\r\nx: ", b"POST / HTTP/1.1\r\ncontent-length"],
    ids=["name", "value", "known name"],
)
async def test_endless_header_is_refused(begin: bytes) -> None:
    server = Server()
    await server.feed(begin, b"x" * PIECE, 4 * MAX_HEAD_BYTES)
    assert server.transport.closed
    assert server.transport.written.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"request_header_fields_too_large"' in server.transport.written


async def test_too_many_headers_are_refused() -> None:
    server = Server()
    server.protocol.data_received(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * (MAX_HEADERS + 2))
    assert server.transport.closed
    assert server.transport.written.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "url", [b"/" + b"x" * MAX_URL_BYTES, b"/?" + b"&" * MAX_PARAMETERS], ids=["long", "parameters"]
)
async def test_long_url_is_refused(url: bytes) -> None:
    server = Server()
    server.protocol.data_received(b"GET " + url + b" HTTP/1.1\r\n\r\n")
    await until(lambda: server.transport.closed)
    assert server.transport.written.startswith(b"HTTP/1.1 414 ")
    assert b"\r\nx-request-id: req_" in server.transport.written


async def test_invalid_request_is_answered_by_uvicorn() -> None:
    server = Server()
    server.protocol.data_received(b"\0")
    assert server.transport.written.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("rest", [b"0\r\nx: ", b"1;x="], ids=["trailer", "extension"])
async def test_endless_trailer_or_chunk_extension_closes_connection(rest: bytes) -> None:
    server = Server()
    await server.feed(POST + rest, b"x" * PIECE, 4 * MAX_HEAD_BYTES)
    assert server.transport.closed


async def test_too_many_trailers_close_connection() -> None:
    server = Server()
    server.protocol.data_received(POST + b"0\r\n" + b"a:b\r\n" * (MAX_HEADERS + 1))
    assert server.transport.closed


async def test_too_many_pipelined_requests_close_connection() -> None:
    server = Server()
    server.protocol.data_received(GET * (MAX_PIPELINED + 2))
    assert server.transport.closed
    assert len(server.protocol.pipeline) == MAX_PIPELINED


async def test_pipelined_requests_are_answered_in_turn() -> None:
    server = Server()
    server.answers.set()
    server.protocol.data_received(GET * (MAX_PIPELINED + 1))
    await until(lambda: server.transport.written.count(b"HTTP/1.1 200 ") == MAX_PIPELINED + 1)
    assert not server.transport.closed


async def test_large_body_arrives_completely_and_in_order() -> None:
    server = Server()
    body = b"".join(b"%07d " % number for number in range(100_000))
    head = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    server.protocol.data_received(head)
    for begin in range(0, len(body), 4 * SLICE_BYTES):
        await until(lambda: server.transport.reads)
        server.protocol.data_received(body[begin : begin + 4 * SLICE_BYTES])
    await until(lambda: len(server.bodies) == len(body))
    assert server.bodies == body


async def test_small_chunks_are_parsed_in_small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    slices: list[int] = []

    def receive(protocol: HttpToolsProtocol, data: bytes) -> None:
        slices.append(len(data))
        HttpToolsProtocol.data_received(protocol, data)

    server = Server()
    monkeypatch.setattr(HttpProtocol, "parse", receive)
    server.protocol.data_received(POST)
    server.protocol.data_received(b"1\r\nx\r\n" * 40_000)
    assert not server.transport.reads, "nothing more is read until this is parsed"
    await until(lambda: len(server.bodies) == 40_000)
    assert max(slices) <= SLICE_BYTES
    assert set(slices[2:-1]) == {SMALL_SLICE_BYTES}
    assert server.transport.reads


async def test_reading_stays_paused_while_the_application_reads_nothing() -> None:
    server = Server()
    server.protocol.data_received(b"GET / HTTP/1.1\r\n\r\n" + GET)
    server.protocol.data_received(b"x" * (2 * SLICE_BYTES))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not server.transport.reads
    assert server.requests == 1


async def test_request_on_idle_connection_of_stopping_server_is_refused_as_not_begun() -> None:
    """The connection stays open until then: its client may be sending the request."""
    server = Server()
    server.answers.set()
    server.protocol.data_received(GET)
    await until(lambda: b"HTTP/1.1 200 " in server.transport.written)
    server.protocol.close_after_answer()
    assert not server.transport.closed
    server.protocol.data_received(GET)
    await until(lambda: server.transport.closed)
    assert server.requests == 1
    head, _, body = server.transport.written.partition(b"HTTP/1.1 421 ")[2].partition(b"\r\n\r\n")
    assert {b"connection: close", b"retry-after: 1", b"x-should-retry: true"} <= set(head.split(b"\r\n"))
    assert orjson.loads(body)["error"]["code"] == "server_stopping"


async def test_refused_request_of_stopping_server_is_read_to_its_end() -> None:
    """Otherwise the connection would be reset, and the client might not see the refusal."""
    server = Server()
    server.protocol.close_after_answer()
    server.protocol.data_received(POST + b"1\r\nx\r\n")
    await turns(5)
    assert not server.transport.written
    server.protocol.data_received(b"1\r\ny\r\n0\r\n\r\n")
    await until(lambda: server.transport.closed)
    assert server.transport.written.startswith(b"HTTP/1.1 421 ")


async def test_websocket_on_idle_connection_of_stopping_server_is_refused_as_not_begun() -> None:
    server = Server()
    server.protocol.close_after_answer()
    server.protocol.data_received(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    assert server.transport.closed
    assert server.transport.written.startswith(b"HTTP/1.1 421 ")


async def test_answer_under_way_of_stopping_server_says_that_the_connection_closes() -> None:
    server = Server()
    server.protocol.data_received(GET)
    server.protocol.close_after_answer()
    server.answers.set()
    await until(lambda: server.transport.closed)
    assert b"connection: close" in server.transport.written


@pytest.mark.parametrize("requests", [b"", GET, GET * 3], ids=["idle", "answering", "pipelined"])
@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
async def test_ended_connection_is_freed_without_garbage_collection(requests: bytes, error: Exception | None) -> None:
    server = Server()
    server.answers.set()
    server.protocol.data_received(GET)
    await turns(5)
    server.answers.clear()
    server.protocol.data_received(requests)
    await turns(5)
    connection = weakref.ref(server.protocol)
    with no_garbage_collection():
        server.transport.closed, server.transport.protocol = True, None
        server.protocol.connection_lost(error)
        server.answers.set()
        del server.protocol
        await turns(5)
        assert connection() is None
