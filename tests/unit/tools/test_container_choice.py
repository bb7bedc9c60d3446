"""The container used by the calls of one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.documents.document import Document
from llama_stack_responses.inputs.files import Count, uploaded_with
from llama_stack_responses.sandbox.container_access import ContainerAccess
from llama_stack_responses.sandbox.containers import Containers
from llama_stack_responses.sandbox.containers import files as files_of
from llama_stack_responses.sandbox.slots import ContainerSlots
from llama_stack_responses.tools.hosted.container_choice import ContainerChoice
from llama_stack_responses.tools.tool_function import ToolError
from tests.unit.sandbox.test_container import BOUNDS, jail, volumes


class FakeFiles:
    """Stored files by id."""

    def __init__(self, **files: bytes) -> None:
        self._files = files

    async def read(self, file_id: str, count: Count) -> Document:
        """Return the file."""
        count(len(self._files[file_id]))
        return Document(f"{file_id}.txt", "text/plain", self._files[file_id])


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Containers]:
    containers = Containers(
        jail(), BOUNDS, volumes(in_memory=False), folder, idle_seconds=60, slots=ContainerSlots(2, 2)
    )
    try:
        yield containers
    finally:
        await containers.close()


async def test_files_for_container_count_until_written(tmp_path: Path) -> None:
    contents = Admission(Quota("files, pages and running outputs", 2_000, 1_000))
    files = FakeFiles(small=bytes(900), large=bytes(1_001))
    uploaded = uploaded_with(files, contents, lambda: ANONYMOUS)
    async with opened(tmp_path / "containers") as containers:
        access = ContainerAccess(containers, lambda: ANONYMOUS, uploaded)

        async def put(*file_ids: str) -> None:
            choice = ContainerChoice(access, {"file_ids": file_ids}, "container")
            choice.choose([])
            async with choice.opened() as entry:
                assert len(await files_of(entry)) == len(set(file_ids))

        await put("small", "small")
        assert contents.held == 0
        with contents.reserve(ANONYMOUS).add(200):
            with pytest.raises(
                ToolError, match="You have too many files, pages and running outputs open at the same time"
            ):
                await put("small")
            assert contents.held == 200
        with pytest.raises(ToolError, match="more than 1000 bytes, the maximum"):
            await put("small", "large")
        assert contents.held == 0
        # A container without all of its files is removed.
        assert len(access.owned()) == 1


async def test_concurrent_calls_share_one_new_container(tmp_path: Path) -> None:
    uploaded = uploaded_with(FakeFiles(), Admission(Quota("files, pages and running outputs", 0, 0)), lambda: ANONYMOUS)
    async with opened(tmp_path / "containers") as containers:
        choice = ContainerChoice(ContainerAccess(containers, lambda: ANONYMOUS, uploaded), {}, "container")
        choice.choose([])

        async def call() -> str:
            async with choice.opened() as entry:
                return entry.id

        assert await asyncio.gather(*(call() for _ in range(4))) == [choice.container_id] * 4
