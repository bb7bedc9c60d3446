"""The containers of this server: whose they are, what is in them, and when they end."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ..core.ids import new_id
from ..core.owner import Owner
from .container import Bounds, Container
from .folder import Found, read_regular, regular_files, write_regular
from .folder_lock import FolderLock, remove_unlocked
from .jail import DATA, Jail

Json = dict[str, Any]

_LOOK: Final = 15.0
"""Seconds between two looks for containers whose time is up."""

_PREFIX: Final = "cntr"
"""What the id of a container, and so the name of its folder, begins with."""

_FILES: Final = 10_000
"""Files of one container that are listed, at most."""


class NoContainer(LookupError):  # noqa: N818 (what it says is what there is)
    """There is no such container: it has expired, or it is another server's, or somebody else's."""

    def __init__(self, container_id: str) -> None:
        super().__init__(
            f"Container '{container_id}' is not there: it has expired, or belongs to another server or another user."
        )


class TooMany(RuntimeError):  # noqa: N818
    """This server has as many containers as it may."""


@dataclass(frozen=True, slots=True)
class File:
    """A file in a container.

    Attributes:
        id: made of its path: the same as long as the path is.
        path: as the code sees it.
        bytes: its size.
        written_at: when it was last written, in nanoseconds since the epoch.
        by_user: whether it was put there rather than made by the code.
    """

    id: str
    path: str
    bytes: int
    written_at: int
    by_user: bool

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class Entry:
    """A container, and what is known of it.

    Attributes:
        owner: whose it is.
        idle_seconds: after so many without use it ends.
        given: the paths of the files that were put there.
        lock: says to other servers that the folder is in use.
    """

    id: str
    name: str
    owner: Owner
    created_at: int
    idle_seconds: float
    container: Container
    last_active_at: float
    lock: FolderLock
    given: set[str] = field(default_factory=set)
    users: int = 0


class Containers:
    """Makes containers, finds them for their owners, and ends those that nobody uses.

    Args:
        jail: shuts them off.
        bounds: what each may use.
        root: holds the folder of each while it lives.
        idle_seconds: after so many without use a container ends, unless its maker said otherwise.
        at_most: how many there may be.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        jail: Jail,
        bounds: Bounds,
        root: Path,
        *,
        idle_seconds: float,
        at_most: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._jail = jail
        self._bounds = bounds
        self._root = root
        self._idle_seconds = idle_seconds
        self._at_most = at_most
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, in the running event loop, to end what nobody uses, and to clear away what dead servers left."""
        self._sweeping = asyncio.create_task(self._sweep())

    async def create(
        self, owner: Owner, *, name: str = "auto", container_id: str = "", idle_seconds: float | None = None
    ) -> Entry:
        """A new container, with an id of its own unless one is given.

        Raises:
            TooMany: there is no room for another one.
        """
        await self._end_idle()
        if len(self._entries) >= self._at_most:
            raise TooMany("This server has as many containers as it may have. Try again later.")
        container_id, now = container_id or new_id(_PREFIX), self._clock()
        folder = self._root / container_id
        lock = await asyncio.to_thread(FolderLock, folder)
        container = Container(self._jail, folder, self._bounds)
        idle = self._idle_seconds if idle_seconds is None else min(idle_seconds, self._idle_seconds)
        entry = self._entries[container_id] = Entry(container_id, name, owner, int(now), idle, container, now, lock)
        return entry

    def find(self, container_id: str, owner: Owner) -> Entry:
        """The owner's container; it counts as used.

        Raises:
            NoContainer: it is not there for this owner.
        """
        entry = self._entries.get(container_id)
        if entry is None or entry.owner != owner or self._is_over(entry):
            raise NoContainer(container_id)
        entry.last_active_at = self._clock()
        return entry

    def of(self, owner: Owner) -> list[Entry]:
        """All containers of an owner, the newest first."""
        return [each for each in reversed(self._entries.values()) if each.owner == owner and not self._is_over(each)]

    async def end(self, container_id: str) -> None:
        """Ends a container; its files go too."""
        entry = self._entries.pop(container_id, None)
        if entry:
            await entry.container.kill()
            await asyncio.to_thread(shutil.rmtree, entry.container.folder, ignore_errors=True)
            entry.lock.release()

    async def close(self) -> None:
        """Ends all of them."""
        if self._sweeping:
            self._sweeping.cancel()
        for container_id in list(self._entries):
            await self.end(container_id)

    def _is_over(self, entry: Entry) -> bool:
        return entry.users == 0 and self._clock() > entry.last_active_at + entry.idle_seconds

    async def _end_idle(self) -> None:
        for entry in list(self._entries.values()):
            if self._is_over(entry):
                await self.end(entry.id)

    async def _sweep(self) -> None:
        while True:
            await asyncio.to_thread(remove_unlocked, self._root, f"{_PREFIX}_*")
            await asyncio.sleep(_LOOK)
            await self._end_idle()


async def files(entry: Entry) -> list[File]:
    """The files in a container, by path."""
    found = await asyncio.to_thread(lambda: list(islice(regular_files(entry.container.folder), _FILES)))
    return [_file(entry, each) for each in sorted(found, key=lambda each: each.path)]


async def read_file(entry: Entry, file: File) -> bytes | None:
    """What is in a file; None if it is no longer there."""
    return await asyncio.to_thread(read_regular, entry.container.folder, file.path.removeprefix(f"{DATA}/"))


async def write_file(entry: Entry, name: str, content: bytes) -> File:
    """Puts a file into a container, under the last part of its name."""
    base = PurePosixPath(name.replace("\\", "/")).name or "file"
    await asyncio.to_thread(write_regular, entry.container.folder, base, content)
    entry.given.add(f"{DATA}/{base}")
    return _file(entry, Found(base, len(content), len(content), time.time_ns()))


def _file(entry: Entry, found: Found) -> File:
    path = f"{DATA}/{found.path}"
    return File(file_id(path), path, found.bytes, found.written_at, path in entry.given)


def file_id(path: str) -> str:
    """The id of the file with this path, in every container."""
    return "cfile_" + hashlib.sha256(path.encode(errors="replace")).hexdigest()[:32]
