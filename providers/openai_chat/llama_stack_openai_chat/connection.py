"""One HTTP/1.1 connection to a model server.

`httptools` parses everything that the socket has at once, however many chunks of a body that is, without a layer in
between that asks for each chunk. This saves most of the cost of reading a stream.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httptools

_BUFFERED_BYTES: Final = 1 << 18
"""Maximum buffered bytes of a body; beyond, reading from the socket is paused (backpressure)."""
_FRAMING_BYTES: Final = 1 << 19
"""Maximum bytes without body data: heads and chunk framing."""
_INFLATED_BYTES: Final = 1 << 22
"""Maximum bytes of a decompressed body that wait to be read."""


_COPIED_BYTES: Final = 65_536
"""Bytes of a body up to which it is sent in one write with the head."""


@dataclass(slots=True)
class Head:
    """The status and headers of a response."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def header(self, name: bytes) -> bytes:
        """Return the first header of this lower-case name; empty if there is none."""
        return next((value for each, value in self.headers if each.lower() == name), b"")

    def drop_headers(self) -> None:
        """Drop the headers, which a long stream would hold although nothing reads them any more."""
        self.headers.clear()


def _why(error: Exception) -> str:
    """Return why an answer cannot be read. The parser wraps what its callbacks raise."""
    cause = error.__context__
    if isinstance(cause, ConnectionError):
        return str(cause)
    if isinstance(cause, zlib.error):
        return f"the server's answer cannot be decompressed: {cause}"
    return f"the server's answer is not HTTP: {cause or error}"


