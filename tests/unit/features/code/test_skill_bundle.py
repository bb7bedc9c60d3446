"""What is stored of a skill: its manifest, and the archive of its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from llama_stack_responses.features.code.skills.archive import InvalidSkill, SkillArchive
from llama_stack_responses.features.code.skills.bundle import packed, read_manifest
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    opened = WorkerPool(PoolLimits())
    yield opened
    await opened.close()


async def manifest(pool: WorkerPool, content: bytes) -> tuple[str, str]:
    """Return the name and the description in a manifest."""
    return await read_manifest(SkillArchive(packed([("SKILL.md", content)])), pool)


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        (b"name: a\ndescription: b", ("a", "b")),
        (b"# about\ndescription: >\n  two\n  lines\nname: 'a-1_B'\nlicense: MIT", ("a-1_B", "two lines")),
        (b"name: a\ndescription: |\n  two\n  lines", ("a", "two\nlines")),
        ('name: a\ndescription: "F\\u00fc\u00dfe"'.encode(), ("a", "F\u00fc\u00dfe")),
        (b"name: a\ndescription: " + b"d" * 1024, ("a", "d" * 1024)),
    ],
)
async def test_front_matter_is_read(pool: WorkerPool, front: bytes, expected: tuple[str, str]) -> None:
    assert await manifest(pool, b"---\n" + front + b"\n---\nText\n---\n") == expected
    windows = b"\xef\xbb\xbf---\r\n" + front.replace(b"\n", b"\r\n") + b"\r\n---"
    assert await manifest(pool, windows) == expected


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "must begin with front matter"),
        (b"---\nname: a\ndescription: b\n", "must begin with front matter"),
        (b"\n---\nname: a\ndescription: b\n---\n", "must begin with front matter"),
        (b"---\n---\n", "must begin with front matter"),
        (b"---\nname: a\ndescription: " + b"b" * 9_000 + b"\n---\n", "must begin with front matter"),
        (b"---\n" + b"[" * 100 + b"\n---\n", "not valid YAML"),
        (b"---\n&a [*a]\n---\n", "not a mapping"),
        (b"---\nname: \xff\n---\n", "not valid YAML"),
        (b"---\nname: !!python/object/apply:os.getpid []\n---\n", "not valid YAML"),
        (b"---\n? [a]\n: b\n---\n", "not valid YAML"),
        (b"---\nname: 2026-13-01\n---\n", "not valid YAML"),
        (b"---\nname: 1\ndescription: b\n---\n", "no text as 'name'"),
        (b"---\nname: a\ndescription: ' '\n---\n", "no text as 'description'"),
        (b"---\nname: ../a\ndescription: b\n---\n", "1 to 64 letters"),
        (b"---\nname: " + b"a" * 65 + b"\ndescription: b\n---\n", "1 to 64 letters"),
        (b"---\nname: a\ndescription: " + b"b" * 1025 + b"\n---\n", "more than 1024 characters"),
    ],
)
async def test_wrong_manifest_is_refused(pool: WorkerPool, content: bytes, why: str) -> None:
    with pytest.raises(InvalidSkill, match=why):
        await manifest(pool, content)


@pytest.mark.extended
async def test_event_loop_goes_on_while_slow_yaml_is_read(pool: WorkerPool) -> None:
    """Its time grows with the square of the levels."""
    reading = asyncio.ensure_future(manifest(pool, b"---\n" + b"[" * 8_000 + b"\n---\n"))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.01)
        turns += 1
    with pytest.raises(InvalidSkill, match="not valid YAML"):
        await reading
    assert turns > 10


async def test_equal_folders_have_equal_archives() -> None:
    files = [("s/SKILL.md", b"---\n"), ("s/run", b"#!/bin/sh\n")]
    assert packed(files) == packed(files)
    assert {file.path: file.executable for file in SkillArchive(packed(files)).files} == {
        "SKILL.md": False,
        "run": True,
    }


async def test_two_files_of_one_path_are_refused() -> None:
    with pytest.raises(InvalidSkill, match="Two of its files have the same path"):
        packed([("SKILL.md", b""), ("a", b"1"), ("a", b"2")])


async def test_path_is_not_cut_at_nul() -> None:
    with pytest.raises(InvalidSkill, match="is not a relative path of printable names"):
        SkillArchive(packed([("SKILL.md", b""), ("a\0b", b"")]))
