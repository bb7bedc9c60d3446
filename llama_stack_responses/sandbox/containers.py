"""The containers of this server: whose they are, what is in them, and when they end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from ..core.errors import ApiError, bad_request
from ..core.ids import new_id
from ..core.owner import Owner
from ..logs import get_logger
from .container import Bounds, Container
from .control_group import ControlGroups, Share
from .folder import Found, open_regular
from .folder_lock import FolderLock
from .jail import DATA, TEMPORARY, Jail
from .listing import listed_files
from .places import Places
from .removal import Removal
from .volume import NoRoom, Volume, Volumes, put

logger = get_logger(__name__)

Json = dict[str, Any]

_LOOK: Final = 15.0
"""Seconds between two looks for containers whose time is up."""

_PREFIX: Final = "cntr"
"""What the id of a container, and so the name of its folder, begins with."""

_NAME_BYTES: Final = 255
"""Bytes of a file's name on Linux."""

_FILES: Final = 10_000
"""Files of one container that are listed, at most."""

_CONTROLS: Final = {number: chr(number).encode("unicode_escape").decode() for number in (*range(32), 127)}
"""Escapes of control characters. Others that cannot be printed are escaped one by one, which takes longer."""

_REMOVAL: Final = 5.0
"""Seconds for which the end of a container waits until its files are gone. More of them are removed afterwards."""


class NoContainer(LookupError):  # noqa: N818 (what it says is what there is)
    """There is no such container: it has expired, or it is another server's, or somebody else's."""

    def __init__(self, container_id: str) -> None:
        super().__init__(
            f"Container '{container_id}' is not there: it has expired, or belongs to another server or another user."
        )


