"""The files of a `multipart/form-data` body (RFC 7578), written to a temporary file as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ...concurrency.offloading import in_thread
from ...core.errors import ApiError, bad_request
from ...wire.request_bodies import Bodies

_MAX_FIELDS: Final = 16
"""Maximum fields of a form, in addition to all files but one."""

_HEAD_BYTES: Final = 8_192
"""Maximum bytes of the head of one part."""

_VALUE_BYTES: Final = 64
"""Maximum bytes of the value of a field that is kept."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that a client sent.

    Attributes:
        name: file name given by the client.
        content: an unnamed temporary file, positioned at its beginning.
    """

    name: str
    content: IO[bytes]


@dataclass(frozen=True, slots=True)
class FormShape:
    """What a form consists of.

    Attributes:
        file: the field of the files. One with several may also be called as a list: `files[]`.
        max_files: maximum number of files.
        fields: the other fields whose values are kept; further ones are ignored.
    """

    file: str
    max_files: int = 1
    fields: frozenset[str] = frozenset()

    @property
    def max_fields(self) -> int:
        """Maximum number of fields, files included."""
        return _MAX_FIELDS + self.max_files - 1

    @property
    def frame_bytes(self) -> int:
        """Maximum bytes of a form in addition to its files."""
        return 2 * self.max_fields * _HEAD_BYTES

    @property
    def names(self) -> frozenset[bytes]:
        """The names of the fields that hold files."""
        name = self.file.encode()
        return frozenset((name, name + b"[]") if self.max_files > 1 else (name,))

    def not_these(self) -> ApiError:
        """Return the 400 of other files than the form may have."""
        if self.max_files == 1:
            message = f"The form must have one file, as the field '{self.file}'."
        else:
            message = f"The form must have its files, at most {self.max_files}, as the fields '{self.file}[]'."
        return bad_request(message, self.file)


class SentFile(NamedTuple):
    """A file of a form.

    Attributes:
        name: file name given by the client.
        content: its content.
    """

    name: str
    content: bytes


class SentForm(NamedTuple):
    """A form that a client sent.

    Attributes:
        files: its files.
        fields: its other fields that are kept.
    """

    files: Sequence[SentFile]
    fields: Mapping[str, str]


_ONE_FILE: Final = FormShape("file")


@asynccontextmanager
async def uploaded(request: Request, bodies: Bodies, limit: int) -> AsyncIterator[Upload]:
    """Yield the field `file` of a form, of at most `limit` bytes. The file is deleted when the block ends.

    Raises:
        ApiError: 400 if the body is not a form or has no such file; 413 if it is too large; 408, 429, 503 as from
            `Bodies.pieces`.
        ClientDisconnect: the client disconnected.
    """
    boundary = _boundary(request, _ONE_FILE)
    with TemporaryFile() as content:
        form = _Form(boundary, content, limit, _ONE_FILE)
        await _read(request, bodies, form)
        content.seek(0)
        yield Upload(form.spans[0].name, content)


async def sent_form(request: Request, bodies: Bodies, limit: int, shape: FormShape) -> SentForm:
    """Return a form with files of at most `limit` bytes together.

    Raises:
        ApiError, ClientDisconnect: as from `uploaded`.
    """
    boundary = _boundary(request, shape)
    with TemporaryFile() as content:
        form = _Form(boundary, content, limit, shape)
        await _read(request, bodies, form)
        files = await in_thread(form.read)
        return SentForm(files, {name: value.decode(errors="replace") for name, value in form.fields.items()})


async def _read(request: Request, bodies: Bodies, form: _Form) -> None:
    async for piece in bodies.pieces(request, form.max_bytes):
        # In a thread: a piece that imitates boundaries is slow to parse, and disk writes may block.
        await in_thread(form.feed, piece)
    form.end()


def _boundary(request: Request, shape: FormShape) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        message = "The body must be a form: 'multipart/form-data' with a boundary. Send the file as "
        raise bad_request(f"{message}'{shape.file}'.")
    return boundary


@dataclass(slots=True)
class _Span:
    """Where the content of a file is."""

    name: str
    start: int
    end: int


class _Form:
    """Parses a form and keeps the contents of its files, and the values of some fields.

    Args:
        content: file to which the contents are written, one after another.
        limit: maximum bytes of all files together.
        shape: what the form may have.

    Attributes:
        spans: the files.
        fields: the values of the fields that are kept.
        max_bytes: maximum bytes of the whole form.
    """

    def __init__(self, boundary: bytes, content: IO[bytes], limit: int, shape: FormShape) -> None:
        self.spans: list[_Span] = []
        self.fields: dict[str, bytes] = {}
        self.max_bytes = limit + shape.frame_bytes
        self._content = content
        self._limit = limit
        self._shape = shape
        self._parts = 0
        self._head = 0
        self._field = self._value = self._disposition = b""
        self._file: _Span | None = None
        self._kept: str | None = None
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

    def end(self) -> None:
        """Check the form after the last piece."""
        if not self._ended:
            raise _malformed()
        if not self.spans:
            name = self._shape.file
            raise bad_request(f"Missing required parameter: '{name}'.", name, "missing_required_parameter")

    def read(self) -> list[SentFile]:
        """Return the files. Blocks."""
        files = []
        for span in self.spans:
            self._content.seek(span.start)
            files.append(SentFile(span.name, self._content.read(span.end - span.start)))
        return files

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > self._shape.max_fields:
            raise bad_request(f"The form has more than {self._shape.max_fields} fields.", self._shape.file)
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
        self._file = self._kept = None
        name = options.get(b"name", b"")
        if b"filename" in options:
            if name not in self._shape.names or len(self.spans) == self._shape.max_files:
                raise self._shape.not_these()
            file_name = options[b"filename"].decode(errors="replace") or "file"
            self._file = _Span(file_name, self._size, self._size)
            self.spans.append(self._file)
        elif (field := name.decode(errors="replace")) in self._shape.fields:
            self._kept = field
            self.fields[field] = b""

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._file:
            self._size = self._file.end = self._size + end - start
            if self._size > self._limit:
                what = "file is" if self._shape.max_files == 1 else "files are together"
                raise ApiError(413, f"The {what} larger than {self._limit} bytes.", code="request_too_large")
            self._content.write(memoryview(data)[start:end])
        elif self._kept:
            value = self.fields[self._kept] + data[start:end]
            if len(value) > _VALUE_BYTES:
                raise bad_request(f"Invalid '{self._kept}': it is longer than {_VALUE_BYTES} bytes.", self._kept)
            self.fields[self._kept] = value

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
