"""Text extraction from PDFs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..process_pool.pool import Task, WorkerPool
from ..process_pool.time_budget import TimeBudget
from .document import Unreadable

_TASK: Final = "llama_stack_responses.documents.pdf_task"
_BYTES_PER_CHARACTER: Final = 4
"""Maximum bytes of a character in UTF-8."""


@dataclass(frozen=True, slots=True)
class PdfLimits:
    """Limits of one PDF.

    Attributes:
        pages: maximum number of pages.
        characters: maximum length of its text.
        seconds: time limit for reading it.
    """

    pages: int
    characters: int
    seconds: float


class Pdfs:
    """Reads PDFs.

    Args:
        limits: limits of one PDF.
        pool: the worker processes that read them.
    """

    def __init__(self, limits: PdfLimits, pool: WorkerPool) -> None:
        self._limits = limits
        self._pool = pool

    async def text(self, content: bytes, budget: TimeBudget) -> str:
        """Return the text of all pages; empty if they contain only images.

        Raises:
            Unreadable: the PDF is broken or encrypted, or exceeds a limit.
            ApiError: 429 or 503 if it cannot be read now.
        """
        limits = self._limits
        options = {"pages": limits.pages, "characters": limits.characters}
        size = (limits.characters + 2 * limits.pages) * _BYTES_PER_CHARACTER
        answer = await self._pool.run(Task(_TASK, content, limits.seconds, size, options), budget)
        if "problem" in answer:
            raise Unreadable(self._why(answer["problem"], budget))
        return answer["text"]

    def _why(self, problem: str, budget: TimeBudget) -> str:
        limits = self._limits
        return {
            "budget": over_budget(budget),
            "encrypted": "is a PDF that needs a password. Send it without one.",
            "pages": f"has more than {limits.pages} pages. Send only the relevant part.",
            "characters": f"has more than {limits.characters} characters of text. Send only the relevant part.",
            "seconds": f"is a PDF that could not be read within {limits.seconds:g} seconds.",
            "memory": "is a PDF that needs too much memory to be read.",
        }.get(problem, "is a damaged PDF.")


def over_budget(budget: TimeBudget) -> str:
    """Return the error message for a file that exceeds the time budget of its request."""
    return (
        f"could not be read: the files of one request may take {budget.seconds:g} seconds together "
        "(setting 'files.request_seconds'). Send fewer or smaller ones."
    )
