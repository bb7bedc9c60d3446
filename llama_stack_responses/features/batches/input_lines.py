"""The lines of an input file: read in pieces, and checked."""

from __future__ import annotations

import time
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, BinaryIO, Final, NamedTuple

from ...concurrency.offloading import INLINE_BYTES, in_thread, in_thread_until_done
from ...core import json_decoding
from ...core.errors import ApiError
from ...core.json_values import fits
from ...core.shapes import check_json
from ...core.types import Json
from .rows import Named

_PAGE_LINES: Final = 256
_PAGE_BYTES: Final = 2**20
"""Lines and bytes after which a page of lines ends."""
_PIECE_BYTES: Final = 2**16
"""Bytes of a line that are read together."""
_VALUES: Final = 1_000_000
_DEPTH: Final = 128
"""Values of one line, and how deep they may be nested."""
_DECODED: Final = 8
"""Bytes of memory that a byte of JSON may take."""
_MAX_ERRORS: Final = 100
"""Errors of a file that are reported."""
_MAX_ID: Final = 512
_MEMBERS: Final = ("custom_id", "method", "url", "body")


class RawLine(NamedTuple):
    """A line of a file that is not blank.

    Attributes:
        number: its number, from 1; blank lines count.
        text: the line; cut off if it is too long.
        start: where it begins in the file, in bytes.
        end: where the next line begins.
    """

    number: int
    text: bytes | bytearray
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Checks:
    """What a file is checked for.

    Attributes:
        endpoint: the endpoint that all lines name.
        lines: maximum number of lines.
        line_bytes: maximum size of one line.
    """

    endpoint: str
    lines: int
    line_bytes: int


class LineReader:
    """Reads the lines of a file, a page at a time.

    Args:
        file: the file.
        line_bytes: maximum size of a line; of a longer one, only its beginning is read.
        number: the number of the first line that is read.
        offset: where it begins, in bytes.
    """

    def __init__(self, file: BinaryIO, line_bytes: int, number: int = 1, offset: int = 0) -> None:
        self._file, self._line_bytes = file, line_bytes
        self._number, self._offset = number, offset

    async def page(self, most: int = _PAGE_LINES) -> list[RawLine]:
        """Return the next lines, at most so many; none at the end of the file.

        If this is cancelled, it waits until it has read: another reader may have the same file.
        """
        lines = list[RawLine]()
        while not lines and await in_thread_until_done(partial(self._read, most, lines)):
            pass  # All that was read was blank.
        return lines

    def _read(self, most: int, lines: list[RawLine]) -> bool:
        """Add the next lines; return whether there may be more."""
        size = 0
        self._file.seek(self._offset)
        while len(lines) < most and size < _PAGE_BYTES:
            start, text = self._offset, self._line()
            if not text:
                return False
            size += len(text)
            if start == 0:
                text = text.removeprefix(BOM_UTF8)
            if text and not text.isspace():
                lines.append(RawLine(self._number, text, start, self._offset))
            self._number += 1
        return True

    def _line(self) -> bytes | bytearray:
        """Read the next line in pieces: one of megabytes would keep the interpreter lock for long."""
        piece = self._piece()
        text = bytearray(piece) if len(piece) == _PIECE_BYTES else piece
        while len(piece) == _PIECE_BYTES and not piece.endswith(b"\n"):
            piece = self._piece()
            text += piece[: self._line_bytes + 1 - len(text)]
        return text[: self._line_bytes + 1] if len(text) > self._line_bytes else text

    def _piece(self) -> bytes:
        piece = self._file.readline(_PIECE_BYTES)
        self._offset += len(piece)
        return piece


