"""The connection to the program inside a container, whose other side may be in the hands of the code that runs there.

An answer is a header, JSON behind its length in four bytes, and the parts whose sizes it names. All of it is bounded:
the header in bytes, so that reading it takes less than a millisecond, and the parts in number and in bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from .processes import Processes

Json = dict[str, Any]

_HEADER_BYTES: Final = 4096
_PARTS: Final = 32
_PARTS_BYTES: Final = 8 * 2**20
_HELLO_BYTES: Final = 16


class Broken(Exception):  # noqa: N818
    """The other side is gone, or says what the program does not say."""


class TooLarge(Exception):  # noqa: N818
    """An answer is larger than one may be."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the program inside says of a request.

    Attributes:
        header: small values by their names.
        parts: the contents that belong to it.
    """

    header: Json = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)


class Channel:
    """Speaks with the program inside, one request at a time.

    Args:
        ours: this side of the pair of sockets; closed by `close`.
    """

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def greeted(self) -> Processes:
        """The processes of the container, once its program is there. No other code has run in it before.

        Raises:
            Broken: the program did not start.
        """
        await _readable(self._socket)
        try:
            said, descriptors, _, _ = socket.recv_fds(self._socket, _HELLO_BYTES, 1)
            pid, [proc] = int(said), descriptors
        except (OSError, ValueError):
            raise Broken from None
        reader, writer = await asyncio.open_connection(sock=self._socket, limit=2**16)
        self._streams = reader, writer
        return Processes(proc, pid)

    async def ask(self, request: Json) -> Answer:
        """Sends a request and waits for its answer.

        Raises:
            Broken: there is none.
            TooLarge: it is larger than it may be.
        """
        assert self._streams, "it has greeted"
        reader, writer = self._streams
        body = orjson.dumps(request)
        try:
            writer.write(struct.pack("!I", len(body)) + body)
            await writer.drain()
            size = struct.unpack("!I", await reader.readexactly(4))[0]
            if size > _HEADER_BYTES:
                raise TooLarge
            header = orjson.loads(await reader.readexactly(size))
            return Answer(header, [await reader.readexactly(each) for each in _sizes(header)])
        except (OSError, EOFError, ValueError):
            raise Broken from None

    def close(self) -> None:
        """Speaks no more."""
        if self._streams:
            self._streams[1].close()
        else:
            self._socket.close()


def _sizes(header: Any) -> list[int]:
    """The sizes of the parts that a header names."""
    sizes = header.get("parts") if isinstance(header, dict) else None
    if not isinstance(sizes, list) or not all(isinstance(each, int) and each >= 0 for each in sizes):
        raise Broken
    if len(sizes) > _PARTS or sum(sizes) > _PARTS_BYTES:
        raise TooLarge
    return sizes


async def _readable(sock: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
