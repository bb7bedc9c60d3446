"""The containers of this server: their owners, their files and their expiry."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Final

from ....admission import Admission
from ....concurrency.offloading import in_thread
from ....core.errors import ApiError, bad_request
from ....core.ids import new_id
from ....core.owner import Owner
from ....logs import get_logger
from ..network.network import Network
from ..network.policy import NetworkPolicy
from ..network.proxy_settings import PROXY_BYTES, PROXY_THREADS
from ..sandbox import DATA
from ..sandbox.container import Bounds, Container
from ..sandbox.control_group import ControlGroups, GroupLimits
from ..sandbox.folder import RegularFile, listed_files, open_regular, remove_file
from ..sandbox.folder_lock import FolderLock
from ..sandbox.jail import TEMPORARY, Jail
from ..sandbox.removal import Removal
from ..sandbox.volume import Volume, VolumeFull, Volumes, put, put_skill
from ..skills.archive import SkillArchive
from ..skills.skill import Skill

logger = get_logger(__name__)


_POLL_SECONDS: Final = 15.0
"""Polling interval, in seconds, for expired containers."""

_PREFIX: Final = "cntr"
"""The prefix of container ids, and so of folder names."""

_NAME_BYTES: Final = 255
"""Maximum length of a file name on Linux, in bytes."""

_MAX_FILES: Final = 10_000
"""Maximum number of files listed for one container."""

_CONTROLS: Final = {number: chr(number).encode("unicode_escape").decode() for number in (*range(32), 127)}
"""Escapes of control characters. Other unprintable characters are escaped one by one, which is slower."""

_CLOSED: Final = "Code has closed the folder of this container, so"

_REMOVAL_SECONDS: Final = 5.0
"""Seconds for which the end of a container waits for the removal of its files. The removal continues afterwards."""


class TooManyContainers(RuntimeError):  # noqa: N818 (its message is the whole information)
    """The maximum number of containers is reached."""


class NoContainer(LookupError):  # noqa: N818 (its message is the whole information)
    """The container does not exist, has expired, or belongs to another server or user."""

    def __init__(self, container_id: str) -> None:
        super().__init__(
            f"Container '{container_id}' was not found. It has expired, or it belongs to another server or user."
        )


@dataclass(frozen=True, slots=True)
class ContainerFile:
    """A file in a container.

    Attributes:
        id: derived from the path, so it is stable while the path is.
        path: the path inside the container, with unprintable characters escaped.
        stored_path: path relative to the folder, in the exact bytes that the code chose.
        bytes: size.
        written_at: time of the last write, in nanoseconds since the epoch.
        by_user: whether a user uploaded it; otherwise the code created it.
    """

    id: str
    path: str
    stored_path: str
    bytes: int
    written_at: int
    by_user: bool

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class ContainerEntry:
    """A container and its metadata.

    Attributes:
        owner: the user that it belongs to.
        idle_seconds: it expires after this time without use.
        given: paths of the uploaded files, and of those of skills.
        skills: the skills in it, by name.
        lock: marks the folder as in use for other servers.
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
    skills: dict[str, Skill] = field(default_factory=dict)
    users: int = 0

    @property
    def policy(self) -> NetworkPolicy | None:
        """What its code may reach; None without a network. It is the same until the end of the container."""
        network = self.container.network
        return network.policy if network else None


def _no_network(_: str) -> None:
    """Return None: the container has no network."""


