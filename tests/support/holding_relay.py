"""A relay to a server that holds one message back, even when its sender has given it up and is gone.

async with HoldingRelay(server.port) as relay:
    relay.hold(b"r/resp_1")        # the next message with these bytes
    ...
    await relay.holding()
    ...
    await relay.release()          # it arrives, and the server has answered
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from tests.support.process import free_port


class HoldingRelay:
    """A TCP relay in the running event loop, for an `async with` block.

    Args:
        behind: the server's port.

    Attributes:
        port: its own port.
    """

    def __init__(self, behind: int) -> None:
        """Create a relay; it does not listen yet."""
        self.port = free_port()
        self._behind = behind
        self._wanted: bytes | None = None
        self._released, self._answered, self._holding = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start listening."""
        self._served = set[asyncio.Task[None]]()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        self._server.close()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def hold(self, wanted: bytes) -> None:
        """Hold the next message back that has these bytes."""
        self._wanted = wanted

    async def holding(self) -> None:
        """Wait until it holds the message back."""
        await self._holding.wait()

    async def release(self) -> None:
        """Let the message arrive, and wait until the server has answered."""
        self._released.set()
        await self._answered.wait()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, out = await asyncio.open_connection("127.0.0.1", self._behind)
        held = asyncio.Event()
        back = asyncio.create_task(self._back(behind, writer, held))
        try:
            while data := await reader.read(65536):
                if self._wanted and self._wanted in data:
                    self._wanted = None
                    self._holding.set()
                    await self._released.wait()
                    held.set()
                    out.write(data)
                    await self._answered.wait()
                else:
                    out.write(data)
        finally:
            back.cancel()
            for each in (out, writer):
                each.close()
                with suppress(OSError):
                    await each.wait_closed()

    async def _back(self, behind: asyncio.StreamReader, writer: asyncio.StreamWriter, held: asyncio.Event) -> None:
        while data := await behind.read(65536):
            if held.is_set():
                self._answered.set()
            writer.write(data)
        writer.close()
