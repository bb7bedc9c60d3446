"""Web sites on 127.0.0.1 that keep the requests that they get, and a client that speaks to a proxy by the byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Answer = bytes | Callable[[bytes], bytes]


@dataclass(slots=True)
class Site:
    """A running site.

    Attributes:
        port: its port.
        requests: the heads of the requests, and the bodies that were announced, in order.
        connections: how many connections were made to it.
    """

    port: int
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    if b"content-length: " in lower:
        return head + await reader.readexactly(int(lower.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    if b"transfer-encoding: chunked" in lower:
        return head + await reader.readuntil(b"0\r\n\r\n")
    return head


@asynccontextmanager
async def site(answer: Answer = OK, context: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    """Serve a site that answers each request with these bytes, and then closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.connections += 1
        with suppress(OSError, EOFError):
            request = await _request(reader)
            running.requests.append(request)
            writer.write(answer(request) if callable(answer) else answer)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
                await reader.read()
        writer.close()

    async with raw_site(serve, context) as running:
        yield running


@asynccontextmanager
async def raw_site(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[Site]:
    """Serve connections with a function. All of them have ended at the end."""
    serving = set[asyncio.Task[Any]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        serving.add(task)
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield Site(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class RawClient:
    """A client of a proxy that sends bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int) -> AsyncIterator[RawClient]:
        """Connect to a proxy."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)
        with suppress(OSError):
            await self._writer.drain()

    async def rest(self) -> bytes:
        """Return all that comes until the connection ends."""
        data = b""
        with suppress(OSError):
            while more := await self._reader.read(2**16):
                data += more
        return data

    async def head(self) -> bytes:
        """Return the head of the next answer."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def exactly(self, size: int) -> bytes:
        """Return this many bytes."""
        return await self._reader.readexactly(size)

    async def asks(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes until the connection ends."""
        await self.send(data)
        return await self.rest()

    async def tunnel(self, authority: str, context: ssl.SSLContext, name: str) -> None:
        """Open a tunnel, and begin TLS in it for this name."""
        await self.send(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode())
        head = await self.head()
        assert head.startswith(b"HTTP/1.1 200 "), head
        await self._writer.start_tls(context, server_hostname=name)
