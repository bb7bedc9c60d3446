"""Many timeouts with one timer of the event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import ContextVar

import pytest
import uvloop

from llama_stack_responses.generation.shared_timer import SharedTimer, Timeout
from tests.support.clock import LoopClock


class Noted:
    """A timeout that records its end.

    Args:
        number: its number.
        ended: gets the number at its end.
        then: is called after that.
    """

    def __init__(self, number: int, ended: list[int], then: Callable[[], object] = lambda: None) -> None:
        self._number = number
        self._ended = ended
        self._then = then

    def expire(self) -> None:
        self._ended.append(self._number)
        self._then()


def plan(timer: SharedTimer, seconds: float, ended: list[int], then: Callable[[], object] = lambda: None) -> Timeout:
    """Plan a timeout after so many seconds, whose number these are."""
    return timer.plan(asyncio.get_running_loop().time() + seconds, Noted(round(seconds), ended, then))


async def test_timeouts_end_in_the_order_of_their_times(loop_clock: LoopClock) -> None:
    timer, ended = SharedTimer(), list[int]()
    for seconds in (500.0, 200.0, 700.0, 100.0):
        plan(timer, seconds, ended)
    await loop_clock.passes(50.0)
    assert ended == []
    await loop_clock.passes(250.0)
    assert ended == [100, 200]
    await loop_clock.passes(600.0)
    assert ended == [100, 200, 500, 700]


async def test_cancelled_timeout_does_not_end(loop_clock: LoopClock) -> None:
    timer, ended = SharedTimer(), list[int]()
    first, second = (plan(timer, seconds, ended) for seconds in (10.0, 20.0))
    first.cancel()
    await loop_clock.passes(30.0)
    assert ended == [20]
    second.cancel()
    plan(timer, 10.0, ended)
    await loop_clock.passes(20.0)
    assert ended == [20, 10]


async def test_timeout_is_planned_at_the_end_of_another(loop_clock: LoopClock) -> None:
    timer, ended = SharedTimer(), list[int]()
    plan(timer, 10.0, ended, lambda: plan(timer, 15.0, ended))
    plan(timer, 40.0, ended)
    await loop_clock.passes(12.0)
    await loop_clock.passes(20.0)
    assert ended == [10, 15]
    await loop_clock.passes(20.0)
    assert ended == [10, 15, 40]


async def test_timer_has_one_timer_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    timer, loop, planned = SharedTimer(), asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_at = loop.call_at

    def noted(*args: object, **options: object) -> asyncio.TimerHandle:
        planned.append(call_at(*args, **options))  # type: ignore[arg-type]
        return planned[-1]

    monkeypatch.setattr(loop, "call_at", noted)
    for seconds in (100.0, 200.0, 300.0, 50.0):
        plan(timer, seconds, [])
    assert [each.cancelled() for each in planned] == [True, False]


async def test_cancelled_timeouts_are_dropped_if_they_are_many(loop_clock: LoopClock) -> None:
    timer, ended = SharedTimer(), list[int]()
    open_ones = [plan(timer, 100.0 + number, ended) for number in range(100)]
    for _ in range(10_000):
        plan(timer, 50.0, ended).cancel()
    assert len(timer._timeouts) < 250
    open_ones[0].cancel()
    await loop_clock.passes(300.0)
    assert ended == [100 + number for number in range(1, 100)]
    assert timer._timeouts == []
    assert timer._cancelled == 0


@pytest.mark.parametrize("cancelled", [True, False])
def test_timeouts_end_after_change_of_event_loop(cancelled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    timer, ended = SharedTimer(), list[int]()

    async def plan_first() -> None:
        timeout = plan(timer, 50.0, ended)
        if cancelled:
            timeout.cancel()

    async def plan_second() -> None:
        clock = LoopClock(monkeypatch)
        plan(timer, 100.0, ended)
        await clock.passes(200.0)

    asyncio.run(plan_first())
    asyncio.run(plan_second())
    assert ended == [100]


class User:
    """What a context variable holds for one stream."""


async def test_timer_holds_no_context() -> None:
    user, timer = ContextVar[User]("user"), SharedTimer()

    async def stream() -> weakref.ref[User]:
        user.set(User())
        plan(timer, 300.0, []).cancel()
        return weakref.ref(user.get())

    held = await asyncio.create_task(stream())
    await asyncio.sleep(0.01)  # The event loop has the context of the step that ran last.
    gc.collect()
    assert held() is None


def test_uvloop_checks_seldom_for_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    check = SharedTimer._check

    def counted(timer: SharedTimer) -> None:
        nonlocal checks
        checks += 1
        check(timer)

    async def work() -> None:
        timer, loop = SharedTimer(), asyncio.get_running_loop()
        for number in range(20):
            done = asyncio.Event()
            timer.plan(loop.time() + 0.01 + 0.00049 * (number % 3), Noted(number, [], done.set))
            await done.wait()

    monkeypatch.setattr(SharedTimer, "_check", counted)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
    assert checks <= 40


class Empty(Noted):
    """An object with a timeout and without a content."""

    def __len__(self) -> int:
        return 0


async def test_timeout_of_empty_object_ends_or_is_cancelled(loop_clock: LoopClock) -> None:
    timer, ended = SharedTimer(), list[int]()
    at = asyncio.get_running_loop().time() + 10.0
    timer.plan(at, Empty(1, ended))
    timer.plan(at, Empty(2, ended)).cancel()
    assert timer._cancelled == 1
    await loop_clock.passes(20.0)
    assert ended == [1]
