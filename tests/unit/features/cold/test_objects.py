"""Objects in a bucket of a real server with the protocol of S3, and in a folder."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.cold import objects as objects_module
from llama_stack_responses.features.cold.objects import Objects, ObjectsAway, Stored
from llama_stack_responses.features.cold.settings import ColdTier
from llama_stack_responses.store.codec import UnreadableError
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.cold import in_folder, sent
from tests.support.s3 import S3


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.extended)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ColdTier:
    if request.param == "folder":
        return in_folder(tmp_path)
    return ColdTier.model_validate(request.getfixturevalue("bucket").archive)


async def test_objects_are_written_read_listed_and_deleted(place: ColdTier) -> None:
    objects, others = (Objects(place, MemoryRecords()) for _ in range(2))
    await objects.put("one", sent(b"0123", b"456789"))
    await objects.put("two", sent())
    await others.put("one", sent(b"of another store"))
    assert await objects.read("one", 2, 5) == b"23456"
    assert sorted([each async for each in objects.all()]) == [Stored("one", 10), Stored("two", 0)]
    await objects.delete("one")
    assert [each async for each in objects.all()] == [Stored("two", 0)]
    assert await others.read("one", 0, 2) == b"of"


async def test_large_object_is_sent_while_it_is_made_or_not_at_all(place: ColdTier) -> None:
    objects = Objects(place, MemoryRecords())
    parts = [bytes([number]) * 3 * 2**20 for number in range(4)]
    await objects.put("large", sent(*parts))
    assert await objects.read("large", 6 * 2**20 - 1, 2) == b"\1\2"

    async def broken() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
        raise ApiError(503, "The response store cannot be reached.")

    with pytest.raises(ApiError, match="cannot be reached"):
        await objects.put("broken", broken())
    assert [each async for each in objects.all()] == [Stored("large", 12 * 2**20)]


async def test_missing_object_is_named_and_clients_do_not_try_again(place: ColdTier) -> None:
    objects = Objects(place, MemoryRecords())
    await objects.put("one", sent(b"0123"))
    for _ in range(2):
        await objects.delete("one")
    with pytest.raises(UnreadableError, match=r"/one\.pack of the object store, which is missing there") as refused:
        await objects.read("one", 0, 4)
    assert (refused.value.status, refused.value.headers) == (500, {"x-should-retry": "false"})


async def test_missing_bucket_or_folder_is_a_503(place: ColdTier, tmp_path: Path) -> None:
    settings = place.model_copy(update={"url": "s3://none"}) if place.endpoint else place
    objects = Objects(settings, MemoryRecords())
    if not place.endpoint:
        await objects.put("one", sent(b"0123"))
        (tmp_path / "cold").rename(tmp_path / "not mounted")
    with pytest.raises(ObjectsAway) as refused:
        await objects.read("one", 0, 4)
    assert (refused.value.status, refused.value.retry_after) == (503, 10)


async def test_short_object_is_damaged_and_not_away(place: ColdTier, caplog: pytest.LogCaptureFixture) -> None:
    objects = Objects(place, MemoryRecords())
    await objects.put("short", sent(b"0123"))
    for at in (2, 4, 9):
        with pytest.raises(UnreadableError, match="too short"):
            await objects.read("short", at, 4)
    assert "does not answer" not in caplog.text


async def test_folder_with_other_files_stays_as_it_is(tmp_path: Path) -> None:
    objects = Objects(in_folder(tmp_path), MemoryRecords())
    await objects.put("one", sent(b"1"))
    [folder] = (tmp_path / "cold").iterdir()
    (folder / "notes.txt").write_text("not ours")
    assert [each.name async for each in objects.all()] == ["one"]


async def test_store_that_hangs_is_a_503_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, and answers none."""
    monkeypatch.setattr(objects_module, "_ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        endpoint = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        place = ColdTier(
            url="s3://bucket", endpoint=endpoint, region="r", access_key_id="id", secret_access_key=SecretStr("key")
        )
        async with asyncio.timeout(30):
            with pytest.raises(ObjectsAway) as refused:
                await Objects(place, MemoryRecords()).read("one", 0, 4)
    assert (refused.value.status, refused.value.retry_after) == (503, 10)


@pytest.mark.extended
def test_program_that_ends_right_after_a_call_is_not_aborted(tmp_path: Path) -> None:
    """Threads of obstore abort a process in whose end they are: one of four without a pause."""
    program = f"""
import asyncio
from llama_stack_responses.features.cold.objects import open_place
from llama_stack_responses.features.cold.settings import ColdTier
import obstore

async def main():
    await obstore.put_async(open_place(ColdTier(url={in_folder(tmp_path).url!r})), "one", b"1")

asyncio.run(main())
"""
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(8)]
    assert [each.wait() for each in running] == [0] * len(running)
