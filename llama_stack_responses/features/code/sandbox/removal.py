"""Removal of the folders of ended containers, even if untrusted code made them very deep, very wide or inaccessible.

A subfolder is not descended into. It is moved to the top of the removed folder, so that paths stay short, one
descriptor suffices for all levels, and an interrupted removal can continue.
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

_ENTRIES_PER_BATCH: Final = 2_000
"""Entries of a folder that are removed before those of the next one."""


class Removal:
    """A thread that removes folders, round-robin in bounded slices, so that a large one does not delay the others.

    Args:
        entries: entries of a folder that are removed before those of the next one.
    """

    def __init__(self, entries: int = _ENTRIES_PER_BATCH) -> None:
        self._entries = entries
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="container-removal")

    async def remove(self, folder: Path) -> None:
        """Remove a folder and its contents. A missing folder is not an error.

        Raises:
            OSError: an entry cannot be removed.
        """
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(self._thread, remove_some, folder, self._entries):
            pass

    def close(self) -> None:
        """End the thread. A partly removed folder stays."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def remove_some(folder: Path, limit: int) -> bool:
    """Remove about `limit` entries of a folder that is no longer written to; return whether the folder is gone.

    Raises:
        OSError: no remaining entry can be removed.
    """
    try:
        top = open_own(folder)
    except FileNotFoundError:
        return True
    try:
        while limit > 0 and (names := _names(top, limit)):
            limit -= _remove_all(top, names, limit)
        if limit <= 0:
            return False
    finally:
        os.close(top)
    folder.rmdir()
    return True


def _remove_all(top: int, names: list[str], limit: int) -> int:
    """Remove entries of the top folder; return how many were removed or moved, at least one."""
    done, failure = 0, None
    for name in names:
        if done >= limit:
            break
        try:
            done += _remove(top, name, limit - done)
        except OSError as error:
            failure = error
    if failure and not done:
        raise failure
    return done


def _remove(top: int, name: str, limit: int) -> int:
    """Remove an entry of the top folder, or up to `limit` entries of a subfolder; return how many were."""
    if _unlinked(top, name):
        return 1
    folder = open_own(name, top)
    try:
        names = _names(folder, limit)
        for each in names:
            if not _unlinked(folder, each):
                _move_up(folder, each, top)
    finally:
        os.close(folder)
    if len(names) < limit:
        os.rmdir(name, dir_fd=top)
    return len(names) + 1


def _unlinked(parent: int, name: str) -> bool:
    """Remove an entry unless it is a folder; return whether it is gone."""
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=parent)
        except IsADirectoryError:
            return False
    return True


def _move_up(parent: int, name: str, top: int) -> None:
    # Moving a folder to another parent requires write permission on the folder itself.
    os.close(open_own(name, parent))
    os.rename(name, token_hex(16), src_dir_fd=parent, dst_dir_fd=top)


def _names(folder: int, limit: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, limit)]
