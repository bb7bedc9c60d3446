"""Tasks in the background, and checks with a time limit."""

from __future__ import annotations

import asyncio

import pytest

from llama_stack_responses.concurrency.tasks import LimitedCheck, LoopTask


class CountedWork:
    """Counts its runs, each of which lasts until `end` is set.

    Attributes:
        begun: how often it began.
        ended: how often it ended without being cancelled.
    """

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.end = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        await self.end.wait()
        self.ended += 1


async def test_task_that_runs_is_not_started_again() -> None:
    work = CountedWork()
    task = LoopTask(work)
    task.start()
    task.start()
    work.end.set()
    await task.wait()
    assert (work.begun, work.ended) == (1, 1)


async def test_task_that_has_ended_is_started_again() -> None:
    work = CountedWork()
    work.end.set()
    task = LoopTask(work)
    for _ in range(2):
        task.start()
        await task.wait()
    assert work.ended == 2


async def test_stopped_task_ends() -> None:
    work = CountedWork()
    task = LoopTask(work)
    task.start()
    await asyncio.sleep(0)
    await task.stop()
    await task.wait()
    assert (work.begun, work.ended) == (1, 0)


def test_task_of_another_loop_is_started_again_and_not_waited_for() -> None:
    begun: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        begun.append(asyncio.get_running_loop())
        await asyncio.Event().wait()

    task = LoopTask(run)

    async def start() -> None:
        async with asyncio.timeout(60):
            await task.wait()
        task.start()
        await asyncio.sleep(0)

    with asyncio.Runner() as first, asyncio.Runner() as second:
        for runner in (first, second):
            runner.run(start())
        assert begun == [first.get_loop(), second.get_loop()]


async def test_check_whose_cancellation_hangs_ends_at_its_limit() -> None:
    begun, server_answers = 0, asyncio.Event()

    async def hangs() -> bool:
        nonlocal begun
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            await server_answers.wait()
        return True

    check = LimitedCheck(hangs, 0.01)
    for _ in range(2):
        async with asyncio.timeout(30):
            with pytest.raises(TimeoutError):
                await check.run()
    assert begun == 1, "one at a time"
    server_answers.set()
    with pytest.raises(TimeoutError):
        await check.run()
    with pytest.raises(TimeoutError):
        await check.run()
    assert begun == 2


async def test_check_that_ends_in_time_is_repeated() -> None:
    answers = iter([True, False])

    async def check() -> bool:
        return next(answers)

    limited = LimitedCheck(check, 60)
    assert [await limited.run(), await limited.run()] == [True, False]
    with pytest.raises(RuntimeError, match="StopIteration"):
        await limited.run()
