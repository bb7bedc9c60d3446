"""Bounds on what uvicorn parses of HTTP: heads of requests, pipelined requests, and small chunks of bodies.

uvicorn's protocol for httptools bounds none of them (its protocol for h11 bounds heads). httptools joins the pieces of
an endless URL or header in quadratic time, in the event loop and before authentication, and keeps all trailers of a
body. A query of 60 KiB can hold 30,000 parameters, which FastAPI decodes for each request. One read of 256 KiB holds
14,000 pipelined requests, and each answer makes uvicorn read on; or it holds 43,000 chunks of one byte, each with a
call from the parser. So heads and waiting requests are limited, and what was read is parsed in slices, one in an
iteration of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import orjson

from ...core.errors import ApiError
from ...core.ids import new_id
from ...logs import get_logger, leave_out
from .http_protocol import http_protocol

logger = get_logger(__name__)

MAX_HEAD_BYTES: Final = 131_072
"""Maximum bytes of the head of a request, of the trailers of a body, and of the extensions of a chunk."""
MAX_HEADERS: Final = 512
MAX_URL_BYTES: Final = 16_384
MAX_PARAMETERS: Final = 512
"""Maximum parameters of a query."""
MAX_PIPELINED: Final = 32
"""Maximum requests of a connection that wait until earlier ones are answered."""
SLICE_BYTES: Final = 65_536
SMALL_SLICE_BYTES: Final = 4_096
"""Bytes that are parsed at a time; the smaller number is for connections that send small chunks."""
_SMALL_CHUNK_BYTES: Final = 64
"""Average size up to which chunks are small."""

_BOUNDED: Final = "_llama_stack_responses_bounded"
_PARSING: Final = "_llama_stack_responses_parsing"
_INVALID: Final = "Invalid HTTP request received."
_PHRASES: Final = {414: b"URI Too Long", 431: b"Request Header Fields Too Large"}
_REFUSAL: Final = (
    b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"x-request-id: %b\r\nconnection: close\r\n\r\n"
)
_TOO_LARGE: Final = ApiError(
    431,
    f"The request's head is larger than {MAX_HEAD_BYTES} bytes, or has more than {MAX_HEADERS} headers.",
    code="request_header_fields_too_large",
)
_TOO_LONG: Final = ApiError(
    414,
    f"The request's URL is longer than {MAX_URL_BYTES} bytes, or has more than {MAX_PARAMETERS} parameters.",
    code="uri_too_long",
)


def bound_http_parsing() -> None:
    """Make uvicorn's protocol for httptools parse within these bounds. With another protocol, nothing changes."""
    protocol = http_protocol()
    if protocol is None:
        logger.debug("httptools is not installed: h11 bounds the heads of requests")
        return
    bound(protocol)
    leave_out("uvicorn.error", _INVALID)


def bound(protocol: Any) -> None:
    """Make a protocol class parse within these bounds."""
    if not hasattr(protocol, _BOUNDED):
        protocol.connection_made = _with_parsing(protocol.connection_made, protocol.data_received)
        protocol.data_received = _feed
        protocol.on_url = _short(protocol.on_url)
        protocol.on_header = _counted(protocol.on_header)
        protocol.on_headers_complete = _in_line(protocol.on_headers_complete)
        protocol.on_body = _noted(protocol.on_body)
        protocol.send_400_response = _unless_closed(protocol.send_400_response)
        setattr(protocol, _BOUNDED, True)


def _with_parsing(
    connection_made: Callable[[Any, asyncio.Transport], None], receive: Callable[[Any, bytes], None]
) -> Callable[[Any, asyncio.Transport], None]:
    @wraps(connection_made)
    def called(self: Any, transport: asyncio.Transport) -> None:
        connection_made(self, transport)
        parsing = self.__dict__[_PARSING] = _Parsing(self, transport, receive)
        self.flow._transport = parsing  # the flow only pauses and resumes reading

    return called


def _feed(self: Any, data: bytes) -> None:
    self.__dict__[_PARSING].feed(data)


