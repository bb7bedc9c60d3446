"""Only silence ends a block with a 504."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.shared_timer import SharedTimer
from llama_stack_responses.generation.watchdog import Watchdog
from tests.support.clock import LoopClock


async def silent(watchdog: Watchdog, clock: LoopClock) -> int:
    """Stay silent until the watchdog expires. Return how long that took, in seconds (a multiple of ten)."""
    seconds = 0
    try:
        with watchdog:
            for seconds in range(10, 1000, 10):
                await clock.passes(10.0)
    except ApiError:
        return seconds
    raise AssertionError("it never barked")


async def test_silence_raises_504() -> None:
    with pytest.raises(ApiError, match=r"sent nothing for 0\.02 seconds") as caught, Watchdog(0.02, SharedTimer()):
        await asyncio.sleep(30)
    assert caught.value.status == 504
    await asyncio.sleep(0)  # the cancellation was consumed: this task continues
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0


async def test_pats_postpone_timeout(loop_clock: LoopClock) -> None:
    with Watchdog(100.0, SharedTimer()) as watchdog:
        for _ in range(8):
            await loop_clock.passes(30.0)
            watchdog.reset()


async def test_timeout_counts_from_last_pat(loop_clock: LoopClock) -> None:
    watchdog = Watchdog(100.0, SharedTimer())
    await loop_clock.passes(60.0)
    watchdog.reset()
    assert await silent(watchdog, loop_clock) == 100


async def test_sleeping_watchdog_does_not_expire_and_restarts(loop_clock: LoopClock) -> None:
    watchdog = Watchdog(100.0, SharedTimer())
    with watchdog.paused():
        await loop_clock.passes(300.0)
    assert await silent(watchdog, loop_clock) == 100


async def test_watchdog_does_not_expire_after_block(loop_clock: LoopClock) -> None:
    with Watchdog(100.0, SharedTimer()):
        pass
    await loop_clock.passes(300.0)


async def test_errors_of_block_pass_through() -> None:
    with pytest.raises(ValueError, match="mine"), Watchdog(30, SharedTimer()):
        raise ValueError("mine")


async def test_external_cancellation_passes_through() -> None:
    async def work() -> None:
        with Watchdog(30, SharedTimer()):
            await asyncio.sleep(30)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_external_cancellation_wins_over_timeout() -> None:
    async def work() -> None:
        with Watchdog(0.01, SharedTimer()):
            try:
                await asyncio.sleep(30)
            finally:
                task.cancel()  # while the timeout's cancellation is pending

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_error_caused_by_timeout_becomes_504() -> None:
    async def provider() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    task = asyncio.current_task()
    assert task
    with pytest.raises(ApiError, match="sent nothing"), Watchdog(0.01, SharedTimer()):
        await provider()
    assert task.cancelling() == 0


async def test_swallowed_timeout_leaves_no_pending_cancellation() -> None:
    task = asyncio.current_task()
    assert task
    with Watchdog(0.01, SharedTimer()), contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(30)
    assert task.cancelling() == 0
