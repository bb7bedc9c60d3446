"""Events reach a reader at its own speed, and a slow reader slows the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from llama_stack_responses.generation.event_buffer import Outbox

Json = dict[str, Any]

SILENCE = 30.0
"""Longer than any test here takes."""


def events(*numbers: int) -> list[Json]:
    return [{"sequence_number": number} for number in numbers]


async def turns(count: int = 5) -> None:
    """Lets all other tasks run until they wait."""
    for _ in range(count):
        await asyncio.sleep(0)


async def started(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(work)
    await turns()
    return task


async def test_all_that_is_ready_is_taken_at_once() -> None:
    outbox = Outbox(wanted=True)
    outbox.put(events(0, 1))
    outbox.put(events(2))
    assert await outbox.take(SILENCE) == events(0, 1, 2)
    outbox.put(events(3))
    assert await outbox.take(SILENCE) == events(3)


async def test_a_reader_waits_for_the_first_event() -> None:
    outbox = Outbox(wanted=True)
    reader = await started(outbox.take(SILENCE))
    outbox.put([])
    await turns()
    assert not reader.done()
    outbox.put(events(0))
    outbox.put(events(1))
    assert await reader == events(0, 1)


async def test_silence_is_an_empty_list() -> None:
    outbox = Outbox(wanted=True)
    assert await outbox.take(0.01) == []
    outbox.put(events(0))
    assert await outbox.take(0.01) == events(0)


async def test_the_end_comes_after_the_last_event() -> None:
    outbox = Outbox(wanted=True)
    outbox.put(events(0))
    outbox.end()
    assert await outbox.take(SILENCE) == events(0)
    assert await outbox.take(SILENCE) is None
    assert await outbox.take(SILENCE) is None


async def test_the_end_wakes_a_reader() -> None:
    outbox = Outbox(wanted=True)
    reader = await started(outbox.take(SILENCE))
    outbox.end()
    assert await reader is None


async def test_a_reader_that_went_away_leaves_the_events_to_the_next() -> None:
    outbox = Outbox(wanted=True)
    reader = await started(outbox.take(0.2))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    outbox.put(events(0))
    await asyncio.sleep(0.25)
    assert await outbox.take(SILENCE) == events(0)


async def test_past_the_limit_the_writer_waits_for_the_reader() -> None:
    outbox = Outbox(wanted=True, limit=3)
    outbox.put(events(0, 1))
    assert not outbox.full
    await outbox.drained()
    outbox.put(events(2))
    writer = await started(outbox.drained())
    assert not writer.done()
    assert await outbox.take(SILENCE) == events(0, 1, 2)
    await writer
    assert not outbox.full


async def test_a_writer_that_fills_it_again_waits_again() -> None:
    outbox = Outbox(wanted=True, limit=1)
    outbox.put(events(0))
    writer = await started(outbox.drained())
    await outbox.take(SILENCE)
    outbox.put(events(1))
    await turns()
    assert not writer.done()
    await outbox.take(SILENCE)
    await writer


async def test_nothing_is_kept_that_nobody_wants() -> None:
    outbox = Outbox(wanted=False, limit=1)
    outbox.put(events(0, 1, 2))
    assert not outbox.full
    await outbox.drained()
    outbox.end()
    assert await outbox.take(SILENCE) is None


async def test_order_and_bound_between_two_tasks() -> None:
    outbox = Outbox(wanted=True, limit=4)
    most = 0

    async def write() -> None:
        nonlocal most
        for number in range(100):
            outbox.put(events(number))
            if outbox.full:
                await outbox.drained()
        outbox.end()

    writer = asyncio.create_task(write())
    seen: list[Json] = []
    while (batch := await outbox.take(SILENCE)) is not None:
        most = max(most, len(batch))
        seen += batch
        await turns(2)
    await writer
    assert seen == events(*range(100))
    assert most == 4
