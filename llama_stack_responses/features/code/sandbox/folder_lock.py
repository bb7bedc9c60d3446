"""Locks on the folders of containers. A folder that no living process has locked belongs to a killed server."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .openat import open_foreign


class FolderLock:
    """A folder locked until `release` or the end of this process, even if it is killed.

    Args:
        descriptor: open descriptor of the folder.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @staticmethod
    def make(folder: Path) -> FolderLock:
        """Create and lock a folder that does not exist yet."""
        folder.mkdir(mode=0o700, parents=True)
        while (descriptor := _lock(folder, fcntl.LOCK_EX)) is None:
            # Before it was locked, another server removed it as the folder of a dead one.
            folder.mkdir(mode=0o700, exist_ok=True)
        return FolderLock(descriptor)

    @staticmethod
    def take_over(folder: Path) -> FolderLock | None:
        """Lock the folder of a dead process; None if a living process has it locked, or it is gone."""
        try:
            descriptor = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        return None if descriptor is None else FolderLock(descriptor)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def _lock(folder: Path, how: int) -> int | None:
    """Return a descriptor of the locked folder; None if another process removed it meanwhile."""
    try:
        descriptor = open_foreign(folder)
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
