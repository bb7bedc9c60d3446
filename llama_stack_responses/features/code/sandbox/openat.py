"""Folders opened relative to an open folder (openat(2)), so that no link is followed and no path is too long."""

from __future__ import annotations

import os
import stat
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


def open_foreign(name: str | Path, parent: int | None = None) -> int:
    """Open a folder of untrusted code, as `open_own` does if its permissions do not let this process read it.

    Raises:
        PermissionError: it may not be read, and belongs to another user.
        OSError: it is not a folder.
    """
    try:
        return open_folder(name, parent)
    except PermissionError:
        return open_own(name, parent)


def open_file(name: str, parent: int) -> int:
    """Open a file of untrusted code for reading, after setting its permissions to 0600 if they do not allow it.

    Raises:
        OSError: it may not be read, or is a link.
    """
    # Without O_NONBLOCK, opening a pipe would block until its other end is open.
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(name, how, dir_fd=parent)
    except PermissionError:
        _permit(name, parent, 0o600)
        return os.open(name, how, dir_fd=parent)


def permit(folder: Path) -> None:
    """Let the owner of a folder enter, read and write it: untrusted code may have changed its permissions.

    Raises:
        OSError: it is not a folder, or belongs to another user.
    """
    _permit(folder, None, 0o700)


def _permit(name: str | Path, parent: int | None, mode: int) -> None:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
    try:
        has = stat.S_IMODE(os.fstat(handle).st_mode)
        if has & mode != mode:
            os.chmod(f"/proc/self/fd/{handle}", has | mode)  # noqa: PTH101 (chmod by the name would follow links)
    finally:
        os.close(handle)


@contextmanager
def opened(folder: Path, parts: Iterable[str], *, make: bool = False) -> Iterator[int]:
    """Open a subfolder level by level: each may have been replaced by a link since it was listed.

    Args:
        make: whether missing parts are made. They get the owner of `folder`.

    Raises:
        PermissionError: a part may not be read, and belongs to another user.
        OSError: a part is not a folder.
    """
    descriptor = open_foreign(folder)
    try:
        owner = os.fstat(descriptor).st_uid
        for part in parts:
            is_new = make and _make(part, descriptor)
            outer, descriptor = descriptor, open_foreign(part, descriptor)
            os.close(outer)
            if is_new:
                os.fchown(descriptor, owner, -1)
        yield descriptor
    finally:
        os.close(descriptor)


def _make(name: str, parent: int) -> bool:
    """Make a folder. Return whether there was nothing of this name."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return False
    return True