class Connection(asyncio.Protocol):
    """A connection for requests and responses, one after another.

    Args:
        read_seconds: maximum seconds of silence.

    Attributes:
        head: head of the current response, once received.
        busy: whether a response is in progress.
        received: whether any byte of it has arrived.
        closed: whether the connection is closed.
    """

    __slots__ = (
        "_complete",
        "_context",
        "_error",
        "_framing_size",
        "_incoming",
        "_inflater",
        "_loop",
        "_parser",
        "_paused",
        "_pieces",
        "_push",
        "_received_at",
        "_reusable",
        "_seconds",
        "_size",
        "_sized",
        "_stopped",
        "_timer",
        "_transport",
        "_waiter",
        "busy",
        "closed",
        "head",
        "received",
    )

    def __init__(self, read_seconds: float) -> None:
        self.closed = False
        self._seconds = read_seconds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self.busy = False
        # The parser refers to this object in turn: a connection that is never made would not be freed.
        self._parser: Any = None
        self._begin()

    def _begin(self) -> None:
        self.head: Head | None = None
        self.received = False
        self._incoming = Head()
        self._pieces: list[bytes] = []
        self._size = 0
        self._framing_size = 0
        self._paused = False
        self._complete = False
        self._reusable = False
        self._error: Exception | None = None
        self._inflater: Any = None
        self._sized = False
        self._push: Callable[[bytes], bool] | None = None
        self._context: Context
        self._stopped = False

    async def ask(self, request: bytes, body: bytes | bytearray = b"") -> Head:
        """Send a request and wait for the head of its response.

        Args:
            request: the request, or its head.
            body: what follows; it must not change. A large one is not copied.

        Raises:
            TimeoutError: the server was silent for too long.
            OSError: the connection broke, or the response is not HTTP.
        """
        self._begin()
        self._parser = httptools.HttpResponseParser(self)
        self.busy = True
        if len(body) > _COPIED_BYTES:
            self._transport.write(request)
            self._transport.write(body)
        else:
            self._transport.write(request + body)
        while self.head is None:
            await self._more()
        return self.head

    async def read(self) -> bytes:
        """Return the buffered body bytes; wait for some if there are none. Empty at the end.

        Raises:
            TimeoutError, OSError: as for `ask`.
        """
        while not self._pieces:
            if self._complete:
                return b""
            await self._more()
        return self._buffered()

    async def deliver(self, push: Callable[[bytes], bool]) -> bool:
        """Pass the body to `push` as it arrives, until that returns False; return whether the body has ended.

        What arrives while this waits is passed on in the call that receives it, without a task switch. `push` runs in
        the context of the calling task, and must not raise.

        Raises:
            TimeoutError, OSError: as for `ask`.
        """
        task = asyncio.current_task()
        assert task
        self._context = task.get_context()
        try:
            while True:
                if self._pieces:
                    if not push(self._buffered()):
                        return False
                elif self._complete:
                    return True
                else:
                    self._push = push
                    try:
                        await self._more()
                    finally:
                        self._push = None
                        stopped, self._stopped = self._stopped, False
                    if stopped:
                        return False
        finally:
            # An idle connection would hold the data of a request's user.
            del self._context

    @property
    def ends_unmarked(self) -> bool:
        """Whether the body has no length, so that its end looks like a connection that broke."""
        return not self._sized

    def _buffered(self) -> bytes:
        """Take the buffered body bytes."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            # Like the timer of `_more`, the transport's reader would hold the context.
            Context().run(self._transport.resume_reading)
        return data

    async def read_all(self, max_bytes: int) -> bytes:
        """Return the rest of the body.

        Raises:
            TimeoutError, OSError: as for `ask`, or the rest has more than `max_bytes`.
        """
        pieces, size = [], 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise ConnectionError("the server's answer is too long")
        return b"".join(pieces)

    async def tunnel(self, target: str, authorization: str | None, tls: ssl.SSLContext, host: str) -> Connection:
        """Open a tunnel through a proxy to `target` (RFC 9110, CONNECT), and return a TLS connection over it."""
        lines = [f"CONNECT {target} HTTP/1.1", f"host: {target}"]
        if authorization:
            lines.append(f"proxy-authorization: {authorization}")
        head = await self.ask("\r\n".join([*lines, "", ""]).encode())
        if head.status != 200:
            raise ConnectionError(f"the proxy answers {head.status}")
        inner = Connection(self._seconds)
        transport = await self._loop.start_tls(self._transport, inner, tls, server_hostname=host)
        if transport is None:
            raise ConnectionError("the connection through the proxy was closed")
        inner.connection_made(transport)
        return inner

    def finish(self) -> bool:
        """End the current response; return whether the connection can be reused."""
        if not self._reusable or self.closed or self._pieces:
            self.close()
            return False
        self.busy = False
        self._parser = None  # the next request has its own
        return True

    def close(self) -> None:
        """Close the connection at once. In the middle of a response, this makes the server stop its work."""
        self.closed = True
        self._pieces.clear()
        self._transport.abort()

    async def _more(self) -> None:
        """Wait for the next event of the connection."""
        if self._error:
            raise self._error
        self._waiter = self._loop.create_future()
        self._received_at = self._loop.time()
        # A cancelled timer stays until it is due, and would hold the context of this task.
        self._timer = self._loop.call_later(self._seconds, self._check_silence, context=Context())
        try:
            await self._waiter
        finally:
            self._timer.cancel()
            del self._timer
            self._waiter = None

    def _check_silence(self) -> None:
        """Fail if nothing has arrived for too long. A wait may see many arrivals, which do not cost a timer each."""
        left = self._received_at + self._seconds - self._loop.time()
        if left <= 0:
            self._fail(TimeoutError("the server sent nothing in time"))
        else:
            self._timer = self._loop.call_later(left, self._check_silence)

    def _break(self, why: str) -> None:
        """Close the connection after a protocol violation."""
        self._reusable = False
        self._fail(ConnectionError(why))
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if not self.busy:
            # Unsolicited data: the connection can no longer be trusted.
            self.close()
            return
        self.received = True
        self._framing_size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(_why(error))
            return
        if self._framing_size > _FRAMING_BYTES:
            self._break("the headers of the server's answer are too long")
            return
        if (push := self._push) and not self._stopped:
            self._received_at = self._loop.time()
            if self._pieces and not self._context.run(push, self._buffered()):
                self._stopped = True
            elif not self._complete:
                return
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self.closed = True
        self._parser = None  # it refers to this object in turn
        if self.head and not (self._sized or exc or self._error):
            # A body without a length ends with its connection.
            self._complete = True
            self._wake()
        elif not self._complete:
            self._fail(exc or ConnectionResetError("the server closed the connection"))

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Reject a second response to one request."""
        if self._complete:
            raise ConnectionError("the server sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers are ignored."""
        if self.head is None:
            self._incoming.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Complete the head, and set up decompression."""
        self._incoming.status = self._parser.get_status_code()
        if self._incoming.status < 200:
            # An interim (1xx) response.
            self._incoming = Head()
            return
        self.head = self._incoming
        self._sized = bool(self.head.header(b"content-length") or self.head.header(b"transfer-encoding"))
        encoding = self.head.header(b"content-encoding").lower()
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif encoding not in (b"", b"identity"):
            raise ConnectionError(f"the server's answer has the unsupported encoding '{encoding.decode('latin-1')}'")

    def on_body(self, body: bytes) -> None:
        """Buffer a piece of the body."""
        self._framing_size = 0
        if self._inflater:
            # One read of the socket can hold many chunks of a body, and each can grow a thousandfold.
            left = max(1, _INFLATED_BYTES - self._size)
            body = self._inflater.decompress(body, left)
            if self._inflater.unconsumed_tail:
                raise ConnectionError("the decompressed size of the server's answer is too large")
        self._pieces.append(body)
        self._size += len(body)
        if self._size > _BUFFERED_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Mark the response as complete."""
        self._complete = self.head is not None
        self._reusable = self._complete and self._parser.should_keep_alive()
