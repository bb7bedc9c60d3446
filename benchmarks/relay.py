"""A relay that passes bytes on unread: the cost of the kernel and the event loop alone.

python -m benchmarks.relay PORT       # of the server; prints `listening PORT`
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class _Side(asyncio.Protocol):
    """One of the two connections of a client."""

    def __init__(self) -> None:
        self.other: asyncio.Transport | None = None
        self.transport: asyncio.Transport
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.other.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other:
            self.other.close()


class _Client(_Side):
    """The connection of a client, which opens one to the server."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        self.other, server = await asyncio.get_running_loop().create_connection(_Side, "127.0.0.1", self._port)
        server.other = self.transport
        self.other.write(self.early)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Client(port), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"listening {server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
