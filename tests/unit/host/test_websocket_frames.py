"""WebSocket data is decoded in small blocks."""

from __future__ import annotations

import asyncio
import logging
from inspect import unwrap
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from llama_stack_responses.host.websocket_frames import bound, bound_websocket_frames

PIECE = 16_384


class Transport:
    """A transport whose client reads nothing."""

    def __init__(self) -> None:
        self.reads = True
        self.closed = False
        self.unread = 0
        self.written = b""

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes) -> None:
        self.written += data


class Conn:
    """The connection object, which closes a connection."""

    def __init__(self) -> None:
        self.code = 0

    def fail(self, code: int, _: str) -> None:
        self.code = code

    def data_to_send(self) -> list[bytes]:
        return [b"bye"]


class Protocol:
    """Record the decoded data."""

    def __init__(self) -> None:
        self.transport, self.conn = Transport(), Conn()
        self.frames: list[bytes] = []
        self.read_paused = self.close_sent = False
        self.decoded: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.decoded.append(data)


@pytest.fixture
def protocol() -> Any:
    """An instance of a bounded class."""
    kind = type("Bounded", (Protocol,), {})
    bound(kind)
    bound(kind)
    return kind()


async def turns(count: int) -> None:
    """Let the event loop run `count` iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_small_data_is_decoded_at_once(protocol: Any) -> None:
    protocol.data_received(b"one")
    protocol.data_received(b"two")
    assert protocol.decoded == [b"one", b"two"]
    assert protocol.transport.reads


async def test_large_data_is_decoded_in_blocks_with_reading_paused(protocol: Any) -> None:
    data = bytes(range(256)) * 200
    protocol.data_received(data)
    assert (protocol.decoded, protocol.transport.reads) == ([data[:PIECE]], False)
    protocol.data_received(b"behind it")
    await turns(1)
    assert protocol.decoded == [data[:PIECE], data[PIECE : 2 * PIECE]]
    await turns(4)
    assert b"".join(protocol.decoded) == data + b"behind it"
    assert protocol.transport.reads


async def test_reading_stays_paused_if_protocol_paused_it(protocol: Any) -> None:
    protocol.data_received(b"x" * 2 * PIECE)
    protocol.read_paused = True
    await turns(3)
    assert (len(protocol.decoded), protocol.transport.reads) == (2, False)


async def test_too_many_fragments_close_connection(protocol: Any) -> None:
    protocol.frames = [b""] * (PIECE + 1)
    protocol.data_received(b"x" * 3 * PIECE)
    await turns(3)
    assert len(protocol.decoded) == 1
    assert (protocol.conn.code, protocol.transport.written) == (1008, b"bye")
    assert protocol.close_sent
    assert protocol.transport.closed


async def test_unread_answers_pause_decoding(protocol: Any) -> None:
    protocol.transport.unread = 2**20 + 1
    protocol.data_received(b"ping")
    assert (protocol.decoded, protocol.transport.reads) == ([], False)
    protocol.transport.unread = 0
    async with asyncio.timeout(60):
        while not protocol.decoded:  # noqa: ASYNC110 - nothing says when it looks again
            await asyncio.sleep(0.01)
    assert protocol.transport.reads


async def test_closed_connection_decodes_nothing(protocol: Any) -> None:
    protocol.data_received(b"x" * 2 * PIECE)
    protocol.transport.close()
    await turns(3)
    assert len(protocol.decoded) == 1


def test_invalid_utf8_message_is_not_logged_by_server(caplog: pytest.LogCaptureFixture) -> None:
    bound_websocket_frames()
    log = logging.getLogger("uvicorn.error")
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        log.error("Invalid UTF-8 sequence received from client.", exc_info=True)
        log.error("Another one.")
    assert [record.message for record in caplog.records] == ["Another one."]


def test_installed_uvicorn_protocol_has_used_attributes() -> None:
    bound_websocket_frames()
    init: Any = unwrap(WebSocketsSansIOProtocol.__init__)
    assert {"frames", "read_paused", "close_sent"} <= set(init.__code__.co_names)


async def test_compression_is_not_offered() -> None:
    kind: Any = type("Bounded", (WebSocketsSansIOProtocol,), {})
    bound(kind)
    config = Config(app=lambda *_: None, log_config=None)
    config.load()
    protocol = kind(config=config, server_state=ServerState(), app_state={})
    assert not protocol.conn.available_extensions
