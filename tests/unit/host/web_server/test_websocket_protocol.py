"""WebSocket data is decoded one frame at a time, in turns, and counts for the user until it is received.

The protocol is uvicorn's; only its transport is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.host.web_server import websocket_protocol
from llama_stack_responses.host.web_server.protocols import use_protocols
from llama_stack_responses.host.web_server.websocket_protocol import RoundRobin, WebSocketProtocol
from llama_stack_responses.wire.websocket.incoming import incoming_of
from tests.support.clock import LoopClock
from tests.support.hostile.sockets import BINARY, BROKEN, PING, TEXT, frame
from tests.support.socket_client import handshake
from tests.support.waiting import until
from tests.unit.host.web_server.transport import MemoryTransport

LARGE = 1_000_000


class Transport(MemoryTransport):
    """A transport whose client reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.unread = 0

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: Any) -> None:
        self.written += data


class Server:
    """Connections of one user, whose handler takes messages when the test asks for them."""

    def __init__(self, user: str = "anna", per_user: int = 10**9, seconds: float = 1_000.0) -> None:
        self._kind: Any = type("WithOwnTurns", (WebSocketProtocol,), {"turns": RoundRobin()})
        self._config = Config(app=self._talk, log_config=None, ws_ping_interval=None)
        self._config.load()
        self._config.loaded_app = self._talk
        self.bodies = Admission(Quota("request bodies", 10**9, per_user))
        self._counts = (user, seconds)
        self.decoded: list[bytes] = []

    async def connect(self) -> Any:
        """Return the protocol of a new connection after the handshake."""
        protocol = self._kind(config=self._config, server_state=ServerState(), app_state={})
        real = protocol.conn.receive_data

        def decode(data: bytes) -> None:
            self.decoded.append(data)
            real(data)

        protocol.conn.receive_data = decode
        protocol.connection_made(Transport())
        protocol.data_received(handshake({}))
        await until(lambda: protocol.handshake_complete)
        self.decoded.clear()
        return protocol

    async def _talk(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        incoming = incoming_of(scope)
        assert incoming
        user, seconds = self._counts
        incoming.count_for(user, self.bodies.reserve(Owner(user)), seconds)
        await send({"type": "websocket.accept"})
        await asyncio.Event().wait()


@pytest.fixture
async def tasks() -> AsyncIterator[None]:
    """End the handlers."""
    yield
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)


pytestmark = pytest.mark.usefixtures("tasks")


def code_of(protocol: Any) -> int:
    """Return the code of the close message that was sent."""
    close = protocol.conn.close_sent
    return close.code if close else 0


async def test_one_frame_is_decoded_in_an_iteration_of_the_loop() -> None:
    server = Server()
    protocol = await server.connect()
    protocol.data_received(frame(PING) * 100)
    assert server.decoded == []
    for number in range(1, 20):
        await asyncio.sleep(0)
        assert len(server.decoded) == number
    await until(lambda: len(server.decoded) == 100)
    assert protocol.transport.reads


async def test_connections_of_one_user_take_turns_with_another_user() -> None:
    """Many connections of one user decode no more than one connection of another."""
    many, one = Server(), Server("ben")
    one._kind = many._kind
    theirs = [await many.connect() for _ in range(20)]
    other = await one.connect()
    one.decoded.clear()
    for protocol in theirs:
        protocol.data_received(frame(PING) * 50)
    other.data_received(frame(PING) * 10)
    for _ in range(11):
        await asyncio.sleep(0)
    assert (len(one.decoded), len(many.decoded)) == (10, 11)
    await until(lambda: len(many.decoded) == 1_000)


