"""A reader takes events at its own speed, and a slow reader applies backpressure to the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from llama_stack_responses.core.stream.events import output_item_added
from llama_stack_responses.generation.event_buffer import EventBuffer
from tests.support.clock import LoopClock
from tests.support.waiting import turns

Json = dict[str, Any]

SILENCE = 30.0
"""Longer than any test here takes."""


def events(*numbers: int) -> list[Json]:
    return [{"sequence_number": number} for number in numbers]


async def started(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(work)
    await turns(5)
    return task


async def test_take_returns_all_ready_events() -> None:
    event_buffer = EventBuffer(wanted=True)
    event_buffer.put(events(0, 1))
    event_buffer.put(events(2))
    assert await event_buffer.get(SILENCE) == events(0, 1, 2)
    event_buffer.put(events(3))
    assert await event_buffer.get(SILENCE) == events(3)


async def test_take_waits_for_first_event() -> None:
    event_buffer = EventBuffer(wanted=True)
    reader = await started(event_buffer.get(SILENCE))
    event_buffer.put([])
    await turns(5)
    assert not reader.done()
    event_buffer.put(events(0))
    event_buffer.put(events(1))
    assert await reader == events(0, 1)


async def test_take_returns_empty_list_after_timeout() -> None:
    event_buffer = EventBuffer(wanted=True)
    assert await event_buffer.get(0.01) == []
    event_buffer.put(events(0))
    assert await event_buffer.get(0.01) == events(0)


async def test_take_returns_none_after_last_event() -> None:
    event_buffer = EventBuffer(wanted=True)
    event_buffer.put(events(0))
    event_buffer.end()
    assert await event_buffer.get(SILENCE) == events(0)
    assert await event_buffer.get(SILENCE) is None
    assert await event_buffer.get(SILENCE) is None


async def test_end_wakes_waiting_reader() -> None:
    event_buffer = EventBuffer(wanted=True)
    reader = await started(event_buffer.get(SILENCE))
    event_buffer.end()
    assert await reader is None


async def test_cancelled_reader_leaves_events_to_next_reader() -> None:
    event_buffer = EventBuffer(wanted=True)
    reader = await started(event_buffer.get(0.2))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    event_buffer.put(events(0))
    await asyncio.sleep(0.25)
    assert await event_buffer.get(SILENCE) == events(0)


async def test_writer_over_limit_waits_for_reader() -> None:
    event_buffer = EventBuffer(wanted=True, limit=3)
    event_buffer.put(events(0, 1))
    assert not event_buffer.full
    await event_buffer.drained()
    event_buffer.put(events(2))
    writer = await started(event_buffer.drained())
    assert not writer.done()
    assert await event_buffer.get(SILENCE) == events(0, 1, 2)
    await writer
    assert not event_buffer.full


async def test_writer_that_refills_buffer_waits_again() -> None:
    event_buffer = EventBuffer(wanted=True, limit=1)
    event_buffer.put(events(0))
    writer = await started(event_buffer.drained())
    await event_buffer.get(SILENCE)
    event_buffer.put(events(1))
    await turns(5)
    assert not writer.done()
    await event_buffer.get(SILENCE)
    await writer


async def test_unwanted_events_are_dropped() -> None:
    event_buffer = EventBuffer(wanted=False, limit=1)
    event_buffer.put(events(0, 1, 2))
    assert not event_buffer.full
    await event_buffer.drained()
    event_buffer.end()
    assert await event_buffer.get(SILENCE) is None


async def test_unwanted_events_are_not_held_for_their_order() -> None:
    event_buffer = EventBuffer(wanted=False)
    call = {"id": "ws_1", "type": "web_search_call"}
    event_buffer.put(
        [output_item_added(0, "resp_1", 0, call), output_item_added(1, "resp_1", 1, call | {"id": "ws_2"})]
    )
    assert event_buffer.order.buffered == []


async def test_concurrent_writer_keeps_order_and_limit() -> None:
    event_buffer = EventBuffer(wanted=True, limit=4)
    most = 0

    async def write() -> None:
        nonlocal most
        for number in range(100):
            event_buffer.put(events(number))
            if event_buffer.full:
                await event_buffer.drained()
        event_buffer.end()

    writer = asyncio.create_task(write())
    seen: list[Json] = []
    while (batch := await event_buffer.get(SILENCE)) is not None:
        most = max(most, len(batch))
        seen += batch
        await turns(2)
    await writer
    assert seen == events(*range(100))
    assert most == 4


class Client:
    """What events are passed on to without waking the reader, while it accepts them."""

    def __init__(self) -> None:
        self.batches: list[list[Json]] = []
        self.accepts = True

    def write(self, batch: list[Json]) -> bool:
        if self.accepts:
            self.batches.append(list(batch))
        return self.accepts


async def test_events_of_one_iteration_are_passed_on_without_waking_reader() -> None:
    event_buffer, client = EventBuffer(wanted=True), Client()
    reader = await started(event_buffer.get(SILENCE, client.write))
    event_buffer.put(events(0))
    event_buffer.put(events(1))
    await turns(5)
    event_buffer.put(events(2))
    await turns(5)
    assert client.batches == [events(0, 1), events(2)]
    assert not reader.done()
    event_buffer.end()
    assert await reader is None


async def test_events_that_cannot_be_passed_on_wake_reader_in_order() -> None:
    event_buffer, client = EventBuffer(wanted=True), Client()
    reader = await started(event_buffer.get(SILENCE, client.write))
    event_buffer.put(events(0))
    await turns(5)
    client.accepts = False
    event_buffer.put(events(1))
    await asyncio.sleep(0)
    client.accepts = True
    event_buffer.put(events(2))
    assert await reader == events(1, 2)
    event_buffer.put(events(3))
    await turns(5)
    assert client.batches == [events(0)], "the reader is busy with what it took"
    assert await event_buffer.get(SILENCE, client.write) == events(3)


async def test_last_events_reach_reader_with_end() -> None:
    event_buffer, client = EventBuffer(wanted=True), Client()
    reader = await started(event_buffer.get(SILENCE, client.write))
    event_buffer.put(events(0))
    event_buffer.end()
    taken = await reader
    assert [*client.batches, *([taken] if taken else [])] == [events(0)]


async def test_writer_waits_while_nothing_can_be_passed_on() -> None:
    event_buffer, client = EventBuffer(wanted=True, limit=2), Client()
    client.accepts = False
    reader = await started(event_buffer.get(SILENCE, client.write))
    event_buffer.put(events(0, 1))
    assert event_buffer.full
    writer = await started(event_buffer.drained())
    assert await reader == events(0, 1)
    await writer


async def test_passed_events_break_silence(loop_clock: LoopClock) -> None:
    event_buffer, client = EventBuffer(wanted=True), Client()
    reader = await started(event_buffer.get(15.0, client.write))
    for number in range(4):
        await loop_clock.passes(10.0)
        event_buffer.put(events(number))
        await turns(5)
    assert not reader.done()
    await loop_clock.passes_until(reader.done)
    assert await reader == []


async def test_failing_write_wakes_reader() -> None:
    def write(_: list[Json]) -> bool:
        raise ValueError

    event_buffer = EventBuffer(wanted=True)
    reader = await started(event_buffer.get(SILENCE, write))
    event_buffer.put(events(0))
    assert await reader == events(0)
