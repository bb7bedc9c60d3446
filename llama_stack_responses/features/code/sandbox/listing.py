"""A listing of a folder that untrusted code writes to, with limits on number and depth, and without links."""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from .folder import RegularFile
from .openat import opened

Parts = tuple[str, ...]
"""A folder's path, relative to the top folder."""

_DEPTH: Final = 32
"""Levels below the top folder in which files are listed."""

_MAX_ENTRIES: Final = 100_000
"""Maximum number of entries of all kinds that are read."""

_PATH_BYTES: Final = 1_024
"""Maximum length of a listed path, in bytes."""

_ALL_BYTES: Final = 2**20
"""Maximum length of all listed paths together, in bytes."""


def listed_files(
    folder: Path, max_files: int, *, depth: int = _DEPTH, entries: int = _MAX_ENTRIES
) -> list[RegularFile]:
    """List at most `max_files` regular files, the outer ones first, without folders that cannot be read.

    Files with very long paths are omitted too, and all further files once the total length of the paths is reached.

    Args:
        depth: levels of folders below `folder` to read.
        entries: maximum number of entries to read in all.
    """
    files: list[RegularFile] = []
    waiting: deque[Parts] = deque([()])
    left = _ALL_BYTES
    while waiting and len(files) < max_files and entries > 0 and left > 0:
        parts = waiting.popleft()
        with suppress(OSError), opened(folder, parts) as descriptor, os.scandir(descriptor) as inside:
            for entry in islice(inside, entries):
                entries -= 1
                if not entry.is_dir(follow_symlinks=False):
                    for file in _regular(entry, parts):
                        left -= len(file.path)
                        if left > 0:
                            files.append(file)
                elif len(parts) < depth:
                    waiting.append((*parts, entry.name))
    return files[:max_files]


def _regular(entry: os.DirEntry[str], parts: Parts) -> list[RegularFile]:
    with suppress(OSError):
        about = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(about.st_mode):
            path = "/".join((*parts, entry.name))
            if len(os.fsencode(path)) <= _PATH_BYTES:
                return [RegularFile(path, about.st_size, about.st_blocks * 512, about.st_mtime_ns)]
    return []
