"""JSON of any size; large JSON is decoded in pieces, for a thread that lets others run after each of them.

A decoder in C keeps the interpreter lock until it has decoded the whole document: megabytes would block the event loop,
from any thread. Here it gets runs of members of an array or object, of some ten kilobytes each. A large value between
them is decoded first. In the text of what contains it, a string that cannot be guessed takes its place.
"""

from __future__ import annotations

import re
import time
from secrets import token_hex
from typing import Any, Final

import orjson

_PIECE_BYTES: Final = 32_768
"""Bytes from which members are decoded together, and from which a value is decoded apart."""

_AT_ONCE_BYTES: Final = 65_536
"""Bytes of a document that are decoded in one call, which takes half a millisecond."""

_BLOCK_BYTES: Final = 1_024
"""Bytes before a place that are searched for backslashes together."""

_MAX_DEPTH: Final = 1_024
"""Maximum levels of nesting, as in `orjson`."""

_RUN: Final = re.compile(rb'(?:[^"\[\]{}]{0,1024}+"[^"\\]{0,256}+"){0,32}+([^"\[\]{}]{0,1024}+)')
"""Text of bounded length without brackets, escapes and long strings; the group is its end, outside strings."""

_FIRST_OF_PAIR: Final = re.compile(rb"\\u[dD][89abAB]")
"""The begin of the escape of the first half of a surrogate pair, which is one character with the second."""

_UNICODE: Final = b"\\u"
_UNICODE_BYTES: Final = 6
"""Bytes of an escape with four hexadecimal digits."""

_CLOSING: Final = {ord("["): b"]", ord("{"): b"}"}
_QUOTE: Final = b'"'
_BACKSLASH: Final = b"\\"
_BLANK: Final = b" \t\r\n"


class InvalidJsonError(ValueError):
    """The document is not JSON."""


def loads(document: bytes | bytearray, at_once: int = _AT_ONCE_BYTES) -> Any:
    """Return the array, object or string that a document holds, as `orjson.loads` does. Takes linear time.

    Args:
        at_once: bytes of a document that is decoded in one call, for which other threads wait.

    Raises:
        InvalidJsonError: the document is not JSON, is nested too deeply, or is large and of another type.
    """
    if len(document) <= at_once:
        try:
            return orjson.loads(document)
        except orjson.JSONDecodeError as error:
            raise InvalidJsonError(str(error)) from None
    decoding = _Decoding(document)
    try:
        return decoding.value()
    except (orjson.JSONDecodeError, IndexError):
        raise InvalidJsonError(f"invalid JSON before byte {decoding.at}") from None


class _Decoding:
    """Decodes one document.

    Attributes:
        at: bytes that were read.
    """

    def __init__(self, document: bytes | bytearray) -> None:
        self._document = document
        self._name = token_hex(16)
        self._names = 0
        self._starts: list[int] = []  # of the open arrays and objects
        self._large: dict[int, _Large] = {}  # the large ones among them, by depth
        self._whole: Any = None
        self.at = 0

    def value(self) -> Any:
        document = self._document
        self._begin()
        while self._starts:
            self._run()
            match document[self.at]:
                case 0x5B | 0x7B:
                    self._open()
                case 0x5D | 0x7D:
                    self._close()
                case 0x22:
                    self._pass_string()
        if document[self.at :].strip(_BLANK):
            raise InvalidJsonError(f"unexpected text after byte {self.at}")
        return self._whole

    def _begin(self) -> None:
        """Open the array or object, or decode the string."""
        while self._document[self.at] in _BLANK:
            self.at += 1
        first = self._document[self.at]
        if first in _CLOSING:
            self._open()
        elif first == _QUOTE[0]:
            start, end = self.at + 1, self._end_of_string()
            self._whole, self.at = self._text(start, end), end + 1
        else:
            raise InvalidJsonError("neither an array, an object nor a string")

    def _open(self) -> None:
        self._starts.append(self.at)
        self.at += 1
        if len(self._starts) > _MAX_DEPTH:
            raise InvalidJsonError(f"more than {_MAX_DEPTH} nested levels")

    def _run(self) -> None:
        """Pass text without brackets; decode the members before its last comma if they have become large."""
        run = _RUN.match(self._document, self.at)
        assert run
        if run.end() == self.at:
            return
        self.at = run.end()
        depth = len(self._starts)
        large = self._large.get(depth)
        begin = large.begin if large else self._starts[-1] + 1
        if self.at - begin + (large.size if large else 0) < _PIECE_BYTES:
            return
        comma = self._document.rfind(b",", max(begin, run.start(1)), run.end())
        if comma >= 0:
            self._of(depth).cut(self._document, comma)
            time.sleep(0)

    def _close(self) -> None:
        depth, start = len(self._starts), self._starts.pop()
        if self._document[self.at : self.at + 1] != _CLOSING[self._document[start]]:
            raise InvalidJsonError(f"unexpected closing bracket at byte {self.at}")
        self.at += 1
        large = self._large.pop(depth, None)
        if large is None and depth > 1 and self.at - start < _PIECE_BYTES:
            return  # decoded with what contains it
        large = large or _Large(self._document[start], start + 1)
        self._put(start, large.end(self._document, self.at - 1))
        time.sleep(0)

    def _pass_string(self) -> None:
        """Pass a string that no run has; decode it if it is large."""
        start, quote = self.at, self._end_of_string()
        if quote - start < _PIECE_BYTES:
            self.at = quote + 1
            return
        value = self._text(start + 1, quote)
        self.at = quote + 1
        self._put(start, value)

    def _end_of_string(self) -> int:
        """Return the index of the quotation mark that ends the string that begins here."""
        start, document = self.at, self._document
        end = start + 1
        while (quote := document.find(_QUOTE, end, end + _PIECE_BYTES)) < 0 or _is_escaped(document, quote):
            end = quote + 1 if quote >= 0 else end + _PIECE_BYTES
            if end > len(document):
                raise InvalidJsonError(f"a string that begins at byte {start} does not end")
        return quote

    def _text(self, start: int, end: int) -> str:
        """Return the text of a string, without its quotation marks."""
        text, document = "", self._document
        while start < end:
            until = self._end_of_characters(start, end)
            while until > start and until < end and document[until] & 0xC0 == 0x80:  # within a character of UTF-8
                until -= 1
            if until == start:
                raise InvalidJsonError(f"invalid string before byte {start}")
            text += orjson.loads(b"".join((_QUOTE, document[start:until], _QUOTE)))  # it grows in place
            start = until
            time.sleep(0)
        return text

    def _end_of_characters(self, start: int, end: int) -> int:
        """Return where a piece of the text may end: not within an escape or a pair of surrogates."""
        if start + _PIECE_BYTES >= end:
            return end
        return start + _whole_escapes(self._document[start : start + _PIECE_BYTES])

    def _put(self, start: int, value: Any) -> None:
        """Replace a value that begins at `start` and ends here."""
        if not self._starts:
            self._whole = value
            return
        self._names += 1
        self._of(len(self._starts)).put(self._document, start, self.at, f"{self._name}{self._names}", value)

    def _of(self, depth: int) -> _Large:
        if depth not in self._large:
            start = self._starts[depth - 1]
            self._large[depth] = _Large(self._document[start], start + 1)
        return self._large[depth]


