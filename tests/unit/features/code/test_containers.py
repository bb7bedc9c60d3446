"""Ownership and lifetime of containers, and access to their files."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from llama_stack_responses.admission import Admission
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.features.code.containers import entries
from llama_stack_responses.features.code.containers.entries import (
    ContainerEntry,
    ContainerFile,
    Containers,
    NoContainer,
    TooManyContainers,
    files,
    open_file,
    write_file,
)
from llama_stack_responses.features.code.sandbox.folder_lock import FolderLock
from llama_stack_responses.features.code.sandbox.volume import Volumes
from tests.support.waiting import until
from tests.unit.features.code.test_container import BOUNDS, admission, jail, volumes

ANNA = Owner("anna", {})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def content_of(entry: ContainerEntry, file: ContainerFile) -> bytes | None:
    """Return the content of a file, or None if it cannot be opened."""
    opened = await open_file(entry, file)
    if opened is None:
        return None
    with opened[0] as content:
        return content.read()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def containers(tmp_path: Path, clock: Clock) -> AsyncIterator[Containers]:
    created = Containers(
        jail(),
        BOUNDS,
        volumes(most_files=20_000),
        tmp_path / "containers",
        idle_seconds=60,
        admission=admission(2, 3),
        clock=clock,
    )
    yield created
    await created.close()
    assert not any((tmp_path / "containers").glob("*"))


async def test_container_belongs_to_its_owner(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    assert containers.find(entry.id, ANNA) is entry
    assert containers.of(ANNA) == [entry]
    assert containers.of(ANONYMOUS) == []
    for container_id, owner in ((entry.id, ANONYMOUS), ("cntr_other", ANNA)):
        with pytest.raises(NoContainer, match="It has expired, or it belongs to another server or user"):
            containers.find(container_id, owner)


async def test_unused_container_expires(containers: Containers, clock: Clock) -> None:
    entry = await containers.create(ANNA)
    for _ in range(3):
        clock.now += 59
        containers.find(entry.id, ANNA)
    entry.users += 1
    clock.now += 1000
    assert containers.find(entry.id, ANNA) is entry
    entry.users -= 1
    clock.now += 61
    with pytest.raises(NoContainer):
        containers.find(entry.id, ANNA)
    await containers.create(ANNA)
    assert not entry.container.volume.folder.exists()


async def test_leftovers_of_killed_server_are_removed(containers: Containers, tmp_path: Path) -> None:
    """A killed server leaves the files of its containers without their lock."""
    root = tmp_path / "containers"
    entry = await containers.create(ANNA)
    await write_file(entry, "mine.txt", BytesIO(b"in use"))
    left, foreign = root / "cntr_of_the_dead", root / "not-a-container"
    for folder in (left, foreign):
        folder.mkdir()
        (folder / "secret.txt").write_text("left")
    other = Containers(jail(), BOUNDS, volumes(), root, idle_seconds=60, admission=admission(2, 2))
    other.start()
    await until(lambda: not left.exists())
    await other.close()
    assert [each.name for each in await files(entry)] == ["mine.txt"]
    assert (foreign / "secret.txt").read_text() == "left"
    shutil.rmtree(foreign)


async def test_containers_are_limited_in_number(containers: Containers, clock: Clock) -> None:
    first = await containers.create(ANNA, idle_seconds=10)
    await containers.create(ANNA)
    with pytest.raises(TooManyContainers, match="Try again later"):
        await containers.create(ANNA)
    clock.now += 11
    assert (await containers.create(ANNA)).id != first.id


async def test_files_are_listed_and_read_as_code_left_them(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    await write_file(entry, "a/../b\\data.csv", BytesIO(b"1,2"))
    await entry.container.run("import os; os.mkdir('sub'); open('sub/out.txt', 'w').write('hi')")
    found = {file.path: file for file in await files(entry)}
    assert {path: (file.by_user, file.bytes) for path, file in found.items()} == {
        "/mnt/data/data.csv": (True, 3),
        "/mnt/data/sub/out.txt": (False, 2),
    }
    assert await content_of(entry, found["/mnt/data/sub/out.txt"]) == b"hi"


async def test_code_may_change_uploaded_file(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    await write_file(entry, "data.csv", BytesIO(b"1,2"))
    await entry.container.run("open('data.csv', 'a').write(',3')")
    [file] = await files(entry)
    assert await content_of(entry, file) == b"1,2,3"


TRICKS = {
    "a link to a file": "import os; os.symlink('{secret}', 'x')",
    "a link to a folder": "import os; os.symlink('{folder}', 'x')",
    "a folder that becomes a link": "import os; os.rename('sub', 'y'); os.symlink('{folder}', 'sub')",
    "a pipe": "import os; os.mkfifo('x')",
}


@pytest.mark.parametrize("trick", TRICKS)
async def test_links_never_lead_out_of_container(containers: Containers, tmp_path: Path, trick: str) -> None:
    secret = tmp_path / "outside" / "key"
    secret.parent.mkdir()
    secret.write_text("canary")
    entry = await containers.create(ANNA)
    await entry.container.run("import os; os.mkdir('sub'); open('sub/key', 'w').write('own')")
    [own] = await files(entry)
    await entry.container.run(TRICKS[trick].format(secret=secret, folder=secret.parent))
    wanted = [own, *await files(entry), *(replace(own, path=f"/mnt/data/{path}") for path in ("x", "x/key", "../key"))]
    read = [await content_of(entry, each) for each in wanted]
    assert set(read) <= {b"own", None}
    await write_file(entry, "x", BytesIO(b"new"))
    assert secret.read_text() == "canary"
    assert (entry.container.folder / "x").read_bytes() == b"new"


# Limits


@pytest.mark.parametrize("limits", [admission(4, 9), admission(9, 4)], ids=["all", "one owner"])
async def test_concurrent_creations_stay_within_limit(tmp_path: Path, limits: Admission) -> None:
    created = Containers(jail(), BOUNDS, volumes(), tmp_path / "containers", idle_seconds=60, admission=limits)
    found = await asyncio.gather(*(created.create(ANNA) for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(each, TooManyContainers) for each in found) == 8
    assert len(created.of(ANNA)) == 4
    await created.close()


async def test_owner_limit_ignores_groups_and_leaves_places_to_others(tmp_path: Path) -> None:
    created = Containers(jail(), BOUNDS, volumes(), tmp_path / "containers", idle_seconds=60, admission=admission(4, 2))
    await created.create(ANNA)
    await created.create(Owner("anna", {"teams": ["a"]}))
    with pytest.raises(TooManyContainers, match="You have 2 containers, which is the maximum"):
        await created.create(Owner("anna", {"teams": ["b"]}))
    await created.create(Owner("anna", {}, "another tenant"))
    await created.create(Owner("bert"))
    with pytest.raises(TooManyContainers, match="This server has reached"):
        await created.create(Owner("carl"))
    await created.close()


async def test_anonymous_owner_may_have_all_containers(tmp_path: Path) -> None:
    created = Containers(jail(), BOUNDS, volumes(), tmp_path / "containers", idle_seconds=60, admission=admission(3, 1))
    for _ in range(3):
        await created.create(ANONYMOUS)
    await created.close()


async def test_failed_or_cancelled_creation_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "containers"
    created = Containers(jail(), BOUNDS, volumes(), root, idle_seconds=60, admission=admission(1, 1))
    begun, go_on, make = threading.Event(), threading.Event(), FolderLock.make

    def slow(folder: Path) -> FolderLock:
        begun.set()
        go_on.wait()
        return make(folder)

    monkeypatch.setattr(FolderLock, "make", slow)
    creating = asyncio.create_task(created.create(ANNA))
    await until(begun.is_set)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    go_on.set()
    await until(lambda: any(root.glob("*")))
    monkeypatch.setattr(FolderLock, "make", make)
    monkeypatch.setattr(Volumes, "make", refuse)
    with pytest.raises(PermissionError):
        await created.create(ANNA)
    monkeypatch.undo()
    await created.create(ANNA)
    monkeypatch.setattr(entries, "_POLL_SECONDS", 0.01)
    created.start()
    await until(lambda: len(list(root.glob("*"))) == 1)
    await created.close()


def refuse(*_: Any) -> None:
    raise PermissionError("no")


async def test_container_counts_until_its_files_are_removed(
    containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def slow(folder: Path) -> None:
        await go_on.wait()
        shutil.rmtree(folder)

    monkeypatch.setattr(containers._removal, "remove", slow)
    monkeypatch.setattr(containers, "_removal_seconds", 0.01)
    first, _ = [await containers.create(ANNA) for _ in range(2)]
    await containers.end(first.id)
    with pytest.raises(NoContainer):
        containers.find(first.id, ANNA)
    with pytest.raises(TooManyContainers):
        await containers.create(ANNA)
    go_on.set()
    await until(lambda: not first.container.volume.folder.exists())
    await containers.create(ANNA)


async def test_failed_removal_is_retried(containers: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = await containers.create(ANNA)
    remove = containers._removal.remove

    async def fail(folder: Path) -> None:
        raise PermissionError("not yet")

    monkeypatch.setattr(containers._removal, "remove", fail)
    await containers.end(entry.id)
    assert entry.container.volume.folder.exists()
    monkeypatch.setattr(containers._removal, "remove", remove)
    containers.start()
    await until(lambda: not entry.container.volume.folder.exists())


DEEP = """
import os
for _ in range(3000):
    os.mkdir("d" * 20)
    os.chdir("d" * 20)
