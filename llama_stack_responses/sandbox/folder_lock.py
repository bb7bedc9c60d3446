"""Which folders of containers are in use: those that a living process has locked. A killed server leaves its own."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .openat import open_folder, open_own


class FolderLock:
    """A locked folder: until `release`, or the end of this process, however it ends.

    Args:
        descriptor: of the folder.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @staticmethod
    def make(folder: Path) -> FolderLock:
        """Makes a folder, which must not be there yet, and locks it."""
        folder.mkdir(mode=0o700, parents=True)
        while (descriptor := _lock(folder, fcntl.LOCK_EX)) is None:
            # Another server saw it before it was locked, and took it for a dead one's.
            folder.mkdir(mode=0o700, exist_ok=True)
        return FolderLock(descriptor)

    @staticmethod
    def take_over(folder: Path) -> FolderLock | None:
        """Locks a folder that a dead process left; None if a living one has it, or it is gone."""
        try:
            descriptor = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        return None if descriptor is None else FolderLock(descriptor)

    def release(self) -> None:
        """Lets go of the folder."""
        os.close(self._descriptor)


def _lock(folder: Path, how: int) -> int | None:
    """A descriptor of the locked folder; None if another process removed it meanwhile."""
    try:
        descriptor = _opened(folder)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, how)
        if folder.exists() and os.path.samestat(os.fstat(descriptor), folder.lstat()):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _opened(folder: Path) -> int:
    try:
        return open_folder(folder)
    except PermissionError:
        return open_own(folder)
