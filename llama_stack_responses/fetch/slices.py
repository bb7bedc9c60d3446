"""What a connection of httpx receives, in slices that take about a millisecond to parse.

httpcore reads 64 KiB at a time, and h11 makes an event of each chunk of a body and of each interim answer. So one read
of chunks of one byte has 10,000 events, all of which are parsed before the event loop continues. Chunks and heads end
with line ends: a slice has few of them, and connections take turns between slices.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from ..concurrency.fair_yield import FairYield

LINES_PER_SLICE: Final = 64
"""Line ends in a slice: 32 chunks."""


def receive_in_slices(transport: Any, fair_yield: FairYield) -> Any:
    """Make the connections of a transport receive in slices, and return the transport.

    Args:
        transport: an `AsyncHTTPTransport` of httpx, or of httpx2, without a connection yet.
        fair_yield: selects the connection that parses next.
    """
    pool = transport._pool  # httpx has no parameter for the network backend of httpcore
    pool._network_backend = _Backend(pool._network_backend, fair_yield)
    return transport


class _Backend:
    """A network backend of httpcore whose streams are read in slices."""

    def __init__(self, backend: Any, fair_yield: FairYield) -> None:
        self._backend = backend
        self._fair_yield = fair_yield

    async def connect_tcp(self, *args: Any, **options: Any) -> SlicedStream:
        return SlicedStream(await self._backend.connect_tcp(*args, **options), self._fair_yield)

    async def connect_unix_socket(self, *args: Any, **options: Any) -> SlicedStream:
        return SlicedStream(await self._backend.connect_unix_socket(*args, **options), self._fair_yield)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class SlicedStream:
    """A network stream of httpcore that is read in slices.

    Args:
        stream: the stream.
        fair_yield: selects the stream that parses next.
    """

    def __init__(self, stream: Any, fair_yield: FairYield) -> None:
        self._stream = stream
        self._fair_yield = fair_yield
        self._rest = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 (httpcore's interface)
        """Return the next slice, of at most `max_bytes`; empty at the end."""
        if not self._rest:
            data: bytes = await self._stream.read(max_bytes, timeout)
            end = _end_of_slice(data)
            if end == len(data):
                return data
            self._rest = data
        await self._fair_yield.wait_turn()
        end = min(_end_of_slice(self._rest), max_bytes)
        data, self._rest = self._rest[:end], self._rest[end:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send these bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> SlicedStream:
        """Return the stream within TLS."""
        return SlicedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._fair_yield)

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore asks of the stream."""
        return self._stream.get_extra_info(info)


def _end_of_slice(data: bytes) -> int:
    """Return the position after as many line ends as a slice has, or the length."""
    end = 0
    for _ in range(LINES_PER_SLICE):
        end = data.find(b"\n", end) + 1
        if not end:
            return len(data)
    return end