@dataclass(slots=True)
class Checked:
    """What is known of a file.

    Attributes:
        count: the number of its lines that are not blank.
        models: the models that they name; three at most are noted.
        errors: what is wrong, as the API has it.
        added: the lines that were added last, without those that are wrong.
    """

    count: int = 0
    models: set[str] = field(default_factory=set)
    errors: list[Json] = field(default_factory=list)
    added: list[Named] = field(default_factory=list)
    _ids: Sequence[set[bytes]] = field(default_factory=lambda: [set() for _ in range(256)])
    """Hashes of the custom ids, by their first byte: a large set would take long whenever it grows."""

    @property
    def model(self) -> str | None:
        """The model that all lines name; None if they name several."""
        return next(iter(self.models)) if len(self.models) == 1 else None

    @property
    def full(self) -> bool:
        """Whether no more errors are noted."""
        return len(self.errors) >= _MAX_ERRORS

    def wrong(self, code: str, message: str, line: int | None = None, param: str | None = None) -> None:
        """Note an error."""
        if not self.full:
            self.errors.append({"code": code, "line": line, "message": message, "param": param})

    def add(self, lines: Sequence[RawLine], checks: Checks) -> None:
        """Check lines, in a thread that lets the event loop run after each."""
        self.added = []
        for line in lines:
            time.sleep(0)
            self.count += 1
            if self.count > checks.lines:
                message = f"The batch input file has more than {checks.lines} requests, the maximum of this server."
                self.wrong("too_many_tasks", message)
                return
            if len(line.text) > checks.line_bytes:
                message = f"This line is longer than {checks.line_bytes} bytes, the maximum of this server."
                self.wrong("line_too_long", message, line.number)
                continue
            try:
                self._check(decoded(line.text), line.number, checks.endpoint)
            except ValueError as error:
                self.wrong("invalid_json_line", str(error), line.number)

    def _check(self, value: Any, number: int, endpoint: str) -> None:
        if not isinstance(value, dict):
            self.wrong("invalid_json_line", "This line is not a JSON object.", number)
            return
        for name in _MEMBERS:
            kind, called = (dict, "an object") if name == "body" else (str, "a string")
            if name not in value:
                message = f"Missing required parameter: '{name}'."
                self.wrong("missing_required_parameter", message, number, name)
            elif not isinstance(value[name], kind):
                self.wrong("invalid_type", f"Invalid type for '{name}': expected {called}.", number, name)
            else:
                self._check_member(name, value[name], number, endpoint)

    def _check_member(self, name: str, value: Any, number: int, endpoint: str) -> None:
        match name:
            case "custom_id":
                self._check_id(value, number)
            case "method" if value != "POST":
                self.wrong("invalid_value", "Invalid value for 'method': expected 'POST'.", number, name)
            case "url" if value != endpoint:
                message = f"The URL of this request does not match the batch's endpoint, '{endpoint}'."
                self.wrong("url_mismatch", message, number, name)
            case "body":
                self._check_body(value, number)

    def _check_id(self, custom_id: str, number: int) -> None:
        if not 1 <= len(custom_id) <= _MAX_ID:
            message = f"Invalid 'custom_id': expected 1 to {_MAX_ID} characters."
            self.wrong("invalid_value", message, number, "custom_id")
            return
        name = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        same = self._ids[name[0]]
        if name in same:
            message = f"The custom_id '{custom_id[:80]}' of this request is not unique in the file."
            self.wrong("duplicate_custom_id", message, number, "custom_id")
        same.add(name)
        self.added.append(Named(number, custom_id))

    def _check_body(self, body: Json, number: int) -> None:
        for name in ("stream", "background"):
            if body.get(name):
                message = f"Unsupported value: '{name}' cannot be true in a batch."
                self.wrong("unsupported_value", message, number, f"body.{name}")
        model = body.get("model")
        if not isinstance(model, str) or not model:
            self.wrong("missing_required_parameter", "Missing required parameter: 'model'.", number, "body.model")
        elif len(self.models) < 2:
            self.models.add(model)


def decoded(text: bytes | bytearray) -> Any:
    """Return the value of a line.

    Raises:
        ValueError: it is no JSON, or has too many values or levels.
    """
    if not fits(text, _VALUES, _DEPTH):
        raise ValueError(f"This line has more than {_VALUES} values, or more than {_DEPTH} levels.")
    try:
        value = json_decoding.loads(text)
        check_json(value)
    except (ValueError, ApiError):
        raise ValueError("This line is not parseable as valid JSON.") from None
    return value


def memory_of(text: bytes | bytearray) -> int:
    """Return the bytes that a line may take when it is decoded."""
    return _DECODED * len(text)


async def value_of(text: bytes | bytearray) -> Any:
    """Return the value of a line that was checked; decode a large one in a thread."""
    return await in_thread(decoded, text) if len(text) > INLINE_BYTES else decoded(text)


async def checked(file: BinaryIO, checks: Checks, note: Callable[[Sequence[Named]], Awaitable[None]]) -> Checked:
    """Check a file.

    Args:
        file: the file.
        checks: what it is checked for.
        note: notes lines that follow each other, as long as nothing is wrong.
    """
    reader, found = LineReader(file, checks.line_bytes), Checked()
    while lines := await reader.page():
        await in_thread(found.add, lines, checks)
        if found.full or found.count > checks.lines:
            break
        if not found.errors:
            await note(found.added)
    if not found.count:
        message = "The batch input file is empty: it needs at least one request."
        found.wrong("empty_file", message)
    return found
