"""Files of batches go from and to the host's Files API without being held in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host.large_files import HostLargeFiles
from llama_stack_responses.host.platform import OpenAIFilePurpose, fastapi_router_registry


class LocalFiles:
    """The host's local file store.

    Args:
        folder: where it keeps files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uploaded: dict[str, Any] = {}
        self.purpose = OpenAIFilePurpose.BATCH

    async def openai_retrieve_file(self, request: Any) -> Any:
        path = self.folder / request.file_id
        if not path.exists():
            raise ValueError(f"File '{request.file_id}' not found")
        return SimpleNamespace(bytes=path.stat().st_size, filename="lines.jsonl", purpose=self.purpose)

    async def _lookup_file_id(self, file_id: str) -> tuple[Any, Path]:
        return None, self.folder / file_id

    async def openai_upload_file(self, request: Any, file: Any) -> Any:
        content = await file.read()
        (self.folder / "file-2").write_bytes(content)
        self.uploaded = {"name": file.filename, "size": len(content), "request": request}
        return SimpleNamespace(id="file-2")

    async def openai_delete_file(self, request: Any) -> None:
        await self.openai_retrieve_file(request)
        (self.folder / request.file_id).unlink()


class OtherFiles(LocalFiles):
    """A file store that returns files in pieces, as OGX does from S3."""

    _lookup_file_id: Any = None

    async def openai_retrieve_file_content(self, request: Any) -> Any:
        async def pieces() -> AsyncIterator[bytes]:
            content = (self.folder / request.file_id).read_bytes()
            for start in range(0, len(content), 3):
                yield content[start : start + 3]

        return SimpleNamespace(body_iterator=pieces())


class WholeFiles(OtherFiles):
    """A file store that returns a file at once."""

    async def openai_retrieve_file_content(self, request: Any) -> Any:
        return SimpleNamespace(body=(self.folder / request.file_id).read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file-1").write_bytes(b"first\nsecond\n")
    return tmp_path


async def test_file_of_the_local_file_store_is_read_from_its_place(folder: Path) -> None:
    with await HostLargeFiles(LocalFiles(folder)).open("file-1", 100) as opened:
        assert Path(str(opened.name)) == folder / "file-1"
        assert opened.readlines() == [b"first\n", b"second\n"]


@pytest.mark.parametrize("kind", [OtherFiles, WholeFiles])
async def test_file_of_another_file_store_is_copied(folder: Path, kind: type[LocalFiles]) -> None:
    with await HostLargeFiles(kind(folder)).open("file-1", 100) as opened:
        opened.seek(0)
        assert opened.read() == b"first\nsecond\n"


async def test_file_that_is_too_large_is_refused(folder: Path) -> None:
    with pytest.raises(ApiError) as refused:
        await HostLargeFiles(LocalFiles(folder)).open("file-1", 12)
    assert (refused.value.status, refused.value.code) == (400, "file_too_large")


async def test_file_of_another_purpose_is_refused(folder: Path) -> None:
    files = LocalFiles(folder)
    files.purpose = OpenAIFilePurpose.ASSISTANTS
    with pytest.raises(ApiError) as refused:
        await HostLargeFiles(files).open("file-1", 100)
    assert (refused.value.status, refused.value.code) == (400, "invalid_file_purpose")


async def test_missing_file_is_not_found(folder: Path) -> None:
    with pytest.raises(ApiError) as refused:
        await HostLargeFiles(LocalFiles(folder)).open("file-9", 100)
    assert (refused.value.status, refused.value.code) == (400, "file_not_found")


async def test_deleted_file_is_gone_and_a_missing_one_is_no_error(folder: Path) -> None:
    files = HostLargeFiles(LocalFiles(folder))
    for _ in range(2):
        await files.delete("file-1")
    assert not (folder / "file-1").exists()
    with pytest.raises(ApiError) as failed:
        await HostLargeFiles(object()).delete("file-1")
    assert failed.value.status == 503


async def test_file_store_that_fails_is_a_503(folder: Path) -> None:
    with pytest.raises(ApiError) as failed:
        await HostLargeFiles(object()).open("file-1", 100)
    assert failed.value.status == 503


async def test_written_file_has_name_content_and_time(folder: Path) -> None:
    files = LocalFiles(folder)
    with TemporaryFile() as content:
        content.write(b"result\n")
        content.flush()
        assert await HostLargeFiles(files).write("out.jsonl", content, 3600) == "file-2"
    assert (folder / "file-2").read_bytes() == b"result\n"
    assert (files.uploaded["name"], files.uploaded["size"]) == ("out.jsonl", 7)
    assert files.uploaded["request"].expires_after.seconds == 3600


@pytest.mark.parametrize(("size", "status"), [(0, 200), (9, 200), (3_000_000, 200), (3_000_001, 413)])
async def test_input_file_is_uploaded_up_to_the_limit_of_batches_without_a_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, status: int
) -> None:
    files, read = LocalFiles(folder), set[str]()

    async def stored(request: Any, file: Any) -> Any:
        content = await file.read()
        read.add(type(content).__name__)
        (folder / "file-2").write_bytes(content)
        return {
            "object": "file",
            "id": "file-2",
            "bytes": len(content),
            "created_at": 1,
            "expires_at": 2,
            "filename": file.filename,
            "purpose": request.purpose.value,
            "status": "uploaded",
        }

    monkeypatch.setattr(files, "openai_upload_file", stored)
    factories = fastapi_router_registry._ROUTER_FACTORIES
    monkeypatch.setitem(factories, "files", getattr(factories["files"], "__wrapped__", factories["files"]))
    HostLargeFiles(files).take_uploads(3_000_000)
    app = FastAPI()
    app.include_router(factories["files"](files))
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        answers = [
            await client.post("/v1/files", data={"purpose": purpose}, files={"file": ("lines.jsonl", content)})
            for purpose in ("assistants", "batch")
        ]
    assert [each.status_code for each in answers] == [200, status]
    if status == 200:
        assert (folder / "file-2").read_bytes() == content
        assert read == ({"bytes", "mmap"} if size else {"bytes"})
    else:
        assert answers[1].json()["error"]["code"] == "file_too_large"
