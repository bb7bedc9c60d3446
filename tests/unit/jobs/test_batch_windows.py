"""Windows in which jobs store their events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from llama_stack_responses.jobs.batch_windows import BatchWindows


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The ends of windows, in their order, for the test to call."""
    found: list[Callable[[], None]] = []

    def call_later(_: float, end: Callable[[], None], *__: Any) -> None:
        found.append(end)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    return found


async def ticks() -> None:
    """Let the event loop run for some iterations."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_jobs_that_begin_to_wait_at_different_times_wake_in_one_iteration(
    timers: list[Callable[[], None]],
) -> None:
    windows, order = BatchWindows(0.05), list[str]()

    async def job(name: str) -> None:
        await windows.wait()
        asyncio.get_running_loop().call_soon(order.append, "next iteration")
        order.append(name)

    for name in "ab":
        asyncio.ensure_future(job(name))  # noqa: RUF006 - the loop of the test ends with them
        await ticks()
    [end] = timers
    end()
    await ticks()
    assert order == ["a", "b", "next iteration", "next iteration"]


async def test_window_has_sixteen_jobs_at_most(timers: list[Callable[[], None]]) -> None:
    windows = BatchWindows(0.05)
    waits = [asyncio.ensure_future(windows.wait()) for _ in range(17)]
    await ticks()
    first, second = timers
    first()
    await ticks()
    assert [each.done() for each in waits] == [True] * 16 + [False]
    second()
    await ticks()
    assert waits[16].done()


async def test_wait_after_end_of_window_begins_another(timers: list[Callable[[], None]]) -> None:
    windows = BatchWindows(0.05)
    for number in range(2):
        wait = asyncio.ensure_future(windows.wait())
        await ticks()
        assert not wait.done()
        timers[number]()
        await ticks()
        assert wait.done()


async def test_cancelled_job_does_not_end_window_of_others(timers: list[Callable[[], None]]) -> None:
    windows = BatchWindows(0.05)
    cancelled, other = (asyncio.ensure_future(windows.wait()) for _ in range(2))
    await ticks()
    cancelled.cancel()
    await ticks()
    assert not other.done()
    timers[0]()
    await ticks()
    assert other.done()


def test_window_of_closed_event_loop_is_not_waited_for() -> None:
    windows = BatchWindows(0.05)

    async def begin() -> None:
        asyncio.ensure_future(windows.wait())  # noqa: RUF006 - it ends with the loop
        await asyncio.sleep(0)

    asyncio.run(begin())
    asyncio.run(asyncio.wait_for(windows.wait(), 30))
