"""A reader takes events at its own speed, and a slow reader applies backpressure to the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.event_times import EventTimes
from llama_stack_responses.stream.delta_forms import DeltaRun
from llama_stack_responses.stream.events import output_item_added, output_text_delta
from llama_stack_responses.stream.fragments import Fragments
from llama_stack_responses.stream.output import OpenText, Output
from llama_stack_responses.stream.transcript import Transcript, lengths
from tests.support.clock import LoopClock
from tests.support.waiting import turns

Json = dict[str, Any]

SILENCE = 30.0
"""Longer than any test here takes."""


def events(*numbers: int) -> list[Json]:
    return [{"sequence_number": number} for number in numbers]


def delta(number: int, text: str) -> Json:
    return output_text_delta(number, "msg_1", 0, 0, text, [])


def written_to(
    limit: int = 256, transcript: Transcript | None = None, event_times: EventTimes | None = None
) -> tuple[EventBuffer, Client, OpenText]:
    """Return a buffer whose last event was the first delta of a text, already read; a client; and the text."""
    event_buffer = EventBuffer(wanted=True, transcript=transcript, event_times=event_times, limit=limit)
    output = Output({"id": "resp_1", "output": []})
    open_text = OpenText(output, Fragments(), delta(output.next(), ""))
    event_buffer.put([open_text.event])
    assert event_buffer.ready() == [open_text.event]
    return event_buffer, Client(), open_text


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


async def test_cancelled_reader_leaves_events_to_next_reader(loop_clock: LoopClock) -> None:
    event_buffer = EventBuffer(wanted=True)
    reader = await started(event_buffer.get(100.0))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    event_buffer.put(events(0))
    await loop_clock.passes(200.0)
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


class Failing:
    """A client whose connection breaks."""

    def write(self, _: list[Json] | DeltaRun) -> bool:
        raise ValueError

    def extend(self, _: Json, __: int, ___: str) -> bool:
        raise ValueError


class Client:
    """What events are passed on to without waking the reader, while it accepts them."""

    def __init__(self) -> None:
        self.batches: list[list[Json]] = []
        self.runs = 0
        self.accepts = True

    def write(self, batch: list[Json] | DeltaRun) -> bool:
        if self.accepts:
            self.runs += isinstance(batch, DeltaRun)
            self.batches.append(batch.events() if isinstance(batch, DeltaRun) else list(batch))
        return self.accepts

    def extend(self, like: Json, number: int, text: str) -> bool:
        return self.write([{**like, "sequence_number": number, "delta": text}])


async def test_events_of_one_iteration_are_passed_on_without_waking_reader() -> None:
    event_buffer, client = EventBuffer(wanted=True), Client()
    reader = await started(event_buffer.get(SILENCE, client))
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
    reader = await started(event_buffer.get(SILENCE, client))
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
    assert await event_buffer.get(SILENCE, client) == events(3)


async def test_last_events_reach_reader_with_end() -> None:
    event_buffer, client = EventBuffer(wanted=True), Client()
    reader = await started(event_buffer.get(SILENCE, client))
    event_buffer.put(events(0))
    event_buffer.end()
    taken = await reader
    assert [*client.batches, *([taken] if taken else [])] == [events(0)]


async def test_writer_waits_while_nothing_can_be_passed_on() -> None:
    event_buffer, client = EventBuffer(wanted=True, limit=2), Client()
    client.accepts = False
    reader = await started(event_buffer.get(SILENCE, client))
    event_buffer.put(events(0, 1))
    assert event_buffer.full
    writer = await started(event_buffer.drained())
    assert await reader == events(0, 1)
    await writer


async def test_passed_events_break_silence(loop_clock: LoopClock) -> None:
    event_buffer, client = EventBuffer(wanted=True), Client()
    reader = await started(event_buffer.get(15.0, client))
    for number in range(4):
        await loop_clock.passes(10.0)
        event_buffer.put(events(number))
        await turns(5)
    assert not reader.done()
    await loop_clock.passes_until(reader.done)
    assert await reader == []


async def test_failing_write_wakes_reader() -> None:
    event_buffer = EventBuffer(wanted=True)
    reader = await started(event_buffer.get(SILENCE, Failing()))
    event_buffer.put(events(0))
    assert await reader == events(0)


async def test_token_that_arrived_alone_is_passed_on_in_same_call() -> None:
    event_buffer, client, open_text = written_to()
    reader = await started(event_buffer.get(SILENCE, client))
    assert event_buffer.extend(open_text, "a", alone=True)
    assert client.batches == [[delta(1, "a")]]
    assert event_buffer.extend(open_text, "b", alone=False)
    assert len(client.batches) == 1, "more may arrive with it"
    assert event_buffer.extend(open_text, "c", alone=True)
    assert len(client.batches) == 1, "another event is before it"
    await turns(5)
    assert client.batches == [[delta(1, "a")], [delta(2, "b"), delta(3, "c")]]
    assert client.runs == 1, "tokens that arrive together are no objects of their own"
    assert event_buffer.passed == 2
    assert open_text.fragments.text() == "abc"
    assert not reader.done()
    event_buffer.end()
    await reader


async def test_token_that_cannot_be_passed_on_wakes_reader() -> None:
    event_buffer, client, open_text = written_to()
    reader = await started(event_buffer.get(SILENCE, client))
    client.accepts = False
    assert event_buffer.extend(open_text, "a", alone=True)
    assert await reader == [delta(1, "a")]
    client.accepts = True
    assert event_buffer.extend(open_text, "b", alone=True)
    assert client.batches == [], "the reader is busy with what it took"
    assert await event_buffer.get(SILENCE, client) == [delta(2, "b")]


async def test_token_whose_write_fails_wakes_reader() -> None:
    event_buffer, _, open_text = written_to()
    reader = await started(event_buffer.get(SILENCE, Failing()))
    assert event_buffer.extend(open_text, "a", alone=True)
    assert await reader == [delta(1, "a")]


async def test_token_behind_another_event_is_put_in_order() -> None:
    event_buffer, client, open_text = written_to()
    reader = await started(event_buffer.get(SILENCE, client))
    other = {"type": "other", "sequence_number": open_text.output.next()}
    event_buffer.put([other])
    assert event_buffer.extend(open_text, "a", alone=True)
    await turns(5)
    assert event_buffer.extend(open_text, "b", alone=True)
    assert client.batches == [[other, delta(2, "a")], [delta(3, "b")]]
    reader.cancel()


async def test_token_of_full_buffer_is_refused() -> None:
    event_buffer, _, open_text = written_to(limit=1)
    assert event_buffer.extend(open_text, "a", alone=True)
    assert not event_buffer.extend(open_text, "b", alone=True)
    assert open_text.fragments.text() == "a"


async def test_passed_tokens_are_recorded() -> None:
    transcript, times = Transcript(), EventTimes()
    event_buffer, client, open_text = written_to(transcript=transcript, event_times=times)
    reader = await started(event_buffer.get(SILENCE, client))
    assert event_buffer.extend(open_text, "abc", alone=True)
    [mark] = transcript.marks()
    assert [length for length, _ in lengths(mark)] == [0, 3]
    assert sum(times.copied()[::2]) == 2
    reader.cancel()


async def test_passed_tokens_break_silence(loop_clock: LoopClock) -> None:
    event_buffer, client, open_text = written_to()
    reader = await started(event_buffer.get(15.0, client))
    for number in range(4):
        await loop_clock.passes(10.0)
        event_buffer.extend(open_text, f"{number}", alone=True)
        await turns(5)
    assert not reader.done()
    await loop_clock.passes_until(reader.done)
    assert await reader == []


async def test_tokens_become_one_run_until_another_event_follows() -> None:
    times = EventTimes()
    event_buffer, _, open_text = written_to(event_times=times, limit=4)
    for text in "abc":
        assert event_buffer.extend(open_text, text)
    run = event_buffer.waiting
    assert isinstance(run, DeltaRun)
    assert (run.first, run.last, run.events()) == (1, 3, [delta(1, "a"), delta(2, "b"), delta(3, "c")])
    assert event_buffer.take() is run
    assert sum(times.copied()[::2]) == 4
    assert event_buffer.take() == []
    assert event_buffer.extend(open_text, "d")
    other = {"type": "other", "sequence_number": open_text.output.next()}
    event_buffer.put([other])
    assert event_buffer.extend(open_text, "e")
    assert event_buffer.extend(open_text, "f")
    assert event_buffer.full
    assert event_buffer.ready() == [delta(4, "d"), other, delta(6, "e"), delta(7, "f")]
    assert not event_buffer.full


async def test_run_of_tokens_ends_where_numbers_skip() -> None:
    event_buffer, _, open_text = written_to()
    assert event_buffer.extend(open_text, "a")
    open_text.output.next()
    assert event_buffer.extend(open_text, "b")
    assert event_buffer.take() == [delta(1, "a"), delta(3, "b")]


async def test_runs_of_two_texts_have_a_form_each() -> None:
    event_buffer, _, open_text = written_to()
    other = OpenText(open_text.output, Fragments(), {**delta(0, ""), "output_index": 1})
    assert event_buffer.extend(open_text, "a")
    assert event_buffer.extend(other, "b")
    assert event_buffer.extend(other, "c")
    taken = event_buffer.take()
    assert taken == [delta(1, "a"), *({**delta(each, text), "output_index": 1} for each, text in ((2, "b"), (3, "c")))]
