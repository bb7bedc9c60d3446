"""One HTTP/1.1 connection to a model server.

The parser of `httptools` takes whatever the socket has at once, however many chunks of a body that is, and no layer in
between asks for each of them. That is most of what reading a stream costs.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httptools

_BUFFERED: Final = 1 << 18
"""Bytes of a body that wait to be read; past them the server has to wait."""
_BETWEEN: Final = 1 << 19
"""Bytes that may come and be none of a body: heads, and how it is cut into chunks."""
_INFLATED: Final = 1 << 24
"""Bytes that a compressed body may become before they are read."""


@dataclass(slots=True)
class Head:
    """What comes before a body."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def header(self, name: bytes) -> bytes:
        """The first header of this name, which is in lower case; empty if there is none."""
        return next((value for each, value in self.headers if each.lower() == name), b"")


class Connection(asyncio.Protocol):
    """Sends requests and reads their responses, one after another.

    Args:
        read_seconds: of silence, at most.

    Attributes:
        head: of the response that is being read, once it is there.
        busy: whether there is such a response.
        heard: whether anything of it has come.
        closed: whether there is no connection any more.
    """

    def __init__(self, read_seconds: float) -> None:
        self.closed = False
        self._seconds = read_seconds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self.busy = False
        self._begin()

    def _begin(self) -> None:
        self.head: Head | None = None
        self.heard = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self._coming = Head()
        self._pieces: list[bytes] = []
        self._size = 0
        self._between = 0
        self._paused = False
        self._whole = False
        self._reusable = False
        self._error: Exception | None = None
        self._inflater: Any = None

    async def ask(self, request: bytes) -> Head:
        """Sends a request and waits for the head of its response.

        Raises:
            TimeoutError: the server was silent for too long.
            OSError: the connection broke, or what came is no HTTP.
        """
        self._begin()
        self.busy = True
        self._transport.write(request)
        while self.head is None:
            await self._more()
        return self.head

    async def read(self) -> bytes:
        """What has come of the body; waits for the first of it. Empty at the end.

        Raises:
            TimeoutError, OSError: as above.
        """
        while not self._pieces:
            if self._whole:
                return b""
            await self._more()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def read_all(self, most: int) -> bytes:
        """The rest of the body.

        Raises:
            TimeoutError, OSError: as above, or it has more than `most` bytes.
        """
        pieces, size = [], 0
        while piece := await self.read():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise ConnectionError("the server's answer is too long")
        return b"".join(pieces)

    async def tunnel(self, target: str, authorization: str | None, tls: ssl.SSLContext, host: str) -> Connection:
        """Has a proxy connect this connection to `target`; what is asked of the new one goes through encrypted."""
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

    def rest(self) -> bool:
        """Says that nobody reads the response any more; returns whether the connection takes another request."""
        if not self._reusable or self.closed or self._pieces:
            self.close()
            return False
        self.busy = False
        return True

    def close(self) -> None:
        """Hangs up, in the middle of a response too: the server stops working on it."""
        self.closed = True
        self._transport.abort()

    async def _more(self) -> None:
        """Waits until something happens."""
        if self._error:
            raise self._error
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(self._seconds, self._fail, TimeoutError("the server is silent"))
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _break(self, why: str) -> None:
        """What comes makes no sense from here on."""
        self._reusable = False
        self._fail(ConnectionError(why))
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    # What the loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a response."""
        if not self.busy:
            # A server that speaks unasked cannot be understood any more.
            self.close()
            return
        self.heard = True
        self._between += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, zlib.error) as error:
            self._break(f"the server's answer is no HTTP: {error.__context__ or error}")
            return
        if self._between > _BETWEEN:
            self._break("the head of the server's answer is too long")
            return
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """There will be no more bytes."""
        self.closed = True
        sized = self.head and (self.head.header(b"content-length") or self.head.header(b"transfer-encoding"))
        if self.head and not (sized or exc or self._error):
            # Such a body lasts as long as its connection.
            self._whole = True
            self._wake()
        elif not self._whole:
            self._fail(exc or ConnectionResetError("the server closed the connection"))

    # What the parser tells.

    def on_message_begin(self) -> None:
        """A response begins; after the one that was asked for there is none."""
        if self._whole:
            raise ConnectionError("the server answers more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; those that follow a body say nothing that is needed."""
        if self.head is None:
            self._coming.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._coming.status = self._parser.get_status_code()
        if self._coming.status < 200:
            # It only says that the response is on its way.
            self._coming = Head()
            return
        self.head = self._coming
        encoding = self.head.header(b"content-encoding").lower()
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif encoding not in (b"", b"identity"):
            raise ConnectionError(f"it is encoded as '{encoding.decode('latin-1')}'")

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._between = 0
        if self._inflater:
            # What the socket brings at once can hold many chunks of a body, each of which grows a thousandfold.
            left = max(1, _INFLATED - self._size)
            body = self._inflater.decompress(body, left)
            if self._inflater.unconsumed_tail:
                raise ConnectionError("it is compressed beyond measure")
        self._pieces.append(body)
        self._size += len(body)
        if self._size > _BUFFERED and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._whole = self.head is not None
        self._reusable = self._whole and self._parser.should_keep_alive()