class _Large:
    """An array or object that is decoded in pieces.

    Attributes:
        begin: where the text begins that is not decoded yet and not in `_parts`.
        size: bytes of `_parts`.
    """

    def __init__(self, kind: int, begin: int) -> None:
        self.begin = begin
        self.size = 0
        self._kind = kind
        self._parts: list[bytes] = []
        self._values: dict[str, Any] = {}
        self._joined: list[Any] | dict[str, Any] | None = None

    def put(self, document: bytes | bytearray, start: int, end: int, name: str, value: Any) -> None:
        """Let `name` stand for the text from `start` to `end`, and for its value."""
        part = b"".join((document[self.begin : start], _QUOTE, name.encode(), _QUOTE))
        self._parts.append(part)
        self.size += len(part)
        self._values[name] = value
        self.begin = end

    def cut(self, document: bytes | bytearray, comma: int) -> None:
        """Decode the members before this comma."""
        if not (members := self._decoded(document, comma)):
            raise InvalidJsonError(f"unexpected comma at byte {comma}")
        self._add(members)
        self.begin = comma + 1

    def end(self, document: bytes | bytearray, at: int) -> Any:
        """Return the whole value, which is closed here."""
        members = self._decoded(document, at)
        if self._joined is not None and not members:
            raise InvalidJsonError(f"unexpected comma before byte {at}")
        self._add(members)
        return self._joined

    def _add(self, members: Any) -> None:
        if self._joined is None:
            self._joined = members
        elif isinstance(self._joined, list):
            self._joined += members
        else:
            self._joined.update(members)

    def _decoded(self, document: bytes | bytearray, end: int) -> Any:
        closing = _CLOSING[self._kind]
        text = b"".join((bytes((self._kind,)), *self._parts, document[self.begin : end], closing))
        members, values = orjson.loads(text), self._values
        self._parts, self._values, self.size = [], {}, 0
        if not values:
            return members
        if isinstance(members, list):
            return [values.get(each, each) if isinstance(each, str) else each for each in members]
        if not all(isinstance(values.get(name, name), str) for name in members):
            raise InvalidJsonError(f"a name that is not a string before byte {end}")
        pairs = members.items()
        return {values.get(name, name): values.get(v, v) if isinstance(v, str) else v for name, v in pairs}


def _whole_escapes(text: bytes | bytearray) -> int:
    """Return the bytes of a string's text without an escape or a pair of surrogates that is cut off."""
    end = len(text) - _is_escaped(text, len(text))
    escape = text.rfind(_UNICODE, max(0, end - _UNICODE_BYTES + 1), end)
    if escape >= 0 and not _is_escaped(text, escape):
        end = escape
    escape = end - _UNICODE_BYTES
    if escape >= 0 and _FIRST_OF_PAIR.match(text, escape) and not _is_escaped(text, escape):
        end = escape
    return end


def _is_escaped(document: bytes | bytearray, place: int) -> bool:
    """Return whether the number of backslashes before a place in a string is odd."""
    end = place
    while block := document[max(0, end - _BLOCK_BYTES) : end]:
        text = len(block.rstrip(_BACKSLASH))
        end -= len(block) - text
        if text:
            break
    return (place - end) % 2 == 1