def _short(on_url: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    @wraps(on_url)
    def called(self: Any, url: bytes) -> None:
        on_url(self, url)
        if len(self.url) > MAX_URL_BYTES or self.url.count(b"&") >= MAX_PARAMETERS:
            self.__dict__[_PARSING].refuse(_TOO_LONG)
            raise _RefusedError

    return called


def _counted(on_header: Callable[[Any, bytes, bytes], None]) -> Callable[[Any, bytes, bytes], None]:
    @wraps(on_header)
    def called(self: Any, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            self.__dict__[_PARSING].refuse(_TOO_LARGE)
            raise _RefusedError
        on_header(self, name, value)

    return called


def _in_line(on_headers_complete: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(on_headers_complete)
    def called(self: Any) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise _RefusedError
        self.__dict__[_PARSING].note_progress()
        on_headers_complete(self)

    return called


def _noted(on_body: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    @wraps(on_body)
    def called(self: Any, body: bytes) -> None:
        self.__dict__[_PARSING].note_progress()
        on_body(self, body)

    return called


def _unless_closed(send_400_response: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    @wraps(send_400_response)
    def called(self: Any, message: str) -> None:
        if not self.transport.is_closing():
            send_400_response(self, message)

    return called


class _RefusedError(Exception):
    """Makes the parser stop, after the connection was closed."""


class _Parsing:
    """Passes the bytes of one connection to its parser.

    Args:
        protocol: uvicorn's protocol.
        transport: its transport.
        receive: parses bytes, as a method of the protocol.
    """

    __slots__ = (
        "_flow",
        "_loop",
        "_parts",
        "_planned",
        "_protocol",
        "_receive",
        "_since_progress",
        "_slice",
        "_transport",
        "_waiting",
    )

    def __init__(self, protocol: Any, transport: asyncio.Transport, receive: Callable[[Any, bytes], None]) -> None:
        self._protocol = protocol
        self._flow = protocol.flow
        self._transport = transport
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._slice = SLICE_BYTES // 4
        self._planned = False
        self._since_progress = 0
        self._parts = 0

    def feed(self, data: bytes) -> None:
        """Parse these bytes, now or in later iterations of the event loop."""
        if not self._waiting and len(data) <= self._slice:
            self._parse(data)
            return
        self._waiting += data
        self._transport.pause_reading()
        self._plan()

    def pause_reading(self) -> None:
        """Neither read nor parse until `resume_reading`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue."""
        if self._waiting:
            self._plan()
        else:
            self._transport.resume_reading()

    def note_progress(self) -> None:
        """Note that a head was complete, or that a part of a body came."""
        self._since_progress = 0
        self._parts += 1

    def refuse(self, error: ApiError) -> None:
        """Answer with the error and close the connection; during an answer, only close it."""
        cycle = self._protocol.cycle
        if cycle is not None and not cycle.response_complete:
            self._transport.abort()
            return
        body = orjson.dumps(error.body())
        head = _REFUSAL % (error.status, _PHRASES[error.status], len(body), new_id("req").encode())
        self._transport.write(head + body)
        self._transport.close()

    def _plan(self) -> None:
        if not self._planned and not self._flow.read_paused:
            self._planned = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._planned = False
        if self._transport.is_closing() or self._transport.get_protocol() is not self._protocol:
            self._waiting.clear()
        elif self._waiting and not self._flow.read_paused:
            data = bytes(self._waiting[: self._slice])
            del self._waiting[: self._slice]
            self._parse(data)
            if self._waiting:
                self._plan()
            elif not self._flow.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        self._since_progress += len(data)
        self._parts = 0
        self._receive(self._protocol, data)
        self._slice = SMALL_SLICE_BYTES if self._parts * _SMALL_CHUNK_BYTES > len(data) else SLICE_BYTES
        if self._since_progress > MAX_HEAD_BYTES and not self._transport.is_closing():
            self.refuse(_TOO_LARGE)
