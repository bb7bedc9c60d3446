"""Stored files that a request names by id."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

from .chat.messages import FileContent
from .core.errors import bad_request

Json = dict[str, Any]


class Files(Protocol):
    """The host's file store."""

    async def read(self, file_id: str) -> FileContent:
        """The file, as far as the user who asks may see it.

        Raises:
            ApiError: 400 for a file that does not exist or is another user's.
        """
        ...


class NoFiles:
    """A stack without a file store."""

    async def read(self, file_id: str) -> FileContent:
        """Refuses: there are no files."""
        raise bad_request(
            f"The file '{file_id}' cannot be read: this stack serves no files API. Send the content as data instead.",
            "input",
        )


def uploaded_with(files: Files) -> Callable[[str], Awaitable[tuple[str, bytes]]]:
    """Reads a file of `files` as its name and content."""

    async def uploaded(file_id: str) -> tuple[str, bytes]:
        file = await files.read(file_id)
        return file.filename, base64.b64decode(file.base64)

    return uploaded


async def read_files(items: Iterable[Json], files: Files) -> dict[str, FileContent]:
    """Every stored file that the items name, each read once."""
    found: dict[str, FileContent] = {}
    for file_id in _file_ids(items):
        if file_id not in found:
            found[file_id] = await files.read(file_id)
    return found


def _file_ids(items: Iterable[Json]) -> Iterator[str]:
    for item in items:
        parts = item.get("content") or item.get("output") or ()
        if isinstance(parts, dict):
            parts = [parts]
        if isinstance(parts, list):
            yield from (part["file_id"] for part in parts if part.get("file_id"))
