"""What comes in on a WebSocket, handed to uvicorn's protocol in small pieces.

uvicorn reads up to 256 KiB at a time and decodes all frames in it at once. A frame may have six bytes, so that one read
can hold the event loop for a second. It keeps each fragment of a message as an object, empty ones too, and sends a
pong for each ping, also to a client that reads nothing. So its protocol gets 16 KiB at a time, other connections have
their turn in between, and the connection is closed where a message has too many fragments or too many answers wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from llama_stack_responses.logs import get_logger, leave_out

logger = get_logger(__name__)

Receive = Callable[[Any, bytes], None]

_PIECE: Final = 16_384
_MOST_FRAGMENTS: Final = 16_384
_MOST_UNREAD: Final = 2**20
"""Bytes that may wait to be sent when the next piece is decoded. What this server itself sends waits elsewhere."""
_LOOK_AGAIN: Final = 0.1
_CLOSE: Final = (1008, "The message has too many fragments.")
_DECODER: Final = "_llama_stack_responses_decoder"
_BOUNDED: Final = "_llama_stack_responses_bounded"
_NO_UTF_8: Final = "Invalid UTF-8 sequence received from client."


def bound_websocket_frames() -> None:
    """Has uvicorn's WebSocket protocol decode a little at a time. Where it is another one, nothing changes."""
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    except ImportError:
        logger.debug("this uvicorn speaks WebSocket in another way")
        return
    bound(WebSocketsSansIOProtocol)
    leave_out("uvicorn.error", _NO_UTF_8)


def bound(protocol: Any) -> None:
    """Has a protocol class decode a little at a time."""
    if not hasattr(protocol, _BOUNDED):
        protocol.data_received = _in_pieces(protocol.data_received)
        setattr(protocol, _BOUNDED, True)


def _in_pieces(receive: Receive) -> Receive:
    def data_received(self: Any, data: bytes) -> None:
        decoder: _Decoder = self.__dict__.setdefault(_DECODER, _Decoder(self, receive))
        decoder.take(data)

    return data_received


class _Decoder:
    """Hands one connection's bytes on to its protocol."""

    def __init__(self, protocol: Any, receive: Receive) -> None:
        self._protocol = protocol
        self._receive = receive
        self._waiting: deque[bytes] = deque()

    def take(self, data: bytes) -> None:
        """Decodes the first piece, and the others when the event loop has done other work."""
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
