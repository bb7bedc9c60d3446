"""The storage of a container's files and its limits.

In memory, the kernel enforces the limits at the time of use: a file system with a fixed size and number of files, in a
mount namespace. The namespace and everything in it are gone when this process has closed its descriptors, even if it is
killed. On the disk, the usage is only polled.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol

from ....logs import get_logger
from ..skills.archive import SkillArchive
from .disk_usage import usage
from .folder import write_regular
from .jail import Jail

logger = get_logger(__name__)

_MIB: Final = 2**20
LAUNCHER: Final = Path(__file__).with_name("launcher.py")
"""The program that makes a volume in memory."""

_TIDIED: Final = 2
"""Code may exceed the limits by this factor when a call begins, so that it can delete files."""

_MAKING_SECONDS: Final = 30.0
"""Time limit, in seconds, for making a volume."""


class VolumeFull(Exception):  # noqa: N818
    """A file does not fit into the container."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits for the files of a container.

    Attributes:
        bytes: size of all files together.
        files: number of files, including folders and links.
    """

    bytes: int
    files: int

    def __str__(self) -> str:
        return f"{self.bytes // _MIB} MiB and {self.files:,} files"


class Volume(Protocol):
    """The files of a container.

    Attributes:
        data: the folder that the code sees as its own, by the path that the server uses.
        folder: the folder that it is created in, by the path that the jail uses.
        namespaces: descriptors of the namespaces in which the jail reaches it; empty if they are the server's own.
        capacity: limits of the files.
        uploading: lock around the check for free space and the write of a file.
    """

    data: Path
    folder: Path
    namespaces: tuple[int, ...]
    capacity: Capacity
    uploading: threading.Lock

    def used(self) -> tuple[int, int]:
        """Return the bytes and files in use."""
        ...

    def begin(self) -> str | None:
        """Return why no code may run, if the limits are exceeded by far. Code may run to delete a small excess."""
        ...

    def excess(self) -> str | None:
        """Return the limit that is exceeded, unless by no more than at `begin`; None if none is."""
        ...


class MemoryVolume:
    """Files in memory, including the code's /tmp and /dev/shm.

    Raises:
        OSError: this system does not allow it; the message has the reason.
    """

    def __init__(self, jail: Jail, folder: Path, capacity: Capacity, launcher: Path) -> None:
        self.folder = folder
        self.capacity = capacity
        self.uploading = threading.Lock()
        plan = {
            "place": str(folder.resolve()),
            "bytes": capacity.bytes,
            "files": capacity.files,
            **jail.identity(folder),
        }
        command = [sys.executable, "-I", "-S", str(launcher), "volume", json.dumps(plan)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as process, ExitStack() as opened:  # type: ignore[call-overload] # noqa: S603
            timer = threading.Timer(_MAKING_SECONDS, process.kill)
            timer.start()
            try:
                if process.stdout.readline() != b"ready\n":
                    raise OSError(errno.EPERM, process.stderr.read(_MIB).decode(errors="replace").strip())
                kinds = ("mnt",) if jail.user is not None else ("user", "mnt")
                paths = [f"/proc/{process.pid}/ns/{kind}" for kind in kinds]
                self.namespaces = tuple(_opened(each, os.O_RDONLY, opened) for each in paths)
                self._top = _opened(f"/proc/{process.pid}/root{plan['place']}", os.O_RDONLY | os.O_DIRECTORY, opened)
            finally:
                timer.cancel()
            # Threads may read in it until the last reference is gone; then the files are gone too.
            weakref.finalize(self, opened.pop_all().close)
        self.data = Path(f"/proc/self/fd/{self._top}/data")

    def used(self) -> tuple[int, int]:
        """Return the bytes and files in use."""
        about = os.fstatvfs(self._top)
        return (about.f_blocks - about.f_bfree) * about.f_frsize, about.f_files - about.f_ffree

    def begin(self) -> str | None:
        """Return None: the kernel enforces the limits."""
        return None

    def excess(self) -> str | None:
        """Return None: the kernel enforces the limits."""
        return None


class DiskVolume:
    """Files in a folder on the disk. The code's /tmp and /dev/shm are separate."""

    namespaces: tuple[int, ...] = ()

    def __init__(self, jail: Jail, folder: Path, capacity: Capacity) -> None:
        jail.give_to_user(folder)
        self.data = self.folder = folder
        self.capacity = self._limits = capacity
        self.uploading = threading.Lock()

    def used(self) -> tuple[int, int]:
        """Return the bytes and files in use."""
        used = usage(self.data, self.capacity.files)
        return used.bytes, used.files

    def begin(self) -> str | None:
        """Return why no code may run: otherwise each call could add as much as is written between two polls."""
        self._limits = Capacity(_TIDIED * self.capacity.bytes, _TIDIED * self.capacity.files)
        if too_much := self.excess():
            return f"{too_much} Use a new container."
        used = usage(self.data, self._limits.files)
        self._limits = Capacity(max(self.capacity.bytes, used.bytes), max(self.capacity.files, used.files))
        return None

    def excess(self) -> str | None:
        """Return the limit that is exceeded, unless by no more than at `begin`; None if none is."""
        used = usage(self.data, self._limits.files)
        if used.is_deep:
            return "Its folders are too deep."
        if used.is_closed:
            return "Its folders cannot be read."
        if used.bytes > self._limits.bytes:
            return f"Its files took more than {self.capacity.bytes // _MIB} MiB."
        if used.files > self._limits.files:
            return f"It had more than {self.capacity.files:,} files."
        return None


