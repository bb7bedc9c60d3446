"""Folders opened relative to an open folder (openat(2)), so that no link is followed and no path is too long."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def open_folder(name: str | Path, parent: int | None = None) -> int:
    """Open a folder and return its descriptor.

    Raises:
        OSError: it is not a folder, or may not be read.
    """
    return os.open(name, _FOLDER, dir_fd=parent)


def open_own(name: str | Path, parent: int | None = None) -> int:
    """Open a folder after setting its permissions to 0700: untrusted code may have removed them.

    Raises:
        OSError: it is not a folder, or belongs to another user.
    """
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101 (chmod by the name would follow links)
        return open_folder(".", handle)
    finally:
        os.close(handle)


@contextmanager
def opened(folder: Path, parts: Iterable[str]) -> Iterator[int]:
    """Open a subfolder level by level: each may have been replaced by a link since it was listed.

    Raises:
        OSError: a part is not a folder, or may not be read.
    """
    descriptor = open_folder(folder)
    try:
        for part in parts:
            outer, descriptor = descriptor, open_folder(part, descriptor)
            os.close(outer)
        yield descriptor
    finally:
        os.close(descriptor)
