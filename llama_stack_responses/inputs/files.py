"""Stored files that a request names by id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ..core.errors import bad_request
from ..documents.document import Document


class Files(Protocol):
    """The host's file store."""

    async def read(self, file_id: str) -> Document:
        """The file, as far as the user who asks may see it.

        Raises:
            ApiError: 400 for a file that does not exist or is another user's.
        """
        ...


class NoFiles:
    """A stack without a file store."""

    async def read(self, file_id: str) -> Document:
        """Refuses: there are no files."""
        raise bad_request(
            f"The file '{file_id}' cannot be read: this stack serves no files API. Send the content as data instead.",
            "input",
        )


def uploaded_with(files: Files) -> Callable[[str], Awaitable[tuple[str, bytes]]]:
    """Reads a file of `files` as its name and content."""

    async def uploaded(file_id: str) -> tuple[str, bytes]:
        file = await files.read(file_id)
        return file.name, file.content

    return uploaded
