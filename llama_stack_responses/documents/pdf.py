"""The text of PDFs, read in processes of their own."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .document import Unreadable

_PROGRAM: Final = Path(__file__).with_name("pdf_program.py")


@dataclass(frozen=True, slots=True)
class PdfLimits:
    """Bounds on one PDF.

    Attributes:
        seconds: for reading it.
        memory_bytes: of the process that reads it.
    """

    pages: int
    characters: int
    seconds: float
    memory_bytes: int


class Pdfs:
    """Reads PDFs.

    Args:
        limits: what one of them may take.
        at_once: how many processes do it at a time.
    """

    def __init__(self, limits: PdfLimits, at_once: int) -> None:
        self._limits = limits
        self._places = asyncio.Semaphore(at_once)

    async def text(self, content: bytes) -> str:
        """The text of all pages; empty where they are only pictures.

        Raises:
            Unreadable: it is broken, encrypted, or takes more than it may.
        """
        async with self._places:
            answer = await self._read(content)
        if "text" in answer:
            text: str = answer["text"]
            return text
        raise Unreadable(self._why(answer["problem"]))

    async def _read(self, content: bytes) -> Mapping[str, Any]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_PROGRAM),
            self._bounds(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
        )
        try:
            async with asyncio.timeout(self._limits.seconds):
                said, _ = await process.communicate(content)
        except TimeoutError:
            return {"problem": "seconds"}
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        # What the system ends in the middle says nothing.
        answer: Mapping[str, Any] = json.loads(said) if said else {"problem": "memory"}
        return answer

    def _bounds(self) -> str:
        limits = self._limits
        return json.dumps(
            {
                "pages": limits.pages,
                "characters": limits.characters,
                "cpu_seconds": math.ceil(limits.seconds),
                "memory_bytes": limits.memory_bytes,
            }
        )

    def _why(self, problem: str) -> str:
        limits = self._limits
        return {
            "encrypted": "is a PDF that needs a password. Send it without one.",
            "pages": f"has more than {limits.pages} pages. Send the part that counts.",
            "characters": f"has more than {limits.characters} characters of text. Send the part that counts.",
            "seconds": f"is a PDF that could not be read within {limits.seconds:g} seconds.",
            "memory": "is a PDF that takes too much memory to be read.",
        }.get(problem, "is a broken PDF.")
