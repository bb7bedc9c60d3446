"""Files as text."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from .document import Document, Processor, Unreadable
from .pdf import Pdfs

_REMEMBERED: Final = 16_000_000
"""Characters of texts that are kept, so that a conversation over a file does not read it again at each turn."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""What no text holds: neither white space nor the escape of a terminal's colours."""

_CHARSET: Final = re.compile("ascii|big5|cp|euc|gb|hz|iso|johab|koi8|kz1048|mac|ptcp154|shift_jis|tis|utf-(8|16|32)")
"""How Python's names of charsets begin. It has other codecs under names, which unpack, or take hours for a megabyte."""

_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
"""The marks at the beginning of a text that say how it is encoded."""


class Texts:
    """Reads files: what is text as it is, PDFs, and what the stack's own file processor can read.

    Args:
        pdfs: reads PDFs where there is no processor.
        characters: of one file's text, at most.
        processor: reads what is no text; None if the stack has none.
        seconds: how long the processor may take.
    """

    def __init__(self, pdfs: Pdfs, characters: int, processor: Processor | None = None, seconds: float = 60.0) -> None:
        self._pdfs = pdfs
        self._characters = characters
        self._processor = processor
        self._seconds = seconds
        self._recent = _Recent(_REMEMBERED)

    async def of(self, document: Document, *, keep: bool = True) -> str:
        """The text of a file.

        Args:
            keep: whether it may be stored.

        Raises:
            Unreadable: it has none that can be read, or too much.
        """
        if not document.content:
            raise Unreadable("is empty.")
        text = None if document.is_pdf else _decoded(document, self._characters)
        if text is None:
            text = await self._extracted(document, keep)
        if not text.strip():
            raise Unreadable("has no text that can be read. If it shows pictures of pages, send those as images.")
        if len(text) > self._characters:
            raise Unreadable(f"has more than {self._characters} characters of text. Send the part that counts.")
        return text

    async def _extracted(self, document: Document, keep: bool) -> str:
        key = hashlib.sha256(document.content).digest()
        text = self._recent.get(key)
        if text is None:
            text = _whole(await self._extract(document, keep))
            self._recent.put(key, text)
        return text

    async def _extract(self, document: Document, keep: bool) -> str:
        if self._processor and (keep or not self._processor.keeps):
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._processor.text(document)
            except TimeoutError:
                raise Unreadable(f"could not be read within {self._seconds:g} seconds.") from None
        if document.is_pdf:
            return await self._pdfs.text(document.content)
        if self._processor:
            raise Unreadable("can be read only by a file processor that stores it, and 'store' is false.")
        raise Unreadable(
            "is neither text nor a PDF. Send it as one of these, or use a model that takes files as they are."
        )


class _Recent:
    """The texts that were read last, of `most` characters together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def get(self, key: bytes) -> str | None:
        if key in self._texts:
            self._texts.move_to_end(key)
        return self._texts.get(key)

    def put(self, key: bytes, text: str) -> None:
        self._size += len(text) - len(self._texts.pop(key, ""))
        self._texts[key] = text
        while self._size > self._most:
            _, dropped = self._texts.popitem(last=False)
            self._size -= len(dropped)


def _whole(text: str) -> str:
    """The text without halves of characters, of which PDFs are full and which are in no JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decoded(document: Document, characters: int) -> str | None:
    """The text that a file is, or so much of it that it has more than these characters; None if it is none."""
    head = document.content[: 4 * characters + 4]
    for encoding in _encodings(document):
        try:
            decoder = codecs.getincrementaldecoder(encoding)()
            text = decoder.decode(head, final=len(head) == len(document.content))
        except UnicodeError:
            continue
        if not _CONTROL.search(text):
            return text
    return None


def _encodings(document: Document) -> Iterator[str]:
    yield from (encoding for mark, encoding in _MARKS if document.content.startswith(mark))
    if document.charset and _is_charset(document.charset):
        yield document.charset
    yield "utf-8"
    if document.media_type.startswith("text/"):
        yield "cp1252"


def _is_charset(name: str) -> bool:
    try:
        return bool(_CHARSET.match(codecs.lookup(name).name))
    except (LookupError, ValueError):
        return False