@dataclass(frozen=True, slots=True)
class File:
    """A file in a container.

    Attributes:
        id: made of its path: the same as long as the path is.
        path: as the code sees it, in characters that can be shown.
        place: its path in the folder, whatever bytes the code has named it by.
        bytes: its size.
        written_at: when it was last written, in nanoseconds since the epoch.
        by_user: whether it was put there rather than made by the code.
    """

    id: str
    path: str
    place: str
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
        volumes: hold their files.
        groups: bound each as a whole, where there are control groups.
        root: holds the folder of each while it lives.
        idle_seconds: after so many without use a container ends, unless its maker said otherwise.
        places: how many there may be.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        jail: Jail,
        bounds: Bounds,
        volumes: Volumes,
        root: Path,
        *,
        idle_seconds: float,
        places: Places,
        groups: ControlGroups | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._jail = jail
        self._bounds = bounds
        self._volumes = volumes
        self._groups = groups
        self._root = root
        self._idle_seconds = idle_seconds
        self._places = places
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._removal = Removal()
        self._sweeping: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begins, in the running event loop, to end what nobody uses, and to clear away what dead servers left."""
        self._sweeping = [asyncio.create_task(each) for each in (self._sweep_idle(), self._sweep_left())]

    async def create(
        self, owner: Owner, *, name: str = "auto", container_id: str = "", idle_seconds: float | None = None
    ) -> Entry:
        """A new container, with an id of its own unless one is given.

        Raises:
            TooMany: there is no room for another one.
        """
        await self._end_idle()
        self._places.take(owner)
        try:
            container_id, now = container_id or new_id(_PREFIX), self._clock()
            container, lock = await self._make(self._root / container_id)
        except BaseException:
            self._places.give_back(owner)
            raise
        idle = self._idle_seconds if idle_seconds is None else min(idle_seconds, self._idle_seconds)
        entry = self._entries[container_id] = Entry(container_id, name, owner, int(now), idle, container, now, lock)
        return entry

    async def _make(self, folder: Path) -> tuple[Container, FolderLock]:
        making = asyncio.ensure_future(asyncio.to_thread(self._prepared, folder))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # What the thread makes all the same is left like a dead server's.
            making.add_done_callback(_release)
            raise

    def _prepared(self, folder: Path) -> tuple[Container, FolderLock]:
        """A container, and its locked folder."""
        lock = FolderLock.make(folder)
        try:
            volume = self._volumes.make(folder)
            group = self._groups.make(folder.name, self._share(volume)) if self._groups else None
            return Container(self._jail, volume, self._bounds, group), lock
        except BaseException:
            lock.release()
            raise

    def _share(self, volume: Volume) -> Share:
        bounds = self._bounds
        files = volume.room.bytes if volume.namespaces else len(TEMPORARY) * self._jail.temporary_bytes
        return Share(bounds.memory_bytes + files, bounds.processes, bounds.processors)

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
        """Ends a container; its files go too, some of them later if they are very many."""
        entry = self._entries.pop(container_id, None)
        if entry:
            # A task: should the caller be cancelled, it goes on.
            task = asyncio.create_task(self._end(entry))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            await asyncio.wait([task], timeout=_REMOVAL)

    async def close(self) -> None:
        """Ends all of them."""
        for task in self._sweeping:
            task.cancel()
        await asyncio.gather(*(self.end(container_id) for container_id in list(self._entries)))
        if ending := list(self._ending):
            # What is left of their files is the next server's to remove.
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)
        self._removal.close()

    def _is_over(self, entry: Entry) -> bool:
        return entry.users == 0 and self._clock() > entry.last_active_at + entry.idle_seconds

    async def _end(self, entry: Entry) -> None:
        """Ends the code of a container, then removes its files; until then it counts for its owner."""
        try:
            await entry.container.kill()
            if entry.container.group:
                await asyncio.to_thread(entry.container.group.remove)
            await self._remove(self._root / entry.id)
        finally:
            entry.lock.release()
            self._places.give_back(entry.owner)

    async def _remove(self, folder: Path) -> None:
        try:
            await self._removal.remove(folder)
        except OSError as error:
            logger.warning("files of a container that ended cannot be removed, this is tried again: %s", error)

    async def _end_idle(self) -> None:
        await asyncio.gather(*(self.end(each.id) for each in list(self._entries.values()) if self._is_over(each)))

    async def _sweep_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            await self._end_idle()

    async def _sweep_left(self) -> None:
        """Removes the folders that no living process has locked: of killed servers, and of removals that failed."""
        while True:
            if self._groups:
                await asyncio.to_thread(self._groups.sweep, f"{_PREFIX}_*")
            for folder in await asyncio.to_thread(lambda: list(self._root.glob(f"{_PREFIX}_*"))):
                lock = await asyncio.to_thread(FolderLock.take_over, folder)
                if lock:
                    await self._remove(folder)
                    lock.release()
            await asyncio.sleep(_LOOK)


def _release(making: asyncio.Future[tuple[Container, FolderLock]]) -> None:
    with suppress(BaseException):
        container, lock = making.result()
        lock.release()
        if container.group:
            container.group.remove()


async def files(entry: Entry) -> list[File]:
    """The files in a container, by path."""
    return await asyncio.to_thread(_files, entry)


def _files(entry: Entry) -> list[File]:
    found = listed_files(entry.container.volume.data, _FILES)
    return [_file(entry, each) for each in sorted(found, key=lambda each: each.path)]


async def open_file(entry: Entry, file: File) -> tuple[IO[bytes], int] | None:
    """A file, open, and its size; None if it is no longer there."""
    return await asyncio.to_thread(_opened, entry.container.volume, file.place)


def _opened(volume: Volume, place: str) -> tuple[IO[bytes], int] | None:
    return open_regular(volume.data, place)


async def write_file(entry: Entry, name: str, content: IO[bytes]) -> File:
    """Puts a file into a container, under the last part of its name; `content` is read to its end.

    Raises:
        ApiError: 400, the name is none that a file can have there, or there is no room for it.
    """
    base = _file_name(name)
    try:
        size = await asyncio.to_thread(put, entry.container.volume, base, content)
    except NoRoom as error:
        raise bad_request(str(error), "file") from error
    except IsADirectoryError as error:
        raise _bad_name(f"a folder of this name is in the container already: '{base}'") from error
    entry.given.add(f"{DATA}/{base}")
    return _file(entry, Found(base, size, size, time.time_ns()))


def _file_name(name: str) -> str:
    """The last part of a file's name."""
    base = PurePosixPath(name.replace("\\", "/")).name or "file"
    if base == ".." or not base.isprintable():
        raise _bad_name("it must be a name of printable characters, and not '..'")
    if len(base.encode()) > _NAME_BYTES:
        raise _bad_name(f"it is longer than {_NAME_BYTES} bytes")
    return base


def _bad_name(why: str) -> ApiError:
    return bad_request(f"The file cannot have this name: {why}. Send the file under another 'filename'.", "file")


def _file(entry: Entry, found: Found) -> File:
    path = f"{DATA}/{_shown(found.path)}"
    return File(file_id(path), path, found.path, found.bytes, found.written_at, path in entry.given)


def _shown(path: str) -> str:
    """A path with escapes for bytes that are no UTF-8, and for characters that cannot be printed.

    The code names its files by any bytes, and no JSON holds those: `os` makes lone surrogates of them.
    """
    text = os.fsencode(path).decode(errors="backslashreplace").translate(_CONTROLS)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def file_id(path: str) -> str:
    """The id of the file with this path, in every container."""
    return "cfile_" + hashlib.sha256(path.encode(errors="replace")).hexdigest()[:32]
