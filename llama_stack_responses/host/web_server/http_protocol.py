"""HTTP connections: uvicorn's protocol for httptools, with bounds on what it parses and holds.

uvicorn's protocol bounds no head of a request (its protocol for h11 does), no pipelined requests, and no small chunks
of bodies. httptools joins the pieces of an endless URL or header in quadratic time, in the event loop and before
authentication, and keeps all trailers of a body. A query of 60 KiB can hold 30,000 parameters, which FastAPI decodes
for each request. One read of 256 KiB holds 14,000 pipelined requests, and each answer makes uvicorn read on; or it
holds 43,000 chunks of one byte, each with a call from the parser. So heads and waiting requests are limited, and what
was read is parsed in slices, one in an iteration of the event loop.

uvicorn keeps the newest request of a connection only, and marks that one as disconnected when the connection ends. An
earlier request, whose answer is under way, would run to its end for a client that is gone. A WebSocket that is opened
behind a request without a complete answer would get the rest of that answer, so such a connection is closed.

A connection holds no deque: an empty one takes 600 bytes, and uvicorn has one for pipelined requests, and one in the
event that waits for a client to read.

A connection that has ended holds nothing in a reference cycle. uvicorn's would hold what was not sent, and all that the
request had, until the garbage collector visits old objects.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import orjson
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ...concurrency.small_event import SmallEvent
from ...core.errors import ApiError, NotBegunError
from ...core.ids import new_id
from ..refusals import refuse

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

_PHRASES: Final = {414: b"URI Too Long", 421: b"Misdirected Request", 431: b"Request Header Fields Too Large"}
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


class HttpProtocol(HttpToolsProtocol):
    """The protocol of one connection. Its attributes are slots: with more in its dict, that would take 1.5 kB."""

    __slots__ = ("_answered", "_closes", "_flow")

    _answered: RequestResponseCycle | None
    """The request that is being answered, while later ones wait for it."""
    _closes: bool
    """Whether the connection is closed after the next answer."""
    _flow: _Flow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin."""
        super().connection_made(transport)
        self._answered = None
        self._closes = False
        self._flow = _Flow(self, transport)
        self.flow = cast("FlowControl", self._flow)
        self.pipeline = cast("Any", _Pipeline(self.pipeline))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests."""
        answered = self._answered
        if answered is not None and not answered.response_complete:
            answered.disconnected = True
            answered.message_event.set()
        super().connection_lost(exc)
        self._let_go()

    def data_received(self, data: bytes) -> None:
        """Parse these bytes, now or in later iterations of the event loop."""
        self._flow.feed(data)

    def parse(self, data: bytes) -> None:
        """Parse these bytes now."""
        super().data_received(data)

    def on_url(self, url: bytes) -> None:
        """Add to the URL."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES or self.url.count(b"&") >= MAX_PARAMETERS:
            self._refuse(_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header or a trailer."""
        if len(self.headers) >= MAX_HEADERS:
            self._refuse(_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or let it wait."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise _RefusedError
        self._flow.note_progress()
        newest, alone = self.cycle, not self.pipeline
        super().on_headers_complete()
        if alone and self.pipeline:
            self._answered = newest
        if self._closes and self.cycle is not newest:  # it is, if a WebSocket is asked for
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Pass a part of a body on."""
        self._flow.note_progress()
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Start the next request."""
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection on, or close it if a request is not answered."""
        if self._is_answering():
            self.transport.abort()
        elif self._closes:
            self.refuse(NotBegunError())
        else:
            super().handle_websocket_upgrade()
            self._let_go()

    def close_after_answer(self) -> None:
        """Close the connection after the answer under way, or else after the next one, and say so in its head.

        An idle connection stays open for uvicorn's time: its client may be sending a request right now. It is refused
        as not begun, so that a load balancer sends it to another server.
        """
        self._closes = True
        self.app = _not_begun
        if self._is_answering() and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, unless a refusal was sent."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def refuse(self, error: ApiError) -> None:
        """Answer with the error and close the connection; during an answer, only close it."""
        if self._is_answering():
            self.transport.abort()
            return
        body = orjson.dumps(error.body())
        head = _REFUSAL % (error.status, _PHRASES[error.status], len(body), new_id("req").encode())
        self.transport.write(head + body)
        self.transport.close()

    def _let_go(self) -> None:
        """End the references to what refers to this protocol; a request that is being answered keeps its own."""
        self._unset_keepalive_if_required()
        self._flow.end()
        self.parser = None  # type: ignore[assignment]  # as in uvicorn
        self.cycle = None  # type: ignore[assignment]  # as before the first request
        self._answered = None
        self.pipeline.clear()

    def _is_answering(self) -> bool:
        newest: RequestResponseCycle | None = self.cycle
        return newest is not None and not newest.response_complete

    def _refuse(self, error: ApiError) -> None:
        """Refuse the request, and make the parser stop."""
        self.refuse(error)
        raise _RefusedError


async def _not_begun(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request, once it has arrived: one whose connection is closed earlier may be lost with the refusal."""
    while (await receive()).get("more_body"):
        pass
    await refuse(NotBegunError(), scope, send)


class _RefusedError(Exception):
    """Makes the parser stop, after the connection was closed."""


class _Pipeline(list[Any]):
    """A list with what uvicorn uses of a deque; only a few requests can wait."""

    __slots__ = ()

    def appendleft(self, request: Any) -> None:
        """Add the newest request, which is answered last."""
        self.insert(0, request)


class _Flow:
    """Passes the bytes of one connection to its parser, in the place of uvicorn's `FlowControl`.

    Args:
        protocol: the connection's protocol.
        transport: its transport.

    Attributes:
        read_paused: whether nothing is parsed.
        write_paused: whether the client does not read.
    """

    __slots__ = (
        "_loop",
        "_parts",
        "_planned",
        "_protocol",
        "_since_progress",
        "_slice",
        "_transport",
        "_waiting",
        "_writable",
        "read_paused",
        "write_paused",
    )

    def __init__(self, protocol: HttpProtocol, transport: asyncio.Transport) -> None:
        self.read_paused = False
        self.write_paused = False
        self._protocol: HttpProtocol | None = protocol
        self._transport = transport
        self._writable = SmallEvent(is_set=True)
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._slice = SLICE_BYTES // 4
        self._planned = False
        self._since_progress = 0
        self._parts = 0

    def end(self) -> None:
        """Parse nothing more."""
        self._protocol = None
        self._waiting.clear()

    async def drain(self) -> None:
        """Wait until the client reads."""
        await self._writable.wait()

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self.write_paused = False
        self._writable.set()

    def pause_reading(self) -> None:
        """Neither read nor parse until `resume_reading`."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue."""
        if self.read_paused:
            self.read_paused = False
            self._continue()

    def feed(self, data: bytes) -> None:
        """Parse these bytes, now or in later iterations of the event loop."""
        if not self._waiting and len(data) <= self._slice:
            self._parse(data)
            return
        self._waiting += data
        self._transport.pause_reading()
        self._plan()

    def note_progress(self) -> None:
        """Note that a head was complete, or that a part of a body came."""
        self._since_progress = 0
        self._parts += 1

    def _continue(self) -> None:
        if self._waiting:
            self._plan()
        elif not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _plan(self) -> None:
        if not self._planned and not self.read_paused:
            self._planned = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._planned = False
        if self._transport.is_closing():
            self._waiting.clear()
        elif self._waiting and not self.read_paused:
            data = bytes(self._waiting[: self._slice])
            del self._waiting[: self._slice]
            self._parse(data)
            self._continue()

    def _parse(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        self._since_progress += len(data)
        self._parts = 0
        protocol.parse(data)
        self._slice = SMALL_SLICE_BYTES if self._parts * _SMALL_CHUNK_BYTES > len(data) else SLICE_BYTES
        if self._since_progress > MAX_HEAD_BYTES and not self._transport.is_closing():
            protocol.refuse(_TOO_LARGE)
