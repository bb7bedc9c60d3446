"""The host's Files API as the place where `file_id`s lead."""

from __future__ import annotations

import mimetypes
from typing import Any

from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.documents.document import Document

from .failures import failed, is_missing
from .platform import RetrieveFileContentRequest, RetrieveFileRequest


class HostFiles:
    """Reads files through the host, which checks that the user may.

    Args:
        files: the host's implementation of its Files API.
    """

    def __init__(self, files: Any) -> None:
        self._files = files

    async def read(self, file_id: str) -> Document:
        """The whole file.

        Raises:
            ApiError: 400 when the host does not find it for this user, 503 when its file store fails.
        """
        try:
            stored = await self._files.openai_retrieve_file(RetrieveFileRequest(file_id=file_id))
            content = await self._files.openai_retrieve_file_content(RetrieveFileContentRequest(file_id=file_id))
        except Exception as error:
            if not is_missing(error, file_id):
                raise failed("file store", "input", error) from error
            raise bad_request(f"The file '{file_id}' was not found.", "input", "file_not_found") from error
        media_type = mimetypes.guess_type(stored.filename)[0] or ""
        return Document(stored.filename, media_type, bytes(content.body))
