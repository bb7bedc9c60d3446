"""Resources and tasks belong to the event loop in which they were opened or started."""

from __future__ import annotations

import asyncio

import pytest

from llama_stack_responses.concurrency import LimitedCheck, LoopLocal, LoopTask, SmallEvent
from tests.support.waiting import turns


class Opener:
    """Opens numbered resources, after the given number of failures.

    Attributes:
        opened: how often it was called.
        closed: the numbers of the closed resources.
    """

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.opened = 0
        self.closed: list[int] = []

    async def __call__(self) -> int:
        self.opened += 1
        await asyncio.sleep(0)
        if self.opened <= self.failures:
            raise OSError("refused")
        return self.opened

    async def close(self, number: int) -> None:
        self.closed.append(number)


async def test_concurrent_calls_share_one_resource() -> None:
    resource = LoopLocal(Opener())
    first, second = await asyncio.gather(resource.get(), resource.get())
    assert (first, second) == (1, 1)
    assert resource.opened == 1


async def test_failed_opening_is_repeated() -> None:
    resource = LoopLocal(Opener(failures=1))
    with pytest.raises(OSError, match="refused"):
        await resource.get()
    assert resource.opened is None
    assert await resource.get() == 2


async def test_cancelled_call_leaves_opening_to_the_others() -> None:
    resource = LoopLocal(Opener())
    first, second = asyncio.create_task(resource.get()), asyncio.create_task(resource.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


def test_resource_of_another_loop_is_opened_again_and_not_closed() -> None:
    opener = Opener()
    resource = LoopLocal(opener)
    assert asyncio.run(resource.get()) == 1
    assert asyncio.run(resource.get()) == 2
    asyncio.run(resource.close(opener.close))
    assert opener.closed == []


async def test_closed_resource_is_opened_again() -> None:
    opener = Opener()
    resource = LoopLocal(opener)
    await resource.get()
    await resource.close(opener.close)
    assert (opener.closed, await resource.get()) == ([1], 2)


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
        async with asyncio.timeout(5):
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


async def test_small_event_wakes_all_that_wait() -> None:
    event = SmallEvent(is_set=False)
    waiting = [asyncio.create_task(event.wait()) for _ in range(2)]
    await turns(2)
    assert not any(each.done() for each in waiting)
    event.set()
    event.clear()
    assert [await each for each in waiting] == [True, True]


async def test_small_event_can_be_waited_for_again() -> None:
    event = SmallEvent(is_set=True)
    assert await event.wait()
    for _ in range(2):
        event.clear()
        assert not event.is_set()
        waiting = asyncio.create_task(event.wait())
        await turns(2)
        assert not waiting.done()
        event.set()
        assert await waiting
