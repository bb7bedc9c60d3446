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
            answer = await self._files.openai_retrieve_file_content(RetrieveFileContentRequest(file_id=file_id))
            content = await content_of(answer, stored.bytes)
        except Exception as error:
            raise _error(error, file_id) from error
        media_type = mimetypes.guess_type(stored.filename)[0] or ""
        return Document(stored.filename, media_type, content)


async def content_of(answer: Any, size: int) -> bytes:
    """Return the content of a file of this size from the host's answer, which OGX streams from S3.

    Raises:
        ValueError: the content is larger.
    """
    pieces = getattr(answer, "body_iterator", None)
    if pieces is None:
        return bytes(answer.body)
    content = bytearray()
    async for piece in pieces:
        content += piece
        if len(content) > size:
            raise ValueError("the content is larger than the file")
    return bytes(content)


def _error(error: Exception, file_id: str) -> ApiError:
    if is_missing(error, file_id):
        return bad_request(f"The file '{file_id}' was not found.", "input", "file_not_found")
    return failed("file store", "input", error)
