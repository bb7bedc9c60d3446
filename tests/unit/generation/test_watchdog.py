"""Silence ends a block with a 504; nothing else does, and nothing else is taken for it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.generation.watchdog import Watchdog
from tests.support.clock import LoopClock


async def silent(watchdog: Watchdog, clock: LoopClock) -> int:
    """Says nothing until the watchdog barks; how long that took, in tens of seconds."""
    seconds = 0
    try:
        with watchdog:
            for seconds in range(10, 1000, 10):
                await clock.passes(10.0)
    except ApiError:
        return seconds
    raise AssertionError("it never barked")


async def test_silence_is_a_504() -> None:
    with pytest.raises(ApiError, match=r"silent for 0\.02 seconds") as caught, Watchdog(0.02):
        await asyncio.sleep(30)
    assert caught.value.status == 504
    await asyncio.sleep(0)  # the cancellation was used up: this task goes on
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0


async def test_signs_of_life_put_it_off(loop_clock: LoopClock) -> None:
    with Watchdog(100.0) as watchdog:
        for _ in range(8):
            await loop_clock.passes(30.0)
            watchdog.pat()


async def test_silence_counts_from_the_last_sign_of_life(loop_clock: LoopClock) -> None:
    watchdog = Watchdog(100.0)
    await loop_clock.passes(60.0)
    watchdog.pat()
    assert await silent(watchdog, loop_clock) == 100


async def test_it_does_not_bark_while_it_sleeps_and_starts_anew_then(loop_clock: LoopClock) -> None:
    watchdog = Watchdog(100.0)
    with watchdog.asleep():
        await loop_clock.passes(300.0)
    assert await silent(watchdog, loop_clock) == 100


async def test_nothing_barks_after_the_block(loop_clock: LoopClock) -> None:
    with Watchdog(100.0):
        pass
    await loop_clock.passes(300.0)


async def test_errors_of_the_block_pass() -> None:
    with pytest.raises(ValueError, match="mine"), Watchdog(30):
        raise ValueError("mine")


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def work() -> None:
        with Watchdog(30):
            await asyncio.sleep(30)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_wins_over_silence() -> None:
    async def work() -> None:
        with Watchdog(0.01):
            try:
                await asyncio.sleep(30)
            finally:
                task.cancel()  # while the bark is on its way

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_that_the_bark_causes_is_a_504_too() -> None:
    async def provider() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    task = asyncio.current_task()
    assert task
    with pytest.raises(ApiError, match="silent"), Watchdog(0.01):
        await provider()
    assert task.cancelling() == 0


async def test_a_bark_that_the_block_outlives_leaves_no_cancellation_behind() -> None:
    task = asyncio.current_task()
    assert task
    with Watchdog(0.01), contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(30)
    assert task.cancelling() == 0
