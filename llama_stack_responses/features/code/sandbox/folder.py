"""Access to a folder that untrusted code writes to. Symbolic links are never followed, even new ones during a read."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import IO, Final

from .openat import open_file, opened, permit

_BLOCK_BYTES: Final = 2**18
"""Bytes copied at a time."""


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
