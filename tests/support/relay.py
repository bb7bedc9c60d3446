"""A TLS-terminating TCP relay in front of one server.

with Relay(database.port, certificates.of_server(), asks=True) as relay:
"""

import asyncio
import socket
import ssl
import threading
from contextlib import suppress
from typing import Self

from tests.support.process import free_port

SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)
"""The message by which a PostgreSQL client requests TLS (SSLRequest)."""


class Relay:
    """A relay that runs in its own thread, for a `with` block.

    Args:
        behind: the server's port.
        tls: TLS context for its clients.
        asks: whether clients request TLS first, as PostgreSQL's do.
        plain_too: whether it also relays for clients without TLS, which have to send first.

    Attributes:
        served: how many connections it has relayed.
    """

    def __init__(self, behind: int, tls: ssl.SSLContext, *, asks: bool = False, plain_too: bool = False) -> None:
        """Create a relay; it does not listen yet."""
        self.port = free_port()
        self.served = 0
        self._behind = behind
        self._tls = tls
        self._asks = asks
        self._plain_too = plain_too
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> Self:
        """Start listening."""
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        self._end = asyncio.Event()
        if self._plain_too:
            await self._listen_for_both()
            return
        at_once = None if self._asks else self._tls
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=at_once)
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _listen_for_both(self) -> None:
        with socket.create_server(("127.0.0.1", self.port)) as listening:
            listening.setblocking(False)
            accepting = asyncio.create_task(self._accept(listening))
            self._ready.set()
            await self._end.wait()
            accepting.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(listening)
            task = asyncio.create_task(self._take(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _take(self, connection: socket.socket) -> None:
        """Look at the first byte of a connection without reading it: a TLS handshake begins with 0x16."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        await readable.wait()
        self._loop.remove_reader(connection)
        encrypted = connection.recv(1, socket.MSG_PEEK) == b"\x16"
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)
        with suppress(OSError):
            await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls if encrypted else None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served += 1
        # Any error ends the connection, which both ends can observe.
        with suppress(OSError, EOFError, asyncio.CancelledError):
            if self._asks:
                await self._upgrade(reader, writer)
            behind, out = await asyncio.open_connection("127.0.0.1", self._behind)
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, out))
                both.create_task(_copy(behind, writer))
        writer.close()

    async def _upgrade(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
        writer.write(b"S")
        await writer.drain()
        await writer.start_tls(self._tls)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
