"""A folder that hostile code writes to: its links are never followed, not even those that come while it is read."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import IO, Final

_BLOCK: Final = 2**18
"""Bytes that are copied at a time."""


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file in the folder.

    Attributes:
        path: relative to the folder.
        bytes: its size.
        blocks: the bytes that it takes on the disk.
        written_at: nanoseconds since the epoch.
    """

    path: str
    bytes: int
    blocks: int
    written_at: int


def open_regular(folder: Path, path: str) -> tuple[IO[bytes], int] | None:
    """A file and its size, by its path relative to the folder; None if there is no such regular file."""
    *parents, name = PurePosixPath(path).parts
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for each in parents:
            outer, descriptor = descriptor, _open_folder(each, descriptor)
            os.close(outer)
        # Opening a pipe would wait for somebody at its other end.
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        about = os.fstat(opened)
        if stat.S_ISREG(about.st_mode):
            return os.fdopen(opened, "rb"), about.st_size
        os.close(opened)
        return None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write_regular(folder: Path, name: str, content: IO[bytes]) -> int:
    """Puts a file right into the folder, in the place of whatever has that name there; it is the folder's owner's.

    Args:
        content: read to its end, in blocks.

    Returns:
        Its size in bytes.
    """
    place = folder / name
    with suppress(FileNotFoundError):
        place.unlink()
    opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(opened, "wb") as file:
        os.fchown(opened, folder.stat().st_uid, -1)
        try:
            copyfileobj(content, file, _BLOCK)
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        return file.tell()


def _open_folder(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
