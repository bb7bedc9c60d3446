"""Room on the disk of an SQLite file that only deletions may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 8 * 2**20
LEAST_BYTES: Final = 6 * 2**20
"""Bytes that a step of a sweep may write at most; a reserve with less counts as used."""

_BLOCK_BYTES: Final = 2**20


class Reserve:
    """A file beside the SQLite file that holds room on the disk.

    A deletion writes before it frees anything. So on a full disk, it needs the room of this file, which is emptied for
    it and filled again afterwards. Until then, commits that do not free room fail: they would use that room.
    """

    def __init__(self, database: Path) -> None:
        # Every commit looks at the file, which takes several times as long for a `Path`.
        self._name = f"{database}-reserve"

    def is_used(self) -> bool:
        """Return whether the room was given away; False if the file was never made."""
        size = self._size()
        return size is not None and size < LEAST_BYTES

    def fill(self) -> bool:
        """Hold the room, and return True; return False if the disk does not have it."""
        if self._size() == RESERVE_BYTES:
            return True
        # Zeros would take no room on a file system that compresses.
        written, noise = 0, os.urandom(_BLOCK_BYTES)
        with contextlib.suppress(OSError):
            descriptor = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                while written < RESERVE_BYTES:
                    written += file.write(noise)
        return written >= LEAST_BYTES

    def release(self) -> None:
        """Give the room to the next commits."""
        with contextlib.suppress(OSError):
            os.truncate(self._name, 0)

    def _size(self) -> int | None:
        try:
            return os.stat(self._name).st_size  # noqa: PTH116 - a string
        except OSError:
            return None
