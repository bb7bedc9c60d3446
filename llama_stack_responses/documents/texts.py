"""Text extraction from files of all supported kinds."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Final

from ..concurrency.offloading import in_thread
from ..core.lru_cache import LruCache
from ..core.surrogates import without_surrogates
from ..process_pool.pool import Task, WorkerPool
from ..process_pool.time_budget import TimeBudget
from .document import Document, Processor, Unreadable
from .pdf import Pdfs, over_budget
from .text_task import decoded

_TASK: Final = "llama_stack_responses.documents.text_task"

_CACHED_CHARACTERS: Final = 16_000_000
"""Maximum characters of cached texts, so that a conversation about a file does not read it again in each turn."""

_INLINE_BYTES: Final = 64 * 1024
"""Maximum bytes of a file that is decoded in the event loop: less than a millisecond, ended early by an error."""


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The bounds within which a file is read.

    Attributes:
        budget: the time budget of the request.
        keep: whether the file may be stored.
    """

    budget: TimeBudget
    keep: bool = True


class Texts:
    """Extracts text from text files, PDFs, and files that the stack's own file processor can read.

    Args:
        pool: decodes large files.
        pdfs: reads PDFs if there is no processor.
        characters: maximum length of one file's text.
        processor: reads files that are not text; None if the stack has none.
        seconds: time limit for reading one file.
    """

    def __init__(
        self, pool: WorkerPool, pdfs: Pdfs, characters: int, processor: Processor | None = None, seconds: float = 60.0
    ) -> None:
        self._pool = pool
        self._pdfs = pdfs
        self._characters = characters
        self._processor = processor
        self._seconds = seconds
        self._recent: LruCache[bytes, str] = LruCache(_CACHED_CHARACTERS, len)

    async def extract(self, document: Document, context: ReadContext) -> str:
        """Return the text of a file.

        Raises:
            Unreadable: it has no readable text, or too much.
            ApiError: 429 or 503 if it cannot be read now.
        """
        text = await self._text(document, context)
        if not text.strip():
            raise Unreadable("has no readable text. If it is scanned, send its pages as images.")
        if len(text) > self._characters:
            raise Unreadable(f"has more than {self._characters} characters of text. Send only the relevant part.")
        return text

    async def _text(self, document: Document, context: ReadContext) -> str:
        if len(document.content) <= _INLINE_BYTES and not document.is_pdf:
            text = decoded(document.content, self._characters, document.media_type, document.charset)
            if text is not None:
                return text
        key = await in_thread(_digest, document)
        text = self._recent.get(key)
        if text is None:
            text = await self._read(document, context)
            self._recent.set(key, text)
        return text

    async def _read(self, document: Document, context: ReadContext) -> str:
        if not document.is_pdf and len(document.content) > _INLINE_BYTES:
            text = await self._decoded(document, context)
            if text is not None:
                return text
        return await self._extracted(document, context)

    async def _decoded(self, document: Document, context: ReadContext) -> str | None:
        """Return the text of a large file, or None if it is not text."""
        options = {"characters": self._characters, "media_type": document.media_type, "charset": document.charset}
        # One character over the limit shows that the text is too long.
        task = Task(_TASK, document.content, self._seconds, 4 * (self._characters + 1), options)
        answer = await self._pool.run(task, context.budget)
        match answer.get("problem"):
            case None:
                return answer["text"]
            case "binary":
                return None
            case "budget":
                raise Unreadable(over_budget(context.budget))
        raise Unreadable(f"could not be read within {self._seconds:g} seconds and the memory that one file may take.")

    async def _extracted(self, document: Document, context: ReadContext) -> str:
        if self._processor and (context.keep or not self._processor.keeps):
            async with self._pool.slot():
                return await self._processed(self._processor, document, context.budget)
        if document.is_pdf:
            return await self._pdfs.text(document.content, context.budget)
        if self._processor:
            raise Unreadable("can be read only by a file processor that stores files, and 'store' is false.")
        raise Unreadable("is neither text nor a PDF. Send it as one of these, or use a model that accepts files.")

    async def _processed(self, processor: Processor, document: Document, budget: TimeBudget) -> str:
        """Return the text of a file from the stack's own processor, cut to one character over the limit."""
        seconds = min(self._seconds, budget.left)
        if seconds <= 0:
            raise Unreadable(over_budget(budget))
        try:
            with budget.spending():
                async with asyncio.timeout(seconds):
                    text = await processor.text(document)
        except TimeoutError:
            if seconds < self._seconds:
                raise Unreadable(over_budget(budget)) from None
            raise Unreadable(f"could not be read within {seconds:g} seconds.") from None
        return without_surrogates(text[: self._characters + 1])


def _digest(document: Document) -> bytes:
    """Return a key that differs for files with different texts."""
    digest = hashlib.sha256(document.content)
    digest.update(repr((document.media_type, document.charset)).encode(errors="replace"))
    return digest.digest()
