"""Removes the folders of ended containers, however deep, wide or closed hostile code made them.

A subfolder is not descended into: it is moved to the top of the folder that is removed, so that no path grows, no
descriptor is kept for each level, and a removal that was interrupted goes on with what is there.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Final

from .openat import open_own

_SLICE: Final = 2_000
"""Entries that are removed before another folder gets its turn."""


class Removal:
    """Removes folders in one thread, in turns of a bounded size, so that a large one does not delay the others."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="container-removal")

    async def remove(self, folder: Path) -> None:
        """Removes a folder with all that is in it; does nothing if it is not there.

        Raises:
            OSError: something in it cannot be removed.
        """
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(self._thread, remove_some, folder, _SLICE):
            pass

    def close(self) -> None:
        """Ends the thread; what is left of a folder stays."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def remove_some(folder: Path, most: int) -> bool:
    """Removes about `most` entries of a folder to which nothing is written any more; whether the folder is gone.

    Raises:
        OSError: nothing that is left can be removed.
    """
    try:
        top = open_own(folder)
    except FileNotFoundError:
        return True
    try:
        while most > 0 and (names := _names(top, most)):
            most -= _remove_all(top, names, most)
        if most <= 0:
            return False
    finally:
        os.close(top)
    folder.rmdir()
    return True


def _remove_all(top: int, names: list[str], most: int) -> int:
    """Removes entries of the top folder; how many were removed or moved, at least one."""
    done, failure = 0, None
    for name in names:
        if done >= most:
            break
        try:
            done += _remove(top, name, most - done)
        except OSError as error:
            failure = error
    if failure and not done:
        raise failure
    return done


def _remove(top: int, name: str, most: int) -> int:
    """Removes an entry of the top folder, and of a folder as much as `most` allows; how many were removed or moved."""
    if _unlinked(top, name):
        return 1
    folder = open_own(name, top)
    try:
        names = _names(folder, most)
        for each in names:
            if not _unlinked(folder, each):
                _move_up(folder, each, top)
    finally:
        os.close(folder)
    if len(names) < most:
        os.rmdir(name, dir_fd=top)
    return len(names) + 1


def _unlinked(parent: int, name: str) -> bool:
    """Removes an entry unless it is a folder; whether it is gone."""
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=parent)
        except IsADirectoryError:
            return False
    return True


def _move_up(parent: int, name: str, top: int) -> None:
    # A folder can be moved to another parent only by those who may write to it.
    os.close(open_own(name, parent))
    os.rename(name, token_hex(16), src_dir_fd=parent, dst_dir_fd=top)


def _names(folder: int, most: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, most)]
