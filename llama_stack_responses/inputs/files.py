"""Stored files that a request names by id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from ..admission import Admission
from ..core.errors import bad_request
from ..core.owner import Owner
from ..documents.document import Document

Count = Callable[[int], object]
"""Called with a number of bytes before they are read; raises if they are too many."""


class Files(Protocol):
    """The host's file store."""

    async def read(self, file_id: str, count: Count) -> Document:
        """Return the file if the current user may read it; `count` is called before its content is read.

        Raises:
            ApiError: 400 for a file that does not exist or belongs to another user.
        """
        ...


class NoFiles:
    """A stack without a file store."""

    async def read(self, file_id: str, count: Count) -> Document:  # noqa: ARG002 (there is nothing to count)
        """Refuse: there are no files."""
        raise bad_request(
            f"The file '{file_id}' cannot be read: this stack has no Files API. Send the content as data instead.",
            "input",
        )


Upload = Callable[[str], AbstractAsyncContextManager[tuple[str, bytes]]]
"""Yields the name and content of an uploaded file by its id. Raises `ApiError` if the user has no access to it."""


def uploaded_with(files: Files, contents: Admission, current_user: Callable[[], Owner]) -> Upload:
    """Return a context manager that reads a file as its name and content.

    The content counts as held by the current user until the block ends.
    """

    @asynccontextmanager
    async def uploaded(file_id: str) -> AsyncIterator[tuple[str, bytes]]:
        with contents.reserve(current_user()) as reservation:

            def count(size: int) -> None:
                if size > contents.per_user:
                    message = f"The file '{file_id}' has more than {contents.per_user} bytes, the maximum."
                    raise bad_request(message, "input")
                reservation.add(size)

            file = await files.read(file_id, count)
            yield file.name, file.content

    return uploaded
