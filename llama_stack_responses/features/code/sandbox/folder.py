"""Access to a folder that untrusted code writes to: its files are listed within limits, read, written and removed.

Symbolic links are never followed, even new ones during a read.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import IO, Final

from .openat import open_file, opened, permit

_BLOCK_BYTES: Final = 2**18
"""Bytes copied at a time."""

Parts = tuple[str, ...]
"""A folder's path, relative to the top folder."""

_DEPTH: Final = 32
"""Levels below the top folder in which files are listed."""

_MAX_ENTRIES: Final = 100_000
"""Maximum number of entries of all kinds that are read."""

_PATH_BYTES: Final = 1_024
"""Maximum length of a listed path, in bytes."""

_ALL_BYTES: Final = 2**20
"""Maximum length of all listed paths together, in bytes."""


@dataclass(frozen=True, slots=True)
class RegularFile:
    """A regular file in the folder.

    Attributes:
        path: path relative to the folder.
        bytes: size.
        blocks: bytes allocated on the disk.
        written_at: time of the last write, in nanoseconds since the epoch.
    """

    path: str
    bytes: int
    blocks: int
    written_at: int


def listed_files(
    folder: Path, max_files: int, *, depth: int = _DEPTH, entries: int = _MAX_ENTRIES
) -> list[RegularFile]:
    """List at most `max_files` regular files, the outer ones first, without folders that cannot be read.

    Files with very long paths are omitted too, and all further files once the total length of the paths is reached.

    Args:
        depth: levels of folders below `folder` to read.
        entries: maximum number of entries to read in all.
    """
    files: list[RegularFile] = []
    waiting: deque[Parts] = deque([()])
    left = _ALL_BYTES
    while waiting and len(files) < max_files and entries > 0 and left > 0:
        parts = waiting.popleft()
        with suppress(OSError), opened(folder, parts) as descriptor, os.scandir(descriptor) as inside:
            for entry in islice(inside, entries):
                entries -= 1
                if not entry.is_dir(follow_symlinks=False):
                    for file in _regular(entry, parts):
                        left -= len(file.path)
                        if left > 0:
                            files.append(file)
                elif len(parts) < depth:
                    waiting.append((*parts, entry.name))
    return files[:max_files]


def _regular(entry: os.DirEntry[str], parts: Parts) -> list[RegularFile]:
    with suppress(OSError):
        about = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(about.st_mode):
            path = "/".join((*parts, entry.name))
            if len(os.fsencode(path)) <= _PATH_BYTES:
                return [RegularFile(path, about.st_size, about.st_blocks * 512, about.st_mtime_ns)]
    return []


def open_regular(folder: Path, path: str) -> tuple[IO[bytes], int] | None:
    """Open a file by its path relative to the folder; return it with its size. None if it is not a regular file."""
    *parents, name = PurePosixPath(path).parts
    try:
        with opened(folder, parents) as descriptor:
            file = open_file(name, descriptor)
    except OSError:
        return None
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode):
        return os.fdopen(file, "rb"), about.st_size
    os.close(file)
    return None


def remove_file(folder: Path, path: str) -> bool:
    """Remove a file by its path relative to the folder. Return whether it was still there.

    Raises:
        PermissionError: its folder is closed, and belongs to another user.
    """
    *parents, name = PurePosixPath(path).parts
    try:
        with opened(folder, parents) as descriptor:
            try:
                os.unlink(name, dir_fd=descriptor)
            except PermissionError:
                # Untrusted code may have made the folder read-only.
                os.fchmod(descriptor, 0o700)
                os.unlink(name, dir_fd=descriptor)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
    return True


def write_regular(folder: Path, path: str, content: IO[bytes], *, executable: bool = False) -> int:
    """Write a file by its path relative to the folder, replacing any file there. It gets the folder's owner.

    Args:
        content: read to its end, in blocks.
        executable: whether it may be executed.

    Returns:
        The size in bytes.

    Raises:
        OSError: it cannot be written; PermissionError if the folder belongs to another user.
    """
    permit(folder)
    *parents, name = PurePosixPath(path).parts
    with opened(folder, parents, make=True) as descriptor:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=descriptor)
        mode = 0o755 if executable else 0o644
        written = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=descriptor)
        with os.fdopen(written, "wb") as file:
            os.fchown(written, folder.stat().st_uid, -1)
            try:
                copyfileobj(content, file, _BLOCK_BYTES)
            except BaseException:
                os.unlink(name, dir_fd=descriptor)
                raise
            return file.tell()
