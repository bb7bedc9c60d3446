"""Lists the files of a folder that hostile code writes to: bounded in number and depth, and without its links."""

from __future__ import annotations

import os
import stat
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from .folder import Found
from .openat import opened

Parts = tuple[str, ...]
"""A folder's path, relative to the outermost one."""

_DEPTH: Final = 32
"""Levels of folders below the outermost one in which files are listed."""

_ENTRIES: Final = 100_000
"""Entries of all kinds that are looked at."""

_PATH_BYTES: Final = 1_024
"""Bytes of a path that is listed, at most."""

_ALL_BYTES: Final = 2**20
"""Bytes of all paths that are listed together, at most."""


def listed_files(folder: Path, most: int, *, depth: int = _DEPTH, entries: int = _ENTRIES) -> list[Found]:
    """At most `most` regular files, the outer ones first; folders that cannot be read are left out.

    Files with very long paths are left out too, and all further files once the paths together are very long.

    Args:
        depth: levels of folders below `folder` that are read.
        entries: how many entries are looked at in all.
    """
    found: list[Found] = []
    waiting: deque[Parts] = deque([()])
    left = _ALL_BYTES
    while waiting and len(found) < most and entries > 0 and left > 0:
        parts = waiting.popleft()
        with suppress(OSError), opened(folder, parts) as descriptor, os.scandir(descriptor) as inside:
            for entry in islice(inside, entries):
                entries -= 1
                if not entry.is_dir(follow_symlinks=False):
                    for file in _regular(entry, parts):
                        left -= len(file.path)
                        if left > 0:
                            found.append(file)
                elif len(parts) < depth:
                    waiting.append((*parts, entry.name))
    return found[:most]


def _regular(entry: os.DirEntry[str], parts: Parts) -> list[Found]:
    with suppress(OSError):
        about = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(about.st_mode):
            path = "/".join((*parts, entry.name))
            if len(os.fsencode(path)) <= _PATH_BYTES:
                return [Found(path, about.st_size, about.st_blocks * 512, about.st_mtime_ns)]
    return []
