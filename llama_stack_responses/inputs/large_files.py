"""Stored files that are not held in memory."""

from __future__ import annotations

from typing import BinaryIO, Protocol


class LargeFiles(Protocol):
    """The host's file store."""

    async def open(self, file_id: str, max_bytes: int) -> BinaryIO:
        """Open an input file of a batch that the current user may read. The caller closes it.

        Raises:
            ApiError: 400 for a file that does not exist, belongs to another user, has another purpose or is larger;
                503, the file store fails.
        """
        ...

    async def write(self, name: str, content: BinaryIO, seconds: int | None) -> str:
        """Store a file of the current user, and return its id.

        Args:
            name: the name of the file.
            content: what is stored, at least one byte; a file on disk.
            seconds: time after which it expires; None for the default of the file store.

        Raises:
            ApiError: 503, the file store fails.
        """
        ...

    async def delete(self, file_id: str) -> None:
        """Delete a file of the current user; do nothing if it does not exist.

        Raises:
            ApiError: 503, the file store fails.
        """
        ...


class UploadedFiles(LargeFiles, Protocol):
    """The host's file store, with its route for uploads."""

    def take_uploads(self, most: int) -> None:
        """Have clients upload input files of batches of up to so many bytes, which are not held in memory.

        Raises:
            RuntimeError: this version of the host does not allow it.
        """
        ...
