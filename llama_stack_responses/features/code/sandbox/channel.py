"""The connection to the program inside a container. Its other side may be controlled by the untrusted code in there.

An answer is a header (JSON with a length prefix of four bytes), then the parts whose sizes it names. All of it is
bounded: the header in bytes, so that decoding takes less than a millisecond, and the parts in number and in bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from ....core.types import Json
from .processes import Processes

_HEADER_BYTES: Final = 4096
_MAX_PARTS: Final = 32
_PARTS_BYTES: Final = 8 * 2**20
_HELLO_BYTES: Final = 16


class ChannelBroken(Exception):  # noqa: N818
    """The other side is gone or violates the protocol."""


class AnswerTooLarge(Exception):  # noqa: N818
    """An answer exceeds its size limit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The inner program's answer to a request.

    Attributes:
        header: small values by name.
        parts: the byte strings that belong to it.
    """

    header: Json = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)


class Channel:
    """A connection that sends requests to the program inside, one at a time.

    Args:
        ours: this side of the socket pair; closed by `close`.
    """

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def handshake(self) -> tuple[Processes, list[socket.socket]]:
        """Wait for the program's greeting. No other code has run in the container before.

        Returns:
            The container's processes, and the socket inside that a proxy listens on, if there is one.

        Raises:
            ChannelBroken: the program did not start.
        """
        await _readable(self._socket)
        try:
            greeting, descriptors, _, _ = socket.recv_fds(self._socket, _HELLO_BYTES, 2)
            pid, [proc, *listeners] = int(greeting), descriptors
        except (OSError, ValueError):
            raise ChannelBroken from None
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=2**16)
        self._streams = reader, writer
        return Processes(proc, pid), [socket.socket(fileno=each) for each in listeners]

    async def request(self, request: Json) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            ChannelBroken: no valid answer arrived.
            AnswerTooLarge: the answer is over its size limit.
        """
        assert self._streams, "it has handshake"
        reader, writer = self._streams
        body = orjson.dumps(request)
        try:
            writer.write(struct.pack("!I", len(body)) + body)
            await writer.drain()
            size = struct.unpack("!I", await reader.readexactly(4))[0]
            if size > _HEADER_BYTES:
                raise AnswerTooLarge
            header = orjson.loads(await reader.readexactly(size))
            return Answer(header, [await reader.readexactly(each) for each in _sizes(header)])
        except (OSError, EOFError, ValueError):
            raise ChannelBroken from None

    def close(self) -> None:
        """Close the connection."""
        if self._streams:
            self._streams[1].close()
        else:
            self._socket.close()


def _sizes(header: Any) -> list[int]:
    """Return the sizes of the parts that a header names."""
    sizes = header.get("parts") if isinstance(header, dict) else None
    if not isinstance(sizes, list) or not all(isinstance(each, int) and each >= 0 for each in sizes):
        raise ChannelBroken
    if len(sizes) > _MAX_PARTS or sum(sizes) > _PARTS_BYTES:
        raise AnswerTooLarge
    return sizes


async def _readable(sock: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
