"""PDFs: their text, and errors for those without any."""

from typing import Any

import pytest

from llama_stack_responses.documents.document import Unreadable
from llama_stack_responses.documents.pdf import PdfLimits, Pdfs
from llama_stack_responses.documents.pdf_task import read
from llama_stack_responses.process_pool.fork_server_main import answer
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.process_pool.time_budget import TimeBudget
from tests.support.pdf import encrypted, pdf, pdf_bomb

LIMITS: dict[str, Any] = {"pages": 3, "characters": 100}
SOUND = pdf("Hello", "W\\366rld")


@pytest.mark.parametrize(
    "content",
    [SOUND, pdf("Hello", "", "W\\366rld"), pdf("Hello", "W\\366rld", before=b"\n\n"), encrypted(SOUND, "")],
    ids=["plain", "with an empty page", "behind something else", "encrypted, and open to all"],
)
def test_text_of_all_pages_is_read(content: bytes) -> None:
    assert read(content, LIMITS) == {"text": "Hello\n\nWörld"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (encrypted(SOUND, "secret"), "encrypted"),
        (pdf("1", "2", "3", "4"), "pages"),
        (pdf("a" * 60, "b" * 60), "characters"),
        (SOUND[:100], "broken"),
        (b"%PDF-", "broken"),
        (b"", "broken"),
    ],
    ids=["encrypted", "pages", "characters", "cut off", "only a head", "nothing"],
)
def test_unreadable_pdf_has_reason(content: bytes, problem: str) -> None:
    assert answer(read, content, LIMITS) == {"problem": problem}


@pytest.mark.extended
def test_pdf_bomb_is_broken() -> None:
    assert answer(read, pdf_bomb(300_000_000), LIMITS) == {"problem": "broken"}


def pdfs(seconds: float = 60.0, memory_bytes: int = 2**30) -> Pdfs:
    return Pdfs(PdfLimits(3, 100, seconds), WorkerPool(PoolLimits(memory_bytes=memory_bytes)))


async def test_pdf_is_read_in_worker_process() -> None:
    assert await pdfs().text(SOUND, TimeBudget(60)) == "Hello\n\nWörld"


@pytest.mark.parametrize(
    ("reader", "why"),
    [(pdfs(seconds=0.001), r"within 0\.001 seconds"), (pdfs(memory_bytes=64 * 2**20), "too much memory")],
)
async def test_pdf_over_time_or_memory_limit_is_refused(reader: Pdfs, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        await reader.text(pdf_bomb(60_000_000), TimeBudget(60))


async def test_encrypted_pdf_is_refused_with_reason() -> None:
    with pytest.raises(Unreadable, match="needs a password"):
        await pdfs().text(encrypted(SOUND, "secret"), TimeBudget(60))
