"""Opens folders by a name in an open folder (openat(2)), so that no link is followed and no path is too long."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def open_folder(name: str | Path, parent: int | None = None) -> int:
    """A descriptor of a folder.

    Raises:
        OSError: it is no folder, or it may not be read.
    """
    return os.open(name, _FOLDER, dir_fd=parent)


def open_own(name: str | Path, parent: int | None = None) -> int:
    """A descriptor of a folder whose permissions are set to 0700 first: code may take them away from its folders.

    Raises:
        OSError: it is no folder, or another user's.
    """
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101 (chmod by the name would follow links)
        return open_folder(".", handle)
    finally:
        os.close(handle)


@contextmanager
def opened(folder: Path, parts: Iterable[str]) -> Iterator[int]:
    """A folder below another one, opened level by level: each may have been replaced by a link since it was seen.

    Raises:
        OSError: one of them is no folder, or may not be read.
    """
    descriptor = open_folder(folder)
    try:
        for part in parts:
            outer, descriptor = descriptor, open_folder(part, descriptor)
            os.close(outer)
        yield descriptor
    finally:
        os.close(descriptor)
