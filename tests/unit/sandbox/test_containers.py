"""Whose containers are whose, how long they live, and how their files are read."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.sandbox.containers import (
    Containers,
    NoContainer,
    TooMany,
    files,
    read_file,
    write_file,
)
from tests.support.waiting import until
from tests.unit.sandbox.test_container import BOUNDS, jail

ANNA = Owner("anna", {})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def containers(tmp_path: Path, clock: Clock) -> AsyncIterator[Containers]:
    made = Containers(jail(), BOUNDS, tmp_path / "containers", idle_seconds=60, at_most=2, clock=clock)
    yield made
    await made.close()
    assert not any((tmp_path / "containers").glob("*"))


async def test_a_container_is_its_owners(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    assert containers.find(entry.id, ANNA) is entry
    assert containers.of(ANNA) == [entry]
    assert containers.of(ANONYMOUS) == []
    for container_id, owner in ((entry.id, ANONYMOUS), ("cntr_other", ANNA)):
        with pytest.raises(NoContainer, match="it has expired, or belongs to another server or another user"):
            containers.find(container_id, owner)


async def test_a_container_expires_when_nobody_uses_it(containers: Containers, clock: Clock) -> None:
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
    assert not entry.container.folder.exists()


async def test_what_a_killed_server_left_is_cleared_away_and_nothing_else(
    containers: Containers, tmp_path: Path
) -> None:
    """A server that is killed leaves the files of its containers without their lock."""
    root = tmp_path / "containers"
    entry = await containers.create(ANNA)
    await write_file(entry, "mine.txt", b"in use")
    left, foreign = root / "cntr_of_the_dead", root / "not-a-container"
    for folder in (left, foreign):
        folder.mkdir()
        (folder / "secret.txt").write_text("left")
    other = Containers(jail(), BOUNDS, root, idle_seconds=60, at_most=2)
    other.start()
    await until(lambda: not left.exists())
    await other.close()
    assert [each.name for each in await files(entry)] == ["mine.txt"]
    assert (foreign / "secret.txt").read_text() == "left"
    shutil.rmtree(foreign)


async def test_there_are_only_so_many(containers: Containers, clock: Clock) -> None:
    first = await containers.create(ANNA, idle_seconds=10)
    await containers.create(ANNA)
    with pytest.raises(TooMany, match="Try again later"):
        await containers.create(ANNA)
    clock.now += 11
    assert (await containers.create(ANNA)).id != first.id


async def test_files_are_listed_and_read_as_the_code_left_them(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    await write_file(entry, "a/../b\\data.csv", b"1,2")
    await entry.container.run("import os; os.mkdir('sub'); open('sub/out.txt', 'w').write('hi')")
    found = {file.path: file for file in await files(entry)}
    assert {path: (file.by_user, file.bytes) for path, file in found.items()} == {
        "/mnt/data/data.csv": (True, 3),
        "/mnt/data/sub/out.txt": (False, 2),
    }
    assert await read_file(entry, found["/mnt/data/sub/out.txt"]) == b"hi"


async def test_the_code_may_change_what_was_put_in(containers: Containers) -> None:
    entry = await containers.create(ANNA)
    await write_file(entry, "data.csv", b"1,2")
    await entry.container.run("open('data.csv', 'a').write(',3')")
    [file] = await files(entry)
    assert await read_file(entry, file) == b"1,2,3"


TRICKS = {
    "a link to a file": "import os; os.symlink('{secret}', 'x')",
    "a link to a folder": "import os; os.symlink('{folder}', 'x')",
    "a folder that becomes a link": "import os; os.rename('sub', 'y'); os.symlink('{folder}', 'sub')",
    "a pipe": "import os; os.mkfifo('x')",
}


@pytest.mark.parametrize("trick", TRICKS)
async def test_no_link_leads_out_of_a_container(containers: Containers, tmp_path: Path, trick: str) -> None:
    secret = tmp_path / "outside" / "key"
    secret.parent.mkdir()
    secret.write_text("canary")
    entry = await containers.create(ANNA)
    await entry.container.run("import os; os.mkdir('sub'); open('sub/key', 'w').write('own')")
    [own] = await files(entry)
    await entry.container.run(TRICKS[trick].format(secret=secret, folder=secret.parent))
    wanted = [own, *await files(entry), *(replace(own, path=f"/mnt/data/{path}") for path in ("x", "x/key", "../key"))]
    read = [await read_file(entry, each) for each in wanted]
    assert set(read) <= {b"own", None}
    await write_file(entry, "x", b"new")
    assert secret.read_text() == "canary"
    assert (entry.container.folder / "x").read_bytes() == b"new"
