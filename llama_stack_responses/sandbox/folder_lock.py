"""Which folders of containers are in use: those that a living process has locked. A killed server leaves its own."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path


class FolderLock:
    """Makes a folder and keeps it locked: until `release`, or the end of this process, however it ends.

    Args:
        folder: is made, and must not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True)
        while (descriptor := _lock(folder, fcntl.LOCK_EX)) is None:
            # Another server saw it before it was locked, and took it for a dead one's.
            folder.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = descriptor

    def release(self) -> None:
        """Lets go of the folder."""
        os.close(self._descriptor)


def remove_unlocked(root: Path, pattern: str) -> None:
    """Removes the folders in `root` that no living process has locked, among those whose names match."""
    for folder in root.glob(pattern):
        # BlockingIOError: it is in use.
        with suppress(OSError):
            descriptor = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)


def _lock(folder: Path, how: int) -> int | None:
    """A descriptor of the locked folder; None if another process removed it meanwhile."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
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
