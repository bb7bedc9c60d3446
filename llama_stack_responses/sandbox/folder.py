"""A folder that hostile code writes to: its links are never followed, not even those that come while it is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


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


def regular_files(folder: Path) -> Iterator[Found]:
    """All regular files, in any order."""
    for place, _, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        inside = PurePosixPath(place).relative_to(folder)
        for name in names:
            with suppress(OSError):
                about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(about.st_mode):
                    yield Found(str(inside / name), about.st_size, about.st_blocks * 512, about.st_mtime_ns)


def disk_bytes(folder: Path) -> int:
    """What all files take on the disk."""
    return sum(each.blocks for each in regular_files(folder))


def read_regular(folder: Path, path: str) -> bytes | None:
    """What is in a file, by its path relative to the folder; None if there is no such regular file."""
    *parents, name = PurePosixPath(path).parts
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for each in parents:
            outer, descriptor = descriptor, _open_folder(each, descriptor)
            os.close(outer)
        # Opening a pipe would wait for somebody at its other end.
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        with os.fdopen(opened, "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(opened).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write_regular(folder: Path, name: str, content: bytes) -> None:
    """Puts a file right into the folder, in the place of whatever has that name there; it is the folder's owner's."""
    place = folder / name
    with suppress(FileNotFoundError):
        place.unlink()
    opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(opened, "wb") as file:
        os.fchown(opened, folder.stat().st_uid, -1)
        file.write(content)


def _open_folder(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
