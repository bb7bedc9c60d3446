"""An HTTP server with full control over every byte: one coroutine handles all requests of a connection."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

OPENING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def in_chunk(payload: bytes) -> bytes:
    """Encode one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(value: Any) -> bytes:
    """Encode one event of a stream, in a chunk."""
    return in_chunk(b"data: %b\n\n" % orjson.dumps(value))


DONE = in_chunk(b"data: [DONE]\n\n")


def whole(status: int, value: Any, *headers: str) -> bytes:
    """Return a whole response with a JSON body."""
    body = orjson.dumps(value)
    lines = [f"HTTP/1.1 {status} Status", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(slots=True)
class ReceivedRequest:
    """A received request."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(slots=True)
class Peer:
    """One client connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: "HttpServer"
    number: int

    async def request(self) -> ReceivedRequest:
        """Read the next request; EOFError if the client has disconnected."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError as error:
            raise EOFError from error
        line, *lines = head.strip().split("\r\n")
        headers: dict[str, str] = {}
        for name, _, value in (each.partition(":") for each in lines):
            # Repeated headers form a list (RFC 9110, section 5.3).
            headers[name.lower()] = ", ".join(filter(None, (headers.get(name.lower()), value.strip())))
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        self.server.requests.append(ReceivedRequest(line, headers, body, self.number))
        return self.server.requests[-1]

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Wait until the client has closed the connection."""
        while await self.reader.read(65536):
            pass


Handler = Callable[[Peer], Awaitable[None]]


@dataclass(slots=True)
class HttpServer:
    """A server's URL, and what it has received; `left` counts closed connections."""

    url: str = ""
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    left: int = 0
    change: asyncio.Event = field(default_factory=asyncio.Event)

    def has_left(self) -> None:
        """Count a closed connection."""
        self.left += 1
        self.change.set()

    async def until_left(self, count: int) -> None:
        """Wait until `count` connections are closed."""
        while self.left < count:
            self.change.clear()
            await self.change.wait()


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[HttpServer]:
    """Run a server in the current loop, on a free port unless one is given."""
    state = HttpServer()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        state.connections += 1
        try:
            await handler(Peer(reader, writer, state, state.connections))
        except (EOFError, ConnectionError):
            pass
        finally:
            state.has_left()
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", port, ssl=tls)
    at = server.sockets[0].getsockname()[1]
    state.url = f"http{'s' if tls else ''}://127.0.0.1:{at}/v1"
    try:
        yield state
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
