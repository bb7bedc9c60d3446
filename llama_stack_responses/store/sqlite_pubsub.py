"""Notifications between the processes that share an SQLite file, over Unix datagram sockets.

SQLite has no server that could forward them. Each process that listens has a socket in a folder beside the file,
`<name>-notify`, and gets the names of all commits of the others. Sending never blocks: names for a process
that does not read are dropped, and it polls. A socket of a process that was killed is removed by the next sender.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from ..concurrency.offloading import in_thread
from ..core.errors import ApiError
from ..logs import get_logger
from .records import UNAVAILABLE, PubSub

logger = get_logger(__name__)

_DESCRIPTORS: Final = Path("/proc/self/fd")
_MESSAGE_NAMES: Final = 256
_MESSAGE_BYTES: Final = 65_536
_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSES: Final = 20
"""A full socket is tried again after one pause, then two and so on, up to so many."""
_LEFT_NAMES: Final = 10_000
"""Names that wait for one process at most."""
_READS: Final = 64
"""Messages that are read in one iteration of the event loop."""
_TRIES: Final = 5
"""Tries to make a socket: another process may remove the folder as the last one."""


class SqliteNotifications:
    """Sends notifications to the other processes with the file, and receives theirs.

    Args:
        path: the SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.with_name(f"{path.name}-notify")
        self._own: set[str] = set()
        self._sender: _Sender | None = None

    def send(self, names: Sequence[str]) -> None:
        """Send these names to all processes that listen, except this one, soon."""
        if not names:
            return
        loop = asyncio.get_running_loop()
        if self._sender is None or self._sender.loop is not loop:
            self._sender = _Sender(loop, self._folder, self._own)
        self._sender.add(names)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[PubSub]:
        """Listen within the block.

        Raises:
            ApiError: 503, there can be no socket beside the file.
        """
        name = secrets.token_hex(8)
        self._own.add(name)
        try:
            listening = await in_thread(self._listen, name)
        except OSError as error:
            self._own.discard(name)
            message = f"The folder of the response store can have no socket: {error.strerror or error}."
            raise ApiError(UNAVAILABLE, message, retry_after=1) from error
        pubsub = SqlitePubSub(listening)
        try:
            yield pubsub
        finally:
            pubsub.close()
            self._own.discard(name)
            await in_thread(self._remove, name)

    def close(self) -> None:
        """Send what is left, if it can be sent, and no more."""
        sender, self._sender = self._sender, None
        if sender and sender.loop is asyncio.get_running_loop():
            sender.close()

    def _listen(self, name: str) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.setblocking(False)
        try:
            for left in reversed(range(_TRIES)):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    with _short(self._folder) as folder:
                        listening.bind(f"{folder}/{name}")
                    return listening
                except FileNotFoundError:
                    if not left:
                        raise
            raise AssertionError("the last try returns or raises")
        except BaseException:
            listening.close()
            raise

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)
            self._folder.rmdir()  # fails while others listen


class _Sender:
    """Sends the notifications of one event loop: those of one iteration together, and again what finds a full socket.

    Args:
        loop: the loop.
        folder: has the sockets.
        own: the names of the sockets of this process.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, own: AbstractSet[str]) -> None:
        self.loop = loop
        self._folder = folder
        self._own = own
        self._new: dict[str, None] = {}
        self._left: dict[str, dict[str, None]] = {}
        self._timer: asyncio.Handle | None = None
        self._sends_soon = False
        self._pauses = 0

    def add(self, names: Sequence[str]) -> None:
        """Send these names soon."""
        self._new.update(dict.fromkeys(names))
        if not self._sends_soon:
            self._sends_soon = True
            self._cancel()
            self._timer = self.loop.call_soon(self._send)

    def close(self) -> None:
        """Send what is left, if it can be sent, and no more."""
        if self._timer:
            self._cancel()
            self._send()
            self._cancel()

    def _cancel(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _send(self) -> None:
        self._timer, self._sends_soon = None, False
        new, self._new = self._new, {}
        try:
            with _short(self._folder) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.setblocking(False)
                others = {path.name for path in Path(folder).iterdir()} - self._own
                due = {other: self._left.get(other, {}) | new for other in others}
                left = {other: _sent(sending, Path(folder, other), names) for other, names in due.items()}
        except FileNotFoundError:
            return  # nobody listens
        except OSError as error:
            logger.debug("could not notify the other processes with the response store: %s", error)
            return
        self._left = {other: names for other, names in left.items() if names}
        self._pauses = min(self._pauses + 1, _LONGEST_PAUSES) if self._left else 0
        if self._left:
            self._timer = self.loop.call_later(self._pauses * _PAUSE_SECONDS, self._send)


class SqlitePubSub:
    """Receives the notifications of other processes in the running event loop.

    Args:
        listening: the socket on which they come.
    """

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._names: set[str] = set()
        self._due: dict[str, None] = {}
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listening, self._read)

    async def subscribe(self, names: Collection[str]) -> None:
        self._names.update(names)
        self._add(names)

    async def unsubscribe(self, names: Collection[str]) -> None:
        self._names.difference_update(names)
        for name in names:
            self._due.pop(name, None)

    async def receive(self) -> str:
        while not self._due:
            self._arrived.clear()
            await self._arrived.wait()
        name = next(iter(self._due))
        del self._due[name]
        return name

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        for _ in range(_READS):
            try:
                message = self._socket.recv(_MESSAGE_BYTES)
            except OSError:
                return  # all is read
            self._add(self._names.intersection(message.decode("ascii", "replace").split("\n")))

    def _add(self, names: Collection[str]) -> None:
        self._due.update(dict.fromkeys(names))
        self._arrived.set()


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Yield a path of the folder that is short enough for the address of a socket, which has about 100 bytes."""
    if not _DESCRIPTORS.exists():
        yield str(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{_DESCRIPTORS}/{descriptor}"
    finally:
        os.close(descriptor)


def _sent(sending: socket.socket, to: Path, names: Mapping[str, None]) -> dict[str, None]:
    """Send names to one process; return those for which its socket has no room."""
    left = list(names)
    try:
        while left:
            sending.sendto("\n".join(left[:_MESSAGE_NAMES]).encode(), str(to))
            left = left[_MESSAGE_NAMES:]
    except BlockingIOError:
        return dict.fromkeys(left) if len(left) <= _LEFT_NAMES else {}  # it does not read, and will poll
    except ConnectionRefusedError:
        # Its process was killed: one that listens again has a socket with another name.
        to.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("could not notify another process with the response store: %s", error)
    return {}
