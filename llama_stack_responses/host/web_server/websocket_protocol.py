"""WebSocket connections: uvicorn's protocol, which gets the received bytes one frame at a time.

uvicorn reads up to 256 KiB at a time and decodes all frames in it at once. A frame may have six bytes, so one read can
block the event loop for a second. So its protocol gets one frame in an iteration of the event loop, or a part of at
most 64 KiB of a large one. Users take turns, however many connections they have. Decoding waits while the handler has
not taken the last message, and while too many bytes wait to be sent.

uvicorn keeps each fragment of a message as an object, including empty ones, and sends a pong for each ping, even to a
client that reads nothing. So fragments are limited in number. What has arrived counts for the user, and a message has a
time limit. Fragments of large messages are joined in a thread. Compression (permessage-deflate) is not offered: it
would inflate and deflate whole messages in the event loop, and 15 KiB can inflate to 15 MiB.
"""

from __future__ import annotations

import asyncio
import codecs
import socket
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from ...admission import Reservation
from ...concurrency.offloading import in_thread
from ...core.errors import ApiError
from ...wire.websocket.incoming import INCOMING
from .frame_scanner import UNIT, FrameScanner

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
    from uvicorn.config import Config

_MAX_FRAGMENTS: Final = 16_384
_FRAGMENT_BYTES: Final = 128
"""Approximate bytes that a fragment takes in addition to its payload."""
_UNSENT_BYTES: Final = 2**20
"""Unsent bytes up to which the next frame is decoded. Data that this server itself sends are buffered elsewhere."""
_MIN_BYTES_PER_SECOND: Final = 16_384
"""Bytes per second. A message that arrives faster has no time limit."""
_POLL_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 10.0
"""Seconds that a refused client has to read what was sent; then its connection is reset."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""`SO_LINGER` with a time of 0: closing drops unsent data. Otherwise the kernel keeps them for minutes (tcp(7))."""
_TOO_MANY: Final = (1008, "The message has too many fragments.")
_TOO_SLOW: Final = (1008, "The message arrived too slowly.")
_NOT_UTF_8: Final = (1007, "The message is not UTF-8.")
_TEXT_FRAME: Final = 0x81
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
"""The lengths of a frame that say that the length follows in two or in eight bytes."""