class Volumes:
    """A factory for the volumes of containers.

    Args:
        jail: determines the user that their code runs as.
        capacity: limits of each volume.
        in_memory: whether files are kept in memory, where this system allows it.
        launcher: the program that makes a volume in memory.
    """

    def __init__(self, jail: Jail, capacity: Capacity, *, in_memory: bool, launcher: Path = LAUNCHER) -> None:
        self._launcher = launcher
        self._jail = jail
        self._room = capacity
        self._in_memory = in_memory

    def make(self, folder: Path) -> Volume:
        """Create a volume in an empty folder. Blocks."""
        if self._in_memory:
            try:
                return MemoryVolume(self._jail, folder, self._room, self._launcher)
            except OSError as error:
                logger.warning("container files are on disk without a quota; their size is polled: %s", error)
                self._in_memory = False
        return DiskVolume(self._jail, folder, self._room)


def put(volume: Volume, name: str, content: IO[bytes]) -> int:
    """Write a file into the container's folder, replacing a file of that name. Blocks.

    Returns:
        The size in bytes.

    Raises:
        VolumeFull: it does not fit.
    """
    size = content.seek(0, os.SEEK_END)
    content.seek(0)
    with _uploading(volume, f"The file '{name}'", Capacity(size, 1)):
        return write_regular(volume.data, name, content)


def put_skill(volume: Volume, folder: str, archive: SkillArchive) -> None:
    """Write the files of a skill into a subfolder of the container's folder, replacing files there. Blocks.

    Raises:
        InvalidSkill: a file of the archive is damaged.
        VolumeFull: they do not fit.
        OSError: the code has closed the folder, or has put something else in the place of a folder.
    """
    entries = len(archive.files) + archive.folders + len(PurePosixPath(folder).parts)
    with _uploading(volume, "The skill", Capacity(archive.bytes, entries)):
        for file in archive.files:
            content = BytesIO(archive.read(file))
            write_regular(volume.data, f"{folder}/{file.path}", content, executable=file.executable)


@contextmanager
def _uploading(volume: Volume, what: str, added: Capacity) -> Iterator[None]:
    """Check that there is free space, and keep it while files are written: concurrent uploads would count the same.

    Raises:
        VolumeFull: there is no free space.
    """
    capacity = volume.capacity
    try:
        with volume.uploading:
            used, files = volume.used()
            if used + added.bytes > capacity.bytes or files + added.files > capacity.files:
                raise _volume_full(what, capacity)
            yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _volume_full(what, capacity) from error
        raise


def _volume_full(what: str, capacity: Capacity) -> VolumeFull:
    return VolumeFull(
        f"{what} does not fit into the container, whose files may take {capacity}. Remove files from it, or use a new "
        "one."
    )


def _opened(path: str, flags: int, stack: ExitStack) -> int:
    """Open a path; the descriptor is closed with the stack."""
    descriptor = os.open(path, flags)
    stack.callback(os.close, descriptor)
    return descriptor
