"""The processes of one server ask each other, and do without those that have died."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from llama_stack_responses.lifecycle import siblings as module
from llama_stack_responses.lifecycle.siblings import Siblings
from tests.support.waiting import until

type Start = Callable[..., Awaitable[Siblings]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts processes, each of which has its own name; they are stopped afterwards."""
    started: list[Siblings] = []

    async def begin(name: str = "?", configured: int = 3, folder: Path | None = None) -> Siblings:
        async def echo(*given: Any) -> list[Any]:
            return [name, *given]

        async def hang() -> None:
            await asyncio.sleep(3600)

        async def flood() -> str:
            return "x" * 1000

        sibling = Siblings()
        started.append(sibling)
        await sibling.start(configured, {"echo": echo, "hang": hang, "flood": flood}, folder or tmp_path / "meeting")
        return sibling

    yield begin
    for each in started:
        await each.stop()


async def test_processes_answer_each_other_by_number(start: Start) -> None:
    first, second, third = [await start(name) for name in ("a", "b", "c")]
    assert (first.number, second.number, third.number) == (0, 1, 2)
    assert await first.ask("echo", 1, None, {"k": "v"}) == {
        1: ["b", 1, None, {"k": "v"}],
        2: ["c", 1, None, {"k": "v"}],
    }
    assert await third.ask("echo") == {0: ["a"], 1: ["b"]}


async def test_only_process_meets_nobody(start: Start, tmp_path: Path) -> None:
    alone = await start(configured=1)
    assert (alone.number, alone.complete, await alone.ask("echo")) == (None, True, {})
    assert not (tmp_path / "meeting").exists()


async def test_processes_are_complete_once_all_have_run_and_stay_so(start: Start) -> None:
    first, second = await start(), await start()
    await second.ask("echo")
    seen = [first.complete]
    third = await start()
    await third.ask("echo")
    assert [*seen, first.complete] == [False, True]
    await second.stop()
    successor = await start("successor")
    assert (successor.number, successor.complete) == (1, True)


async def test_killed_process_is_left_out_and_its_number_is_free(start: Start) -> None:
    first, second = await start(), await start()
    # What the kernel does; the socket's file stays.
    server, lock = second._server, second._lock
    assert server
    assert lock
    server.close()
    os.close(lock)
    second.number = None
    await until(lambda: not server.is_serving())
    assert await first.ask("echo") == {}
    assert (await start("successor")).number == 1
    assert await first.ask("echo") == {1: ["successor"]}


@pytest.mark.parametrize("question", ["hang", "flood", "unknown"])
async def test_process_without_a_usable_answer_is_left_out(
    start: Start, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.2)
    monkeypatch.setattr(module, "_MAX_ANSWER_BYTES", 999)
    first, _ = await start(), await start()
    assert await first.ask(question) == {}


async def test_last_process_removes_the_folder(start: Start, tmp_path: Path) -> None:
    first, second = await start(), await start()
    await first.stop()
    assert (tmp_path / "meeting").exists()
    await second.stop()
    assert not (tmp_path / "meeting").exists()


async def test_folder_that_others_may_enter_is_refused(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "meeting").mkdir(mode=0o777)
    (tmp_path / "meeting").chmod(0o777)
    assert (await start()).number is None
    assert "could not join the other processes of this server" in caplog.text


async def test_folders_of_processes_that_were_killed_are_removed(start: Start, tmp_path: Path) -> None:
    prefix = f"llama-stack-responses-processes-{os.getuid()}"
    dead, alive = tmp_path / f"{prefix}-{2**22 + 1}", tmp_path / f"{prefix}-{os.getppid()}"
    for each in (dead, alive):
        each.mkdir()
    await start(folder=tmp_path / "meeting")
    assert (dead.exists(), alive.exists()) == (False, True)
