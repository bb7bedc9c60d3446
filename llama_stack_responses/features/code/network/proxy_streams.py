"""Connections of the proxy, within limits on their time and on all that a container sends and receives."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import MutableSequence
from contextlib import suppress
from typing import Final, Protocol

_READ_BYTES: Final = 2**16
HANDSHAKE_SECONDS: Final = 10.0
"""Seconds for which a connection, or TLS in it, may take to begin."""
_LINGERING_SECONDS: Final = 1.0
_LINGERING_BYTES: Final = 2**18
_SETTING: Final = "code_interpreter.network"


class Refused(Exception):  # noqa: N818 (its message is the answer)
    """The proxy refuses a request, or cannot fulfil it.

    Attributes:
        status: the status of its answer.
        host: the host that the request was for, if it is known.
        alert: what is sent to a client whose `CONNECT` was accepted already: a TLS alert; if it is empty, an answer as
            text. None if nothing is sent.
    """

    def __init__(self, status: int, message: str, host: str = "", alert: bytes | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.host = host
        self.alert = alert


class Traffic:
    """The bytes that a container may still send and receive.

    Args:
        total: how many it may in all.
        left: how many are left, as its first number, which outlives the process of the proxy.
    """

    def __init__(self, total: int, left: MutableSequence[int] | memoryview[int]) -> None:
        self._total, self._left = total, left

    def count(self, size: int) -> None:
        """Count bytes.

        Raises:
            Refused: they are more than are left.
        """
        self._left[0] -= size
        self.check()

    def check(self) -> None:
        """Check that there are bytes left.

        Raises:
            Refused: there are none.
        """
        if self._left[0] <= 0:
            limit = f"{self._total // 2**20} MiB, which the setting '{_SETTING}.traffic_mb' has"
            raise Refused(403, f"This container has sent and received all of its {limit}.")


class Deadline:
    """The time limit of a connection, and the time that may pass without data.

    Args:
        timeout: ends the connection; its time is the limit.
        seconds: the limit, for `reason`.
        idle_seconds: the time without data.
    """

    def __init__(self, timeout: asyncio.Timeout, seconds: float, idle_seconds: float) -> None:
        self._timeout = timeout
        self._end = timeout.when() or 0.0
        self._seconds, self._idle_seconds = seconds, idle_seconds

    def extend(self) -> None:
        """Note that there was data."""
        if not self._timeout.expired():
            self._timeout.reschedule(min(self._end, asyncio.get_running_loop().time() + self._idle_seconds))

    def reason(self) -> str:
        """Return why the connection has ended, if it has."""
        if self._timeout.when() == self._end:
            return f"The connection has lasted for {self._seconds:g} seconds, the setting '{_SETTING}.seconds'."
        return f"No data came for {self._idle_seconds:g} seconds, the setting '{_SETTING}.idle_seconds'."


class ByteStream(Protocol):
    """A connection as requests and answers use it."""

    async def read(self) -> bytes:
        """Return the next data; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Send data."""

    async def linger(self) -> None:
        """End sending, and read what the other side still sends, for a moment."""

    async def finish(self) -> None:
        """Send what is still buffered, and close the connection."""

    def abort(self) -> None:
        """Close the connection at once."""


class Stream:
    """A connection whose data is counted. Writing waits until the other side has read most of what was written."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, traffic: Traffic, deadline: Deadline
    ) -> None:
        self._reader, self._writer = reader, writer
        self._traffic, self._deadline = traffic, deadline

    async def read(self) -> bytes:
        """Return the next data; empty at the end.

        Raises:
            Refused: the container has used up its traffic.
            OSError: the connection failed.
        """
        data = await self._reader.read(_READ_BYTES)
        self._traffic.count(len(data))
        self._deadline.extend()
        return data

    async def write(self, data: bytes) -> None:
        """Send data.

        Raises:
            OSError: the connection failed.
        """
        self._writer.write(data)
        await self._writer.drain()
        self._deadline.extend()

    def end(self) -> None:
        """Send no more; the other side may still send."""
        with suppress(OSError, RuntimeError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def linger(self) -> None:
        """Read what the other side still sends, for a moment: closing at once could lose an answer on its way."""
        self.end()
        left = _LINGERING_BYTES
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGERING_SECONDS):
                while left > 0 and (data := await self._reader.read(_READ_BYTES)):
                    left -= len(data)

    async def finish(self) -> None:
        """Send what is still buffered, and close the connection."""
        with suppress(OSError):
            await self._writer.drain()
        self._writer.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


async def connected(
    address: str, port: int, context: ssl.SSLContext | None, host: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an address, with TLS for this host if there is a context.

    Raises:
        OSError: that failed.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            return await asyncio.open_connection(address, port, ssl=context, server_hostname=host if context else None)
    except TimeoutError:
        raise OSError("it did not answer in time") from None