class RoundRobin:
    """Decodes one frame of each user in an iteration of the event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[_Decoder]] = OrderedDict()
        self._planned = False

    def add(self, decoder: _Decoder) -> None:
        """Let a connection decode a frame when it is its turn."""
        self._waiting.setdefault(decoder.user, deque()).append(decoder)
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._planned = False
        waiting, self._waiting = self._waiting, OrderedDict()
        for user, decoders in waiting.items():
            first = decoders.popleft()
            if decoders:
                self._waiting.setdefault(user, deque()).extend(decoders)
            first.step()
        if self._waiting and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._run)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """The protocol of one connection.

    Attributes:
        turns: whose turn it is.
    """

    turns: Final = RoundRobin()
    _decoder: _Decoder | None = None

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        config.ws_per_message_deflate = False
        super().__init__(config, *args, **kwargs)

    def data_received(self, data: bytes) -> None:
        """Decode these bytes in later iterations of the event loop; the handshake at once."""
        if self._decoder:
            self._decoder.feed(data)
            return
        # uvicorn passes the whole handshake first.
        super().data_received(data)
        self._decoder = _Decoder(self, self.turns)
        if scope := getattr(self, "scope", None):
            scope[INCOMING] = self._decoder

    def decode(self, data: bytes) -> None:
        """Decode these bytes now."""
        super().data_received(data)

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message of the client."""
        message = await super().receive()
        if self._decoder:
            self._decoder.delivered()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message to the client."""
        await super().send(message)
        if self._decoder:
            self._decoder.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        if self._decoder:
            self._decoder.lost()

    def send_receive_event_to_app(self) -> None:
        """Pass a complete message on."""
        if self._decoder and self._decoder.joins(self.frames) and not self.close_sent:
            frames, self.frames = self.frames, []
            self._decoder.join(frames, text=self.curr_msg_data_type == "text")
        else:
            super().send_receive_event_to_app()


class _Decoder:
    """Passes one connection's frames to its protocol.

    Attributes:
        user: with whom other connections take turns.
    """

    def __init__(self, protocol: WebSocketProtocol, turns: RoundRobin) -> None:
        self.user: Hashable = id(self)
        self._protocol: Any = protocol  # its attributes change with each call, which their types do not say
        self._turns = turns
        self._buffer = bytearray()
        self._scanner = FrameScanner(protocol.config.ws_max_size)
        self._reservation: Reservation | None = None
        self._seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._message = 0
        self._planned = False
        self._joining: asyncio.Task[None] | None = None
        self._copied = 0
        self._closing: asyncio.TimerHandle | None = None

    def count_for(self, user: Hashable, reservation: Reservation, seconds: float) -> None:
        """Count what arrives for a user, as `Incoming` says."""
        self.user, self._reservation, self._seconds = user, reservation, seconds
        self._count()

    def write(self, messages: Sequence[bytes]) -> bool:
        """Send text messages, each as one frame, past the protocol's coroutine; return whether they were sent."""
        protocol = self._protocol
        if not protocol.writable.is_set() or protocol.disconnected or protocol.close_sent:
            return False
        if protocol.conn.state is not State.OPEN or protocol.transport.is_closing():
            return False
        protocol.transport.write(b"".join([_head(len(message)) + message for message in messages]))
        return True

    async def drained(self) -> None:
        """Wait until the client has read most of the sent data."""
        await self._protocol.writable.wait()

    def feed(self, data: bytes) -> None:
        """Decode these bytes in later iterations of the event loop."""
        self._buffer += data
        if self._count():
            self._time()
            self.wake()

    def wake(self) -> None:
        """Plan to decode the next frame, if it may be decoded."""
        protocol = self._protocol
        if protocol.transport.is_closing():
            self.close()
        elif self._planned or not self._buffer:
            return
        elif not protocol.handshake_complete or protocol.read_paused or self._joining:
            protocol.transport.pause_reading()
        else:
            self._planned = True
            self._turns.add(self)

    def step(self) -> None:
        """Decode a frame."""
        self._planned = False
        protocol, transport = self._protocol, self._protocol.transport
        if transport.is_closing():
            self.close()
        elif protocol.read_paused or self._joining:
            transport.pause_reading()
        elif transport.get_write_buffer_size() > _UNSENT_BYTES:
            transport.pause_reading()
            asyncio.get_running_loop().call_later(_POLL_SECONDS, self.wake)
        elif unit := self._scanner.next_unit(self._buffer):
            transport.pause_reading()
            self._message += unit.payload
            protocol.decode(unit.data)
            if len(protocol.frames) > _MAX_FRAGMENTS:
                self._refuse(*_TOO_MANY)
            elif self._buffer:
                self.wake()
            elif not (protocol.read_paused or self._joining or transport.is_closing()):
                transport.resume_reading()
        else:
            transport.resume_reading()

    def delivered(self) -> None:
        """Continue: the handler has received a message."""
        if not self._protocol.read_paused:
            self._message = 0
            if self._timer:
                self._timer.cancel()
                self._timer = None
            self._count()
            self._time()
            self.wake()

    def close(self) -> None:
        """Drop the received data: the connection has ended."""
        self._buffer.clear()
        if self._joining:
            self._joining.cancel()
        if self._timer:
            self._timer.cancel()
        if self._reservation:
            self._reservation.release()

    def lost(self) -> None:
        """Drop the received data and the timers: the socket is closed."""
        if self._closing:
            self._closing.cancel()
            self._closing = None
        self.close()

    def joins(self, frames: list[bytes]) -> bool:
        """Return whether a message is joined here: a large one, of a connection whose handler takes bytes."""
        return self._reservation is not None and sum(map(len, frames)) > UNIT

    def join(self, frames: list[bytes], *, text: bool) -> None:
        """Join the fragments of a message in a thread, and pass it on.

        Until then there are both, which the user must be allowed to hold: a large part of the freed fragments stays in
        the process.
        """
        self._copied = sum(map(len, frames)) + len(frames) * _FRAGMENT_BYTES
        if not self._count():
            return
        self._joining = asyncio.get_running_loop().create_task(self._join(frames, text=text))

    async def _join(self, frames: list[bytes], *, text: bool) -> None:
        protocol = self._protocol
        try:
            message = await in_thread(_joined, frames, text=text)
        except UnicodeDecodeError:
            self._joining = None
            self._refuse(*_NOT_UTF_8)
            return
        self._joining, self._copied = None, 0
        self._count()
        protocol.read_paused = True
        protocol.transport.pause_reading()
        protocol.queue.put_nowait({"type": "websocket.receive", "bytes": message})

    def _held(self) -> int:
        """Return the decoded bytes of the current message, twice while it is joined.

        A fragment counts even if it is empty.
        """
        return self._message + self._copied + len(self._protocol.frames) * _FRAGMENT_BYTES

    def _count(self) -> bool:
        """Count the held bytes; return whether the connection stays open."""
        if self._reservation is None:
            return True
        try:
            self._reservation.resize(len(self._buffer) + self._held())
        except ApiError as error:
            self._refuse(1013, error.message)
            return False
        return True

    def _time(self) -> None:
        """Start the time limit of a message that has begun."""
        begun = self._buffer or self._held()
        if begun and self._reservation and self._timer is None:
            now = asyncio.get_running_loop().time()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check_time, now)
        elif self._timer and not begun:
            self._timer.cancel()
            self._timer = None

    def _check_time(self, since: float) -> None:
        self._timer = None
        protocol, loop = self._protocol, asyncio.get_running_loop()
        until = since + self._seconds + self._held() / _MIN_BYTES_PER_SECOND
        if protocol.read_paused or self._joining or not (self._buffer or self._held()):
            return  # the message is complete
        if loop.time() >= until:
            self._refuse(*_TOO_SLOW)
        else:
            self._timer = loop.call_at(until, self._check_time, since)

    def _refuse(self, code: int, reason: str) -> None:
        protocol, transport = self._protocol, self._protocol.transport
        if not transport.is_closing():
            stalled = transport.get_write_buffer_size() > _UNSENT_BYTES
            protocol.conn.fail(code, reason[:120])
            protocol.close_sent = True
            if stalled:
                self._reset()
            else:
                transport.write(b"".join(protocol.conn.data_to_send()))
                self._closing = asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._reset)
                transport.close()
        protocol.frames = []
        self.close()

    def _reset(self) -> None:
        """Close the connection without sending what the client has not read."""
        transport = self._protocol.transport
        if connection := transport.get_extra_info("socket"):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()


def _head(size: int) -> bytes:
    """Return the head of a text frame that is a whole message (RFC 6455, section 5.2)."""
    if size < _LENGTH_16:
        return bytes((_TEXT_FRAME, size))
    return b"%c%c%b" % (
        (_TEXT_FRAME, _LENGTH_16, size.to_bytes(2)) if size < 2**16 else (_TEXT_FRAME, _LENGTH_64, size.to_bytes(8))
    )


def _joined(frames: list[bytes], *, text: bool) -> bytearray:
    """Return the message, in steps between which other threads run.

    Raises:
        UnicodeDecodeError: it is text, and no UTF-8.
    """
    message = bytearray(sum(map(len, frames)))
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    for number, frame in enumerate(frames):
        message[offset : offset + len(frame)] = frame
        offset += len(frame)
        if text:
            decoder.decode(frame, final=number == len(frames) - 1)
        frames[number] = b""
        time.sleep(0)
    return message
