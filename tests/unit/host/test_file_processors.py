"""The host's file processor: when it is used, where it runs, and what it cannot read."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException, UploadFile

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.documents.document import Document, Unreadable
from llama_stack_responses.host.file_processors import file_processor
from tests.support.waiting import until

DOCUMENT = Document("a.docx", "application/msword", b"PK")


class Processor:
    """A provider of the host that records the thread that it ran in."""

    def __init__(self, provider_type: str, problem: Exception | None = None, **spec: Any) -> None:
        self.__provider_spec__ = SimpleNamespace(provider_type=provider_type, **spec)
        self.problem = problem
        self.thread: int | None = None

    async def process_file(self, request: Any, file: UploadFile) -> Any:
        """Return two chunks."""
        self.thread = threading.get_ident()
        if self.problem:
            raise self.problem
        texts = [f"{file.filename} {file.content_type}", (await file.read()).decode()]
        return SimpleNamespace(chunks=[SimpleNamespace(content=each) for each in texts])


def test_pypdf_processor_is_not_used() -> None:
    assert file_processor(None) is None
    assert file_processor(Processor("inline::pypdf")) is None


@pytest.mark.parametrize(
    ("processor", "apart"),
    [
        (Processor("inline::docling"), True),
        (Processor("inline::docling", execution_mode="worker"), False),
        (Processor("remote::docling-serve"), False),
    ],
)
async def test_blocking_processor_runs_in_thread(processor: Processor, apart: bool) -> None:
    used = file_processor(processor)
    assert used
    assert await used.text(DOCUMENT) == "a.docx application/msword\nPK"
    assert (processor.thread != threading.get_ident()) == apart
    assert used.keeps == ("worker" in vars(processor.__provider_spec__).values())


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (HTTPException(422, "Password-protected PDFs are not supported"), "could not be read: Password-protected"),
        (ValueError("a path or a key"), r"could not be read \(ValueError\)\."),
    ],
)
async def test_unreadable_file_has_reason(problem: Exception, why: str) -> None:
    used = file_processor(Processor("remote::docling-serve", problem))
    assert used
    with pytest.raises(Unreadable, match=why):
        await used.text(DOCUMENT)


async def test_stuck_files_do_not_take_threads_of_others() -> None:
    released, loop = threading.Event(), asyncio.get_running_loop()

    class Stuck(Processor):
        async def process_file(self, request: Any, file: UploadFile) -> Any:
            released.wait()
            return await super().process_file(request, file)

    used = file_processor(Stuck("inline::docling"))
    assert used
    reading = [asyncio.create_task(used.text(DOCUMENT)) for _ in range(8)]
    await asyncio.sleep(0)
    for each in reading[:4]:
        each.cancel()
    with pytest.raises(ApiError) as refused:
        await used.text(DOCUMENT)
    assert refused.value.status == 503
    assert loop._default_executor is None  # type: ignore[attr-defined]
    released.set()
    assert await asyncio.gather(*reading[4:]) == ["a.docx application/msword\nPK"] * 4
    await until(lambda: used._threads._running == 0)  # type: ignore[attr-defined]
    assert await used.text(DOCUMENT) == "a.docx application/msword\nPK"
