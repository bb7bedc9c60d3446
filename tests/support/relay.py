"""One address in front of servers: it hands connections on in turn, and speaks TLS for servers that do not.

with Relay(lambda: [one.port, other.port]) as relay:          # as a load balancer does
with Relay(lambda: [database.port], tls=authority.context("localhost")) as relay:
"""

import asyncio
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Self

from tests.support.process import free_port

SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)
"""What a PostgreSQL client sends to ask whether it may begin with TLS."""


class Relay:
    """It runs in a thread of its own, for as long as a `with` block.

    Args:
        targets: the ports of the servers behind it; one that takes no connection is passed over.
        tls: it speaks TLS with its clients.
        asks: they ask for TLS before they begin it, as PostgreSQL's do.
    """

    def __init__(
        self, targets: Callable[[], Sequence[int]], *, tls: ssl.SSLContext | None = None, asks: bool = False
    ) -> None:
        """Nothing listens yet."""
        self.port = free_port()
        self._targets = targets
        self._tls = tls
        self._asks = asks
        self._turns = count()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        """Cut off whatever is connected."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        self._end = asyncio.Event()
        at_once = None if self._asks else self._tls
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=at_once)
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # What ends badly is the end of the connection, as its two ends will see.
        with suppress(OSError, EOFError, asyncio.CancelledError):
            if self._asks and self._tls:
                await self._upgrade(reader, writer, self._tls)
            behind, out = await self._connect()
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, out))
                both.create_task(_copy(behind, writer))
        writer.close()

    async def _upgrade(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
        writer.write(b"S")
        await writer.drain()
        await writer.start_tls(context)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ports = self._targets()
        first = next(self._turns)
        for turn in range(len(ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", ports[(first + turn) % len(ports)])
        raise ConnectionError("no server takes connections")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
