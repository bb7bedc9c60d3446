"""Where the files of a container are, and how much they may take.

In memory, the kernel bounds them at the moment of use: a file system of a bounded size and number of files, in a mount
namespace that is gone, with everything in it, when this process has closed its descriptors, however it ends. On the
disk, their use is only looked at.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from ..logs import get_logger
from .folder import write_regular
from .jail import Jail
from .usage import usage

logger = get_logger(__name__)

_MIB: Final = 2**20
_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_TIDIED: Final = 2
"""As many times what may be, code may find when it begins, so that it can tidy up."""

_MAKING: Final = 30.0
"""Seconds that the program may take which makes a volume."""


class NoRoom(Exception):  # noqa: N818
    """A file does not fit into the container."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the files of a container may take.

    Attributes:
        bytes: all together.
        files: how many there may be, folders, links and so on among them.
    """

    bytes: int
    files: int

    def __str__(self) -> str:
        return f"{self.bytes // _MIB} MiB and {self.files:,} files"


class Volume(Protocol):
    """The files of a container.

    Attributes:
        data: the folder that the code sees as its own, as the server reaches it.
        place: the folder that it is made in, as the jail reaches it.
        namespaces: descriptors of the namespaces in which the jail reaches it; none if that is where the server is.
        room: what the files may take.
        uploading: held while room is looked for and a file is put there.
    """

    data: Path
    place: Path
    namespaces: tuple[int, ...]
    room: Room
    uploading: threading.Lock

    def used(self) -> tuple[int, int]:
        """Bytes and files that are in use."""
        ...

    def begin(self) -> str | None:
        """Why no code may run, if there is far more than there may be. It may tidy up what is a little too much."""
        ...

    def excess(self) -> str | None:
        """What is more than it may be, and more than it was at `begin`."""
        ...


class MemoryVolume:
    """Files in memory, together with those of the code's /tmp and /dev/shm.

    Raises:
        OSError: this system does not allow it; says why.
    """

    def __init__(self, jail: Jail, place: Path, room: Room) -> None:
        self.place = place
        self.room = room
        self.uploading = threading.Lock()
        plan = {"place": str(place.resolve()), "bytes": room.bytes, "files": room.files, **jail.identity(place)}
        command = [sys.executable, "-I", "-S", str(_LAUNCHER), "volume", json.dumps(plan)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as process, ExitStack() as opened:  # type: ignore[call-overload] # noqa: S603
            timer = threading.Timer(_MAKING, process.kill)
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
            # Threads may read in it until nothing refers to it any more; then the files are gone too.
            weakref.finalize(self, opened.pop_all().close)
        self.data = Path(f"/proc/self/fd/{self._top}/data")

    def used(self) -> tuple[int, int]:
        """Bytes and files that are in use."""
        about = os.fstatvfs(self._top)
        return (about.f_blocks - about.f_bfree) * about.f_frsize, about.f_files - about.f_ffree

    def begin(self) -> str | None:
        """Nothing."""
        return None

    def excess(self) -> str | None:
        """Nothing: the kernel refuses it."""
        return None


class DiskVolume:
    """Files in a folder on the disk. Those of the code's /tmp and /dev/shm are apart."""

    namespaces: tuple[int, ...] = ()

    def __init__(self, jail: Jail, place: Path, room: Room) -> None:
        jail.admit(place)
        self.data = self.place = place
        self.room = self._most = room
        self.uploading = threading.Lock()

    def used(self) -> tuple[int, int]:
        """Bytes and files that are in use."""
        found = usage(self.data, self.room.files)
        return found.bytes, found.files

    def begin(self) -> str | None:
        """Why no code may run: otherwise each call could add as much as is written between two looks."""
        self._most = Room(_TIDIED * self.room.bytes, _TIDIED * self.room.files)
        if too_much := self.excess():
            return f"{too_much} Use a new container."
        found = usage(self.data, self._most.files)
        self._most = Room(max(self.room.bytes, found.bytes), max(self.room.files, found.files))
        return None

    def excess(self) -> str | None:
        """What is more than it may be, and more than it was at `begin`."""
        found = usage(self.data, self._most.files)
        if found.is_deep:
            return "Its folders are too deep."
        if found.bytes > self._most.bytes:
            return f"Its files took more than {self.room.bytes // _MIB} MiB."
        if found.files > self._most.files:
            return f"It had more than {self.room.files:,} files."
        return None


class Volumes:
    """Makes the volumes of containers.

    Args:
        jail: says as which user their code runs.
        room: what each may take.
        in_memory: whether they are in memory, where this system allows it.
    """

    def __init__(self, jail: Jail, room: Room, *, in_memory: bool) -> None:
        self._jail = jail
        self._room = room
        self._in_memory = in_memory

    def make(self, place: Path) -> Volume:
        """A volume in an empty folder; blocks while it is made."""
        if self._in_memory:
            try:
                return MemoryVolume(self._jail, place, self._room)
            except OSError as error:
                logger.warning("files of containers are on the disk, and watched only: %s", error)
                self._in_memory = False
        return DiskVolume(self._jail, place, self._room)


def put(volume: Volume, name: str, content: IO[bytes]) -> int:
    """Puts a file into the container's folder, in the place of another of that name; blocks.

    Returns:
        Its size in bytes.

    Raises:
        NoRoom: it does not fit.
    """
    size = content.seek(0, os.SEEK_END)
    content.seek(0)
    try:
        # Two uploads at once would both find the same room.
        with volume.uploading:
            taken, files = volume.used()
            if taken + size > volume.room.bytes or files >= volume.room.files:
                raise _no_room(name, volume.room)
            return write_regular(volume.data, name, content)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(name, volume.room) from error
        raise


def _no_room(name: str, room: Room) -> NoRoom:
    return NoRoom(
        f"The file '{name}' does not fit into the container, whose files may take {room}. "
        "Remove files from it, or use a new one."
    )


def _opened(path: str, flags: int, stack: ExitStack) -> int:
    """A descriptor that is closed with the stack."""
    descriptor = os.open(path, flags)
    stack.callback(os.close, descriptor)
    return descriptor
