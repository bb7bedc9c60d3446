"""The disk usage of a folder, where the kernel does not limit it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from .openat import opened

_DEPTH: Final = 64
"""Maximum depth of folders that are read."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The disk usage of files and folders.

    Attributes:
        bytes: bytes allocated on the disk.
        files: number of entries, including folders and links.
        is_deep: whether folders are nested deeper than the maximum depth.
        is_closed: whether a folder cannot be read.
    """

    bytes: int = 0
    files: int = 0
    is_deep: bool = False
    is_closed: bool = False


def usage(folder: Path, max_files: int) -> DiskUsage:
    """Measure a folder, until `max_files` are exceeded. Folders that are removed meanwhile are omitted."""
    size = files = 0
    waiting: list[tuple[str, ...]] = [()]
    while waiting and files <= max_files:
        parts = waiting.pop()
        if len(parts) > _DEPTH:
            return DiskUsage(size, files, is_deep=True)
        try:
            with opened(folder, parts) as descriptor, os.scandir(descriptor) as entries:
                for entry in islice(entries, max_files - files + 1):
                    files += 1
                    size += _blocks(entry)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((*parts, entry.name))
        except PermissionError:
            # Its files would not count.
            return DiskUsage(size, files, is_closed=True)
        except OSError:
            continue
    return DiskUsage(size, files)


def _blocks(entry: os.DirEntry[str]) -> int:
    with suppress(OSError):
        return entry.stat(follow_symlinks=False).st_blocks * 512
    return 0