async def test_next_message_is_decoded_when_the_last_one_is_received() -> None:
    server = Server()
    protocol = await server.connect()
    protocol.data_received(frame(TEXT, b"{}") * 3)
    await until(lambda: protocol.queue.qsize() == 1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (protocol.queue.qsize(), protocol.transport.reads) == (1, False)
    assert server.bodies.held > 0
    for _ in range(3):
        assert await protocol.receive() == {"type": "websocket.receive", "text": "{}"}
    assert (server.bodies.held, protocol.transport.reads) == (0, True)


@pytest.mark.parametrize("size", [1_001, 70_000, 3 * LARGE])
async def test_large_message_is_split_and_joined_in_a_thread(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    joining: list[int] = []
    real = websocket_protocol._joined

    def joined(frames: list[bytes], *, text: bool) -> bytearray:
        joining.append(threading.get_ident())
        return real(frames, text=text)

    monkeypatch.setattr(websocket_protocol, "_joined", joined)
    server = Server()
    protocol = await server.connect()
    message = ("ä" * LARGE).encode()
    masked = bytearray(frame(TEXT, message))
    mask, begin = b"abcd", len(masked) - len(message)
    masked[begin - 4 : begin] = mask
    for number in range(len(message)):
        masked[begin + number] ^= mask[number % 4]
    for start in range(0, len(masked), size):
        protocol.data_received(bytes(masked[start : start + size]))
        await asyncio.sleep(0)
    received = await protocol.receive()
    assert received["bytes"] == message
    assert max(map(len, server.decoded)) < 66_000
    assert joining
    assert joining[0] != threading.get_ident()
    assert server.bodies.held == 0


async def test_message_that_is_joined_counts_with_its_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = websocket_protocol._joined

    def joined(frames: list[bytes], *, text: bool) -> bytearray:
        begun.set()
        assert go_on.wait(60)
        return real(frames, text=text)

    monkeypatch.setattr(websocket_protocol, "_joined", joined)
    server = Server()
    protocol = await server.connect()
    half = frame(TEXT, b"x" * LARGE, last=False) + frame(0x0, last=False) * 999
    protocol.data_received(half + frame(0x0, b"x" * LARGE))
    try:
        await until(begun.is_set)
        assert 4 * LARGE + 1_001 * 128 <= server.bodies.held < 5 * LARGE
    finally:
        go_on.set()
    await until(lambda: protocol.queue.qsize() == 1)
    assert server.bodies.held == 2 * LARGE
    await protocol.receive()
    assert server.bodies.held == 0


async def test_message_that_cannot_be_joined_within_the_limit_of_its_user_closes_the_connection() -> None:
    server = Server(per_user=3 * LARGE)
    protocol = await server.connect()
    protocol.data_received(frame(TEXT, b"x" * 2 * LARGE))
    await until(lambda: protocol.transport.closed)
    assert code_of(protocol) == 1013
    assert not protocol.transport.reads
    assert (server.bodies.held, protocol.queue.qsize()) == (0, 0)


async def test_large_text_with_invalid_utf8_closes_connection() -> None:
    protocol = await Server().connect()
    protocol.data_received(frame(TEXT, b"\xff" * LARGE))
    await until(lambda: protocol.transport.closed)
    assert code_of(protocol) == 1007


async def test_large_bytes_are_not_checked_for_utf8() -> None:
    protocol = await Server().connect()
    protocol.data_received(frame(BINARY, b"\xff" * LARGE))
    assert (await protocol.receive())["bytes"] == b"\xff" * LARGE


async def test_unfinished_messages_over_the_limit_of_their_user_close_a_connection() -> None:
    server = Server(per_user=2 * LARGE)
    first, second = await server.connect(), await server.connect()
    half = frame(TEXT, b"x" * LARGE, length=2 * LARGE)
    first.data_received(half)
    second.data_received(half)
    await until(lambda: second.transport.closed)
    assert (code_of(second), first.transport.closed) == (1013, False)
    assert LARGE <= server.bodies.held < 2 * LARGE
    assert b"You have too many request bodies" in second.transport.written
    first.connection_lost(None)
    assert server.bodies.held == 0


async def test_fragments_count_with_their_size_in_memory() -> None:
    server = Server()
    protocol = await server.connect()
    protocol.data_received(frame(TEXT, b"x", last=False) + frame(0x0, b"x", last=False) * 1_000)
    await until(lambda: len(protocol.frames) == 1_001)
    protocol.data_received(b"\x00")
    assert server.bodies.held > 100_000


async def test_message_that_arrives_too_slowly_closes_the_connection() -> None:
    protocol = await Server(seconds=0.05).connect()
    protocol.data_received(frame(TEXT, b"x" * 10, length=100))
    await until(lambda: protocol.transport.closed)
    assert code_of(protocol) == 1008


async def test_empty_fragments_that_arrive_slowly_close_the_connection() -> None:
    protocol = await Server(seconds=0.05).connect()
    protocol.data_received(frame(TEXT, last=False))
    await until(lambda: protocol.transport.closed)
    assert code_of(protocol) == 1008
    assert b"too slowly" in protocol.transport.written


async def test_empty_fragments_that_arrive_fast_reach_their_limit_before_the_time_limit(loop_clock: LoopClock) -> None:
    protocol = await Server(seconds=60.0).connect()
    protocol.data_received(frame(TEXT, last=False) + frame(0x0, last=False) * 15_000)
    await until(lambda: len(protocol.frames) == 15_001)
    await loop_clock.passes(100.0)
    assert not protocol.transport.closed
    protocol.data_received(frame(0x0, last=False) * 2_000)
    await until(lambda: protocol.transport.closed)
    assert b"too many fragments" in protocol.transport.written


async def test_refused_connection_that_reads_nothing_is_reset() -> None:
    protocol = await Server(seconds=0.05).connect()
    protocol.transport.unread = 2**20 + 1
    protocol.data_received(frame(PING) * 2)
    await until(lambda: protocol.transport.aborted)


async def test_refused_connection_that_does_not_read_the_close_frame_is_reset_later() -> None:
    protocol = await Server().connect()
    timers: dict[Any, asyncio.TimerHandle] = {}
    delays: dict[Any, float] = {}
    loop = asyncio.get_running_loop()
    plan = loop.call_later

    def call_later(delay: float, call: Any, *args: Any) -> asyncio.TimerHandle:
        name = getattr(call, "__name__", None)
        timers[name], delays[name] = plan(delay, call, *args), delay
        return timers[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", call_later)
        protocol.data_received(frame(TEXT, b"x", last=False) + frame(0x0, last=False) * 17_000)
        await until(lambda: protocol.transport.closed)
    assert not protocol.transport.aborted
    assert 5 < delays["_reset"] < 11
    protocol.connection_lost(None)
    assert timers["_reset"].cancelled()


async def test_idle_connection_and_received_message_have_no_time_limit() -> None:
    protocol = await Server(seconds=0.05).connect()
    protocol.data_received(frame(TEXT, b"{}"))
    await asyncio.sleep(0.2)
    assert (await protocol.receive())["text"] == "{}"
    await asyncio.sleep(0.2)
    assert not protocol.transport.closed


async def test_too_many_fragments_close_connection() -> None:
    protocol = await Server().connect()
    protocol.data_received(frame(TEXT, b"x", last=False) + frame(0x0, last=False) * 17_000)
    await until(lambda: protocol.transport.closed)
    assert code_of(protocol) == 1008
    assert protocol.frames == []


async def test_unread_answers_pause_decoding() -> None:
    server = Server()
    protocol = await server.connect()
    protocol.transport.unread = 2**20 + 1
    protocol.data_received(frame(PING))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (server.decoded, protocol.transport.reads) == ([], False)
    protocol.transport.unread = 0
    await until(lambda: bool(server.decoded))
    await until(lambda: protocol.transport.reads)


async def test_closed_connection_decodes_nothing() -> None:
    server = Server()
    protocol = await server.connect()
    protocol.data_received(frame(PING) * 10)
    protocol.transport.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert server.decoded == []
    assert server.bodies.held == 0


@pytest.mark.parametrize("name", BROKEN)
async def test_broken_frame_closes_connection(name: str) -> None:
    protocol = await Server().connect()
    protocol.data_received(BROKEN[name])
    await until(lambda: protocol.transport.closed)


def test_invalid_utf8_message_is_not_logged_by_server(caplog: pytest.LogCaptureFixture) -> None:
    use_protocols()
    log = logging.getLogger("uvicorn.error")
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        log.error("Invalid UTF-8 sequence received from client.", exc_info=True)
        log.error("Another one.")
    assert [record.message for record in caplog.records] == ["Another one."]


def test_installed_uvicorn_protocol_has_used_attributes() -> None:
    init: Any = WebSocketsSansIOProtocol.__init__
    used = {"frames", "read_paused", "close_sent", "handshake_complete", "curr_msg_data_type", "queue", "writable"}
    used |= {"disconnected", "conn", "transport"}
    assert used <= set(init.__code__.co_names)


async def test_compression_is_not_offered() -> None:
    protocol = await Server().connect()
    assert not protocol.conn.available_extensions


# Messages that are sent at once


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536])
async def test_message_is_written_as_protocol_writes_it(size: int) -> None:
    protocol = await Server().connect()
    protocol.transport.written = b""
    incoming = incoming_of(protocol.scope)
    assert incoming
    assert incoming.write([b"x" * size, b"y"])
    written, protocol.transport.written = protocol.transport.written, b""
    for text in ("x" * size, "y"):
        await protocol.send({"type": "websocket.send", "text": text})
    assert written == protocol.transport.written


@pytest.mark.parametrize("why", ["paused", "left", "closing", "closed by the client", "closed by the server"])
async def test_nothing_is_written_to_websocket_that_does_not_read(why: str) -> None:
    protocol = await Server().connect()
    incoming = incoming_of(protocol.scope)
    assert incoming
    match why:
        case "paused":
            protocol.pause_writing()
        case "left":
            protocol.disconnected = True
        case "closing":
            protocol.transport.closed = True
        case "closed by the client":
            protocol.conn.receive_data(bytes.fromhex("88820000000003e8"))
        case "closed by the server":
            await protocol.send({"type": "websocket.close", "code": 1000})
    protocol.transport.written = b""
    assert not incoming.write([b"x"])
    assert protocol.transport.written == b""


async def test_writing_to_websocket_goes_on_once_client_reads_again() -> None:
    protocol = await Server().connect()
    incoming = incoming_of(protocol.scope)
    assert incoming
    protocol.pause_writing()
    assert not incoming.write([b"x"])
    protocol.resume_writing()
    assert incoming.write([b"x"])
