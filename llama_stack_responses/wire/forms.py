"""The file of a `multipart/form-data` body (RFC 7578), written to a temporary file as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any, Final

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ..core.errors import ApiError, bad_request
from .bodies import Bodies

_MAX_FIELDS: Final = 16
"""Maximum fields of a form, including the file."""

_HEAD_BYTES: Final = 8_192
"""Maximum bytes of the head of one part."""

_FRAME_BYTES: Final = 2 * _MAX_FIELDS * _HEAD_BYTES
"""Maximum bytes of a form in addition to its file."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that a client sent.

    Attributes:
        name: file name given by the client.
        content: an unnamed temporary file, positioned at its beginning.
    """

    name: str
    content: IO[bytes]


@asynccontextmanager
async def uploaded(request: Request, bodies: Bodies, limit: int) -> AsyncIterator[Upload]:
    """Yield the field `file` of a form, of at most `limit` bytes. The file is deleted when the block ends.

    Raises:
        ApiError: 400 if the body is not a form or has no such file; 413 if it is too large; 408, 429, 503 as from
            `Bodies.pieces`.
        ClientDisconnect: the client disconnected.
    """
    boundary = _boundary(request)
    with TemporaryFile() as content:
        form = _Form(boundary, content, limit)
        async for piece in bodies.pieces(request, limit + _FRAME_BYTES):
            # In a thread: a piece that imitates boundaries is slow to parse, and disk writes may block.
            await asyncio.to_thread(form.feed, piece)
        name = form.end()
        content.seek(0)
        yield Upload(name, content)


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise bad_request("The body must be a form: 'multipart/form-data' with a boundary. Send the file as 'file'.")
    return boundary


class _Form:
    """Parses a form and keeps the content of its file only.

    Args:
        content: file to which that content is written.
        limit: maximum bytes of the file.
    """

    def __init__(self, boundary: bytes, content: IO[bytes], limit: int) -> None:
        self._content = content
        self._limit = limit
        self._parts = 0
        self._head = 0
        self._field = self._value = self._disposition = b""
        self._name: str | None = None
        self._in_file = False
        self._size = 0
        self._ended = False
        callbacks: Any = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_field,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_head,
            "on_part_data": self._add_data,
            "on_end": self._end,
        }
        with _well_formed():
            self._parser = MultipartParser(boundary, callbacks)

    def feed(self, piece: bytes) -> None:
        """Parse the next bytes of the body. This computes and writes to the disk: call it in a thread."""
        with _well_formed():
            self._parser.write(piece)

    def end(self) -> str:
        """Return the file's name, after the last piece."""
        if not self._ended:
            raise _malformed()
        if self._name is None:
            raise bad_request("Missing required parameter: 'file'.", "file", "missing_required_parameter")
        return self._name

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > _MAX_FIELDS:
            raise bad_request(f"The form has more than {_MAX_FIELDS} fields. Send the file alone, as 'file'.")
        self._head, self._field, self._value, self._disposition = 0, b"", b"", b""

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._count_head(end - start)
        self._field += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._count_head(end - start)
        self._value += data[start:end]

    def _count_head(self, more: int) -> None:
        self._head += more
        if self._head > _HEAD_BYTES:
            raise bad_request(f"The headers of a form field are larger than {_HEAD_BYTES} bytes.")

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _end_head(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._in_file = b"filename" in options
        if not self._in_file:
            return
        if self._name is not None or options.get(b"name") != b"file":
            raise bad_request("The form must have one file, as the field 'file'.", "file")
        self._name = options[b"filename"].decode(errors="replace") or "file"

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if not self._in_file:
            return
        self._size += end - start
        if self._size > self._limit:
            raise ApiError(413, f"The file is larger than {self._limit} bytes.", code="request_too_large")
        self._content.write(memoryview(data)[start:end])

    def _end(self) -> None:
        self._ended = True


@contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except FormParserError as error:
        raise _malformed() from error


def _malformed() -> ApiError:
    return bad_request("The body is not a well-formed 'multipart/form-data' form.")
