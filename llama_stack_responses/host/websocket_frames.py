"""Passes the bytes received on a WebSocket to uvicorn's protocol in small pieces.

uvicorn reads up to 256 KiB at a time and decodes all frames in it at once. A frame may have six bytes, so one read can
block the event loop for a second. It keeps each fragment of a message as an object, including empty ones, and sends a
pong for each ping, even to a client that reads nothing. So its protocol gets 16 KiB at a time, other connections run in
between, and the connection is closed if a message has too many fragments. While too many bytes wait to be sent,
decoding pauses. Compression (permessage-deflate) is not offered: it would inflate and deflate whole messages in the
event loop, and 15 KiB can inflate to 15 MiB.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from llama_stack_responses.logs import get_logger, leave_out

logger = get_logger(__name__)

Receive = Callable[[Any, bytes], None]

_PIECE: Final = 16_384
_MOST_FRAGMENTS: Final = 16_384
_MOST_UNREAD: Final = 2**20
"""Unsent bytes up to which the next piece is decoded. Data that this server itself sends are buffered elsewhere."""
_LOOK_AGAIN: Final = 0.1
_CLOSE: Final = (1008, "The message has too many fragments.")
_DECODER: Final = "_llama_stack_responses_decoder"
_BOUNDED: Final = "_llama_stack_responses_bounded"
_NO_UTF_8: Final = "Invalid UTF-8 sequence received from client."


def bound_websocket_frames() -> None:
    """Make uvicorn's WebSocket protocol decode in small pieces. With another protocol, nothing changes."""
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    except ImportError:
        logger.debug("unsupported uvicorn version: WebSocket frames are not checked before they are decoded")
        return
    bound(WebSocketsSansIOProtocol)
    leave_out("uvicorn.error", _NO_UTF_8)


def bound(protocol: Any) -> None:
    """Make a protocol class decode in small pieces, without compression."""
    if not hasattr(protocol, _BOUNDED):
        protocol.__init__ = _without_compression(protocol.__init__)
        protocol.data_received = _in_pieces(protocol.data_received)
        setattr(protocol, _BOUNDED, True)


def _without_compression(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        for config in (*args[:1], *filter(None, [kwargs.get("config")])):
            config.ws_per_message_deflate = False
        init(self, *args, **kwargs)

    return create


def _in_pieces(receive: Receive) -> Receive:
    def data_received(self: Any, data: bytes) -> None:
        decoder: _Decoder = self.__dict__.setdefault(_DECODER, _Decoder(self, receive))
        decoder.take(data)

    return data_received


class _Decoder:
    """Passes one connection's bytes to its protocol."""

    def __init__(self, protocol: Any, receive: Receive) -> None:
        self._protocol = protocol
        self._receive = receive
        self._waiting: deque[bytes] = deque()

    def take(self, data: bytes) -> None:
        """Decode the first piece now, and the rest in later iterations of the event loop."""
        decodes = bool(self._waiting)
        self._waiting.extend(data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
        if decodes:
            self._protocol.transport.pause_reading()
        elif self._waiting:
            self._decode()

    def _decode(self) -> None:
        transport = self._protocol.transport
        if transport.is_closing():
            self._waiting.clear()
        elif transport.get_write_buffer_size() > _MOST_UNREAD:
            transport.pause_reading()
            asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._decode)
        else:
            self._receive(self._protocol, self._waiting[0])
            self._waiting.popleft()
            self._go_on(transport)

    def _go_on(self, transport: Any) -> None:
        if len(self._protocol.frames) > _MOST_FRAGMENTS:
            self._waiting.clear()
            self._refuse(transport)
        elif self._waiting:
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._decode)
        elif not self._protocol.read_paused:
            transport.resume_reading()

    def _refuse(self, transport: Any) -> None:
        self._protocol.conn.fail(*_CLOSE)
        transport.write(b"".join(self._protocol.conn.data_to_send()))
        self._protocol.close_sent = True
        transport.close()