os.chdir("/mnt/data")
os.mkdir(b"\\xff")
open("top.txt", "w").write("hi")
os.chmod("d" * 20, 0)
"""


async def test_very_deep_folders_are_listed_and_removed(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    ran = await containers.find(entry.id, ANNA).container.run(DEEP)
    assert not ran.failed, ran.printed
    assert [each.path for each in await files(entry)] == ["/mnt/data/top.txt"]
    await containers.end(entry.id)
    await until(lambda: not entry.container.volume.folder.exists())


async def test_unreadable_folder_of_killed_server_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    left = root / "cntr_left"
    (left / "inner").mkdir(parents=True)
    left.chmod(0)
    created = Containers(jail(), BOUNDS, volumes(), root, idle_seconds=60, admission=admission(2, 2))
    created.start()
    await until(lambda: not left.exists())
    await created.close()


@pytest.mark.parametrize("in_memory", [True, False])
async def test_upload_over_limit_is_refused(tmp_path: Path, in_memory: bool) -> None:
    root = tmp_path / "containers"
    created = Containers(jail(), BOUNDS, volumes(in_memory=in_memory), root, idle_seconds=60, admission=admission(2, 2))
    try:
        entry = await created.create(ANNA)
        await write_file(entry, "a", BytesIO(bytes(9 * 2**20)))
        with pytest.raises(
            ApiError, match="'b' does not fit into the container, whose files may take 16 MiB and 300 fi"
        ):
            await write_file(entry, "b", BytesIO(bytes(9 * 2**20)))
        assert [(each.path, each.bytes) for each in await files(entry)] == [("/mnt/data/a", 9 * 2**20)]
        ran = await entry.container.run("import os\nfor n in range(400): os.mkdir(f'/mnt/data/{n}')")
        assert ran.stopped or "No space left" in ran.printed
        with pytest.raises(ApiError, match="does not fit"):
            await write_file(entry, "b", BytesIO(b""))
    finally:
        await created.close()
    assert not any(root.iterdir())


async def test_concurrent_uploads_stay_within_limit(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    created = Containers(jail(), BOUNDS, volumes(in_memory=False), root, idle_seconds=60, admission=admission(2, 2))
    try:
        entry = await created.create(ANNA)
        uploads = (write_file(entry, f"file {number}", BytesIO(bytes(9 * 2**20))) for number in range(6))
        done = await asyncio.gather(*uploads, return_exceptions=True)
        assert [type(each) for each in done].count(ContainerFile) == 1
        assert [each.bytes for each in await files(entry)] == [9 * 2**20]
    finally:
        await created.close()


async def test_files_with_very_long_paths_are_not_listed(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    code = "import os\nos.makedirs('/mnt/data/' + '/'.join(['a' * 200] * 5))\nopen('/mnt/data/' + '/'.join(['a' * 200] * 5) + '/' + 'b' * 200, 'w')\nopen('/mnt/data/c\\n', 'w')"
    assert not (await entry.container.run(code)).failed
    assert [each.path for each in await files(entry)] == ["/mnt/data/c\\n"]
