"""The host's Files API for files of batches, which may be too large for the memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from mmap import ACCESS_READ, mmap
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute

from ..concurrency.offloading import in_thread
from ..core.errors import ApiError, bad_request
from .failures import failed, is_missing
from .platform import (
    DeleteFileRequest,
    ExpiresAfter,
    OpenAIFilePurpose,
    RetrieveFileContentRequest,
    RetrieveFileRequest,
    UploadFileRequest,
)
from .refusals import Refusal
from .replaced_routes import change_routes

_PIECE_BYTES: Final = 2**20
_INPUT: Final = OpenAIFilePurpose.BATCH.value
"""The purpose of input files."""
_OUTPUT: Final = getattr(OpenAIFilePurpose, "BATCH_OUTPUT", OpenAIFilePurpose.BATCH)
"""The purpose of the files of results; llama-stack knows none of its own."""


class HostLargeFiles:
    """Reads and writes files through the host, which checks the user's access.

    Args:
        files: the host's implementation of its Files API.
    """

    def __init__(self, files: Any) -> None:
        self._files = files

    def take_uploads(self, most: int) -> None:
        """Have clients upload input files of up to so many bytes, as `LargeFiles` says."""

        def change(router: APIRouter) -> None:
            for route in router.routes:
                if isinstance(route, APIRoute) and "POST" in (route.methods or ()):
                    # The route itself calls the second one; the host copies the first one to its application.
                    route.endpoint = route.dependant.call = self._uploading(route.endpoint, most)

        change_routes("files", change)

    def _uploading(self, endpoint: Callable[..., Awaitable[Any]], most: int) -> Callable[..., Awaitable[Any]]:
        """Return the endpoint of the host's uploads, with the same parameters."""

        @wraps(endpoint)
        async def upload(**parameters: Any) -> Any:
            file, purpose = parameters["file"], parameters["purpose"]
            if purpose.value != _INPUT or not file.size:
                return await endpoint(**parameters)
            if file.size > most:
                message = f"The file has {file.size} bytes, and input files of batches at most {most}."
                return Refusal(ApiError(413, message, param="file", code="file_too_large"))
            await in_thread(file.file.flush)  # it is on the disk, but for the last bytes
            request = UploadFileRequest(purpose=purpose, expires_after=parameters.get("expires_after"))
            with mmap(file.file.fileno(), 0, access=ACCESS_READ) as mapped:
                return await self._files.openai_upload_file(request, _Upload(file.filename, mapped))

        return upload

    async def open(self, file_id: str, max_bytes: int) -> BinaryIO:
        """Open a file, as `LargeFiles` says: that of the host's disk, or a copy without a name."""
        try:
            stored = await self._files.openai_retrieve_file(RetrieveFileRequest(file_id=file_id))
            if stored.purpose != _INPUT:
                message = f"The file '{file_id[:80]}' was not uploaded with the purpose '{_INPUT}'."
                raise bad_request(message, "input_file_id", "invalid_file_purpose")
            if stored.bytes > max_bytes:
                message = f"The file '{file_id[:80]}' has more than {max_bytes} bytes, the maximum of this server."
                raise bad_request(message, "input_file_id", "file_too_large")
            return await self._content(file_id)
        except ApiError:
            raise
        except Exception as error:
            if is_missing(error, file_id):
                message = f"The file '{file_id[:80]}' was not found."
                raise bad_request(message, "input_file_id", "file_not_found") from error
            raise failed("file store", "input_file_id", error) from error

    async def _content(self, file_id: str) -> BinaryIO:
        # The host's local file store returns a whole file at once, but has it on the disk.
        if look_up := getattr(self._files, "_lookup_file_id", None):
            _, path = await look_up(file_id)
            opened: BinaryIO = await in_thread(path.open, "rb")
            return opened
        answer = await self._files.openai_retrieve_file_content(RetrieveFileContentRequest(file_id=file_id))
        copy = TemporaryFile()  # noqa: SIM115 (the caller closes it)
        try:
            async for piece in _pieces(answer):
                await in_thread(copy.write, piece)
            await in_thread(copy.flush)
        except BaseException:
            copy.close()
            raise
        return copy

    async def write(self, name: str, content: BinaryIO, seconds: int | None) -> str:
        """Store a file, as `LargeFiles` says."""
        expires = None if seconds is None else ExpiresAfter(anchor="created_at", seconds=seconds)
        # Constructed: the host's clients may not upload files of this purpose.
        request = UploadFileRequest.model_construct(purpose=_OUTPUT, expires_after=expires)
        try:
            with mmap(content.fileno(), 0, access=ACCESS_READ) as mapped:
                stored = await self._files.openai_upload_file(request, _Upload(name, mapped))
        except Exception as error:
            raise failed("file store", "input_file_id", error) from error
        file_id: str = stored.id
        return file_id

    async def delete(self, file_id: str) -> None:
        """Delete a file, as `LargeFiles` says."""
        try:
            await self._files.openai_delete_file(DeleteFileRequest(file_id=file_id))
        except Exception as error:
            if not is_missing(error, file_id):
                raise failed("file store", "input_file_id", error) from error


class _Upload:
    """A file that the host reads as one that a client uploads, in one piece: what it gets is mapped, not read.

    Args:
        filename: its name.
        mapped: its content.
    """

    def __init__(self, filename: str, mapped: mmap) -> None:
        self.filename = filename
        self._mapped = mapped

    async def read(self, size: int = -1) -> mmap | bytes:
        """Return the content."""
        return self._mapped if size < 0 else self._mapped.read(size)


async def _pieces(answer: Any) -> AsyncIterator[bytes]:
    """Yield the content of the host's answer, which OGX streams from S3."""
    if (pieces := getattr(answer, "body_iterator", None)) is not None:
        async for piece in pieces:
            yield piece
        return
    body = memoryview(answer.body)
    for start in range(0, len(body), _PIECE_BYTES):
        yield bytes(body[start : start + _PIECE_BYTES])
