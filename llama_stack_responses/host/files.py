"""The host's Files API, which resolves `file_id`s."""

from __future__ import annotations

import mimetypes
from typing import Any

from ..core.errors import ApiError, bad_request
from ..documents.document import Document
from ..inputs.files import Count
from .failures import failed, is_missing
from .platform import RetrieveFileContentRequest, RetrieveFileRequest


class HostFiles:
    """Reads files through the host, which checks the user's access.

    Args:
        files: the host's implementation of its Files API.
    """

    def __init__(self, files: Any) -> None:
        self._files = files

    async def read(self, file_id: str, count: Count) -> Document:
        """Return the whole file; `count` is called before its content is read.

        Raises:
            ApiError: 400 if the host does not find it for this user; 503 if its file store fails.
        """
        try:
            stored = await self._files.openai_retrieve_file(RetrieveFileRequest(file_id=file_id))
        except Exception as error:
            raise _error(error, file_id) from error
        count(stored.bytes)
        try:
            content = await self._files.openai_retrieve_file_content(RetrieveFileContentRequest(file_id=file_id))
        except Exception as error:
            raise _error(error, file_id) from error
        media_type = mimetypes.guess_type(stored.filename)[0] or ""
        return Document(stored.filename, media_type, bytes(content.body))


def _error(error: Exception, file_id: str) -> ApiError:
    if is_missing(error, file_id):
        return bad_request(f"The file '{file_id}' was not found.", "input", "file_not_found")
    return failed("file store", "input", error)