class Containers:
    """The containers of one server: creates them, finds them for their owners and ends unused ones.

    Args:
        jail: isolates them.
        bounds: limits of each container.
        volumes: create the storage for their files.
        groups: limit each container as a whole, where control groups are available.
        root: the parent of the containers' folders.
        idle_seconds: expiry of an unused container, and the maximum that its creator may ask for.
        admission: counts containers, from before their creation until their files are removed.
        clock: returns seconds since the epoch. By default, it does not jump when this machine's clock is set.
    """

    def __init__(
        self,
        jail: Jail,
        bounds: Bounds,
        volumes: Volumes,
        root: Path,
        *,
        idle_seconds: float,
        admission: Admission,
        groups: ControlGroups | None = None,
        clock: Callable[[], float] | None = None,
        removal_seconds: float = _REMOVAL_SECONDS,
    ) -> None:
        self._removal_seconds = removal_seconds
        self._jail = jail
        self._bounds = bounds
        self._volumes = volumes
        self._groups = groups
        self._root = root
        self._idle_seconds = idle_seconds
        self._admission = admission
        self._clock = clock or _steady_clock()
        self._entries: dict[str, ContainerEntry] = {}
        self._removal = Removal()
        self._sweeping: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start the background tasks that end unused containers and remove the folders of dead servers."""
        self._sweeping = [asyncio.create_task(each) for each in (self._sweep_idle(), self._sweep_left())]

    async def create(
        self,
        owner: Owner,
        *,
        name: str = "auto",
        container_id: str = "",
        idle_seconds: float | None = None,
        open_network: Callable[[str], Network | None] = _no_network,
    ) -> ContainerEntry:
        """Create a container, with a new id unless one is given.

        Args:
            open_network: returns the network of the container with this id; None for no network.

        Raises:
            TooManyContainers: the maximum number of containers is reached.
        """
        await self._end_idle()
        self._count(owner)
        try:
            container_id, now = container_id or new_id(_PREFIX), self._clock()
            container, lock = await self._make(self._root / container_id, open_network(container_id))
        except BaseException:
            self._admission.release(owner, 1)
            raise
        idle = self._idle_seconds if idle_seconds is None else min(idle_seconds, self._idle_seconds)
        entry = self._entries[container_id] = ContainerEntry(
            container_id, name, owner, int(now), idle, container, now, lock
        )
        return entry

    def _count(self, owner: Owner) -> None:
        """Count one more container of an owner.

        Raises:
            TooManyContainers: the owner's maximum, or that of all, is reached.
        """
        try:
            self._admission.acquire(owner, 1)
        except ApiError as error:
            maximum = f"You have {self._admission.per_user} containers, which is the maximum."
            theirs = f"{maximum} Delete one, or try again later."
            of_all = "This server has reached its maximum number of containers. Try again later."
            raise TooManyContainers(theirs if error.status == 429 else of_all) from error

    async def _make(self, folder: Path, network: Network | None) -> tuple[Container, FolderLock]:
        making = asyncio.ensure_future(in_thread(self._prepared, folder, network))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread cannot be cancelled. Its folder is swept like that of a dead server.
            making.add_done_callback(_release)
            raise

    def _prepared(self, folder: Path, network: Network | None) -> tuple[Container, FolderLock]:
        """Make a locked folder and a container in it."""
        lock = FolderLock.make(folder)
        try:
            volume = self._volumes.make(folder)
            group = self._groups.make(folder.name, self._group_limits(volume, network)) if self._groups else None
            return Container(self._jail, volume, self._bounds, group, network), lock
        except BaseException:
            lock.release()
            raise

    def _group_limits(self, volume: Volume, network: Network | None) -> GroupLimits:
        bounds = self._bounds
        files = volume.capacity.bytes if volume.namespaces else len(TEMPORARY) * self._jail.temporary_bytes
        memory, threads = (PROXY_BYTES, PROXY_THREADS) if network else (0, 0)
        return GroupLimits(bounds.memory_bytes + files + memory, bounds.processes + threads, bounds.processors)

    def find(self, container_id: str, owner: Owner) -> ContainerEntry:
        """Return the owner's container and mark it as used.

        Raises:
            NoContainer: this owner has no such container.
        """
        entry = self._entries.get(container_id)
        if entry is None or entry.owner != owner or self._is_over(entry):
            raise NoContainer(container_id)
        entry.last_active_at = self._clock()
        return entry

    def of(self, owner: Owner) -> list[ContainerEntry]:
        """Return all containers of an owner, the newest first."""
        return [each for each in reversed(self._entries.values()) if each.owner == owner and not self._is_over(each)]

    def all(self) -> list[ContainerEntry]:
        """Return all containers of this server."""
        return list(self._entries.values())

    async def end(self, container_id: str) -> None:
        """End a container and remove its files. Waits for the removal for a few seconds at most."""
        entry = self._entries.pop(container_id, None)
        if entry:
            # A task, so that it continues if the caller is cancelled.
            task = asyncio.create_task(self._end(entry))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            await asyncio.wait([task], timeout=self._removal_seconds)

    async def close(self) -> None:
        """End all containers."""
        for task in self._sweeping:
            task.cancel()
        await asyncio.gather(*(self.end(container_id) for container_id in list(self._entries)))
        if ending := list(self._ending):
            # The next server removes the files that are left.
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)
        self._removal.close()

    def _is_over(self, entry: ContainerEntry) -> bool:
        return entry.users == 0 and self._clock() > entry.last_active_at + entry.idle_seconds

    async def _end(self, entry: ContainerEntry) -> None:
        """End the code of a container, then remove its files. It counts until then."""
        try:
            await entry.container.kill()
            if entry.container.group:
                await in_thread(entry.container.group.remove)
            await self._remove(self._root / entry.id)
        finally:
            entry.lock.release()
            self._admission.release(entry.owner, 1)

    async def _remove(self, folder: Path) -> None:
        try:
            await self._removal.remove(folder)
        except OSError as error:
            logger.warning("could not remove the files of an ended container, will retry: %s", error)

    async def _end_idle(self) -> None:
        await asyncio.gather(*(self.end(each.id) for each in list(self._entries.values()) if self._is_over(each)))

    async def _sweep_idle(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            await self._end_idle()

    async def _sweep_left(self) -> None:
        """Remove the folders that no living process has locked: those of killed servers and of failed removals."""
        while True:
            if self._groups:
                await in_thread(self._groups.sweep, f"{_PREFIX}_*")
            for folder in await in_thread(lambda: list(self._root.glob(f"{_PREFIX}_*"))):
                lock = await in_thread(FolderLock.take_over, folder)
                if lock:
                    await self._remove(folder)
                    lock.release()
            await asyncio.sleep(_POLL_SECONDS)


def _steady_clock() -> Callable[[], float]:
    began = time.time() - time.monotonic()
    return lambda: time.monotonic() + began


def _release(making: asyncio.Future[tuple[Container, FolderLock]]) -> None:
    with suppress(BaseException):
        container, lock = making.result()
        lock.release()
        if container.group:
            container.group.remove()


async def files(entry: ContainerEntry) -> list[ContainerFile]:
    """List the files in a container, by path."""
    return await in_thread(_files, entry)


def _files(entry: ContainerEntry) -> list[ContainerFile]:
    regular_files = listed_files(entry.container.volume.data, _MAX_FILES)
    return [_file(entry, each) for each in sorted(regular_files, key=lambda each: each.path)]


async def open_file(entry: ContainerEntry, file: ContainerFile) -> tuple[IO[bytes], int] | None:
    """Open a file and return it with its size; None if it is no longer there."""
    return await in_thread(_opened, entry.container.volume, file.stored_path)


def _opened(volume: Volume, stored_path: str) -> tuple[IO[bytes], int] | None:
    return open_regular(volume.data, stored_path)


async def write_file(entry: ContainerEntry, name: str, content: IO[bytes]) -> ContainerFile:
    """Upload a file into a container, under the last part of its name. Reads `content` to its end.

    Raises:
        ApiError: 400, the name is not valid there, or the file does not fit.
    """
    base = _file_name(name)
    try:
        size = await in_thread(put, entry.container.volume, base, content)
    except VolumeFull as error:
        raise bad_request(str(error), "file") from error
    except PermissionError as error:
        raise bad_request(f"{_CLOSED} no file can be added. Use a new container.", "file") from error
    except IsADirectoryError as error:
        raise _bad_name(f"a folder of this name is in the container already: '{base}'") from error
    entry.given.add(f"{DATA}/{base}")
    return _file(entry, RegularFile(base, size, size, time.time_ns()))


async def add_skill(entry: ContainerEntry, skill: Skill, archive: SkillArchive) -> None:
    """Put a skill into a container. Files of an earlier skill of its name are replaced, and further ones stay.

    Raises:
        InvalidSkill: a file of the archive is damaged.
        VolumeFull: the skill does not fit.
        OSError: code has closed or replaced its folder.
    """
    await in_thread(put_skill, entry.container.volume, skill.folder, archive)
    folder = f"{DATA}/{skill.folder}/"
    # Those of the earlier skill would add up: code may delete its files, and requests may add others without end.
    entry.given = {path for path in entry.given if not path.startswith(folder)}
    entry.given |= {folder + file.path for file in archive.files}
    entry.skills[skill.name] = skill


async def delete_file(entry: ContainerEntry, file: ContainerFile) -> bool:
    """Remove a file from a container. Return whether it was still there.

    Raises:
        ApiError: 400, code has closed its folder.
    """
    try:
        removed = await in_thread(remove_file, entry.container.volume.data, file.stored_path)
    except PermissionError as error:
        raise bad_request(f"{_CLOSED} its files cannot be deleted. Delete the container.", "file_id") from error
    entry.given.discard(file.path)
    return removed


def _file_name(name: str) -> str:
    """Return the last part of a file's name, if it is valid."""
    base = PurePosixPath(name.replace("\\", "/")).name or "file"
    if base == ".." or not base.isprintable():
        raise _bad_name("it must be a name of printable characters, and not '..'")
    if len(base.encode()) > _NAME_BYTES:
        raise _bad_name(f"it is longer than {_NAME_BYTES} bytes")
    return base


def _bad_name(why: str) -> ApiError:
    return bad_request(f"The file cannot have this name: {why}. Send the file under another 'filename'.", "file")


def _file(entry: ContainerEntry, file: RegularFile) -> ContainerFile:
    path = f"{DATA}/{_escaped(file.path)}"
    return ContainerFile(file_id(path), path, file.path, file.bytes, file.written_at, path in entry.given)


def _escaped(path: str) -> str:
    """Return a path with escapes for bytes that are not UTF-8 and for unprintable characters.

    The code may name files by any bytes. `os` decodes invalid ones to lone surrogates, which JSON cannot hold.
    """
    text = os.fsencode(path).decode(errors="backslashreplace").translate(_CONTROLS)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def file_id(path: str) -> str:
    """Return the id of the file with this path; it is the same in every container."""
    return "cfile_" + hashlib.sha256(path.encode(errors="replace")).hexdigest()[:32]
