"""A reader waits for room while other readers of its user hold all that they may, and is refused in the end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.json_blocks import dumps
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.generation.shared_events import SharedEvents
from llama_stack_responses.intervals import DEFAULT, Intervals
from llama_stack_responses.jobs.direct_delivery import DirectClient, Reader, Readers
from llama_stack_responses.jobs.event_follower import EventFollower
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.waiting import until, waiting_readers

SIZE: Final = 100_000
ID: Final = "resp_1"
EVENTS: Final[list[dict[str, Any]]] = [
    {"type": kind, "sequence_number": number, "response": {"instructions": "x" * SIZE}}
    for number, kind in enumerate(("response.created", "response.completed"))
]


async def follower(intervals: Intervals) -> EventFollower:
    """Return a follower of a log with these events."""
    records, notifier = MemoryRecords(1_000, 2**24), Notifier()
    event_log = EventLog(records, notifier)
    await records.commit(await event_log.batch(ID, EVENTS))
    return EventFollower(notifier, JobQueue(records, 10), event_log, intervals)


@pytest.mark.parametrize("patient", [True, False])
async def test_reader_without_room_waits_and_is_refused_in_the_end(patient: bool) -> None:
    intervals = replace(DEFAULT, store_retry_seconds=0.001, reservation_wait_seconds=60.0 if patient else 0.0)
    follows, room = await follower(intervals), Admission(Quota("large answers", 10 * SIZE, SIZE + SIZE // 2))
    stalled, other = (follows.follow(ID, after, 60.0, lambda: room.reserve(ANONYMOUS)) for after in (-1, 0))
    assert await anext(stalled) == EVENTS[:1]
    if not patient:
        with pytest.raises(ApiError, match="You have too many large answers open"):
            await anext(other)
        return
    assert [await anext(other) for _ in range(3)] == [[]] * 3  # keep-alives
    del stalled
    async with asyncio.timeout(60):
        assert [events async for events in other if events] == [EVENTS[1:]]


async def test_deltas_for_many_readers_are_encoded_once_and_written_in_several_turns() -> None:
    readers, notifier = Readers(), Notifier()
    encoded: list[list[bytes]] = []
    written: list[bytes] = []

    def encode(events: SharedEvents) -> bytes:
        encoded.append(list(events.encoded()))
        return b"frames"

    def write(events: SharedEvents) -> bool:
        written.append(events.frames(encode) or b"")
        return len(written) != 30  # one client is slow

    delta = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "a"}
    with ExitStack() as stack:
        subscriptions = []
        for after in [0] * 39 + [-1]:
            subscription = stack.enter_context(notifier.subscribe(ID))
            client = DirectClient(lambda: write)
            client.connect()
            reader = stack.enter_context(readers.joined(ID, Reader(subscription, after, client)))
            reader.waits = True
            subscriptions.append(subscription)
        assert set(readers.pass_on(ID, SharedEvents([delta]))) == set(subscriptions[:-1])
        at_once = len(written)
        await until(lambda: len(written) == 39)
        assert (at_once, encoded) == (16, [[dumps(delta)]])
        assert [await each.wait(0) for each in subscriptions].count(True) == 1


async def test_reader_that_got_deltas_directly_waits_for_room_from_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, notifier = MemoryRecords(1_000, 2**24), Notifier()
    event_log = EventLog(records, notifier, poll=1e6)
    intervals = replace(DEFAULT, store_retry_seconds=0.001, reservation_wait_seconds=60.0)
    follows = EventFollower(notifier, JobQueue(records, 10), event_log, intervals)
    room = Admission(Quota("large answers", 10 * SIZE, SIZE + SIZE // 2))
    written: list[dict[str, Any]] = []

    def write(events: SharedEvents) -> bool:
        deltas = all("delta" in event for event in events.events)
        written.extend(events.events if deltas else ())
        return deltas

    async def announce(event: dict[str, Any]) -> None:
        await records.commit(await event_log.batch(ID, [event]))
        event_log.announce(ID, SharedEvents([event]))

    created = {"type": "response.created", "sequence_number": 0}
    delta = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "a"}
    completed = EVENTS[1] | {"sequence_number": 2}
    client = DirectClient(lambda: write)
    client.connect()
    await announce(created)
    stream = follows.follow(ID, -1, 1e6, lambda: room.reserve(ANONYMOUS), client)
    async with asyncio.timeout(60):
        assert await anext(stream) == [created]
        waiting = asyncio.ensure_future(anext(stream))
        await until(lambda: waiting_readers(event_log, ID) == 1)
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + 1_000.0)
    await announce(delta)
    assert written == [delta]
    with room.reserve(ANONYMOUS).add(SIZE):
        await announce(completed)
        assert await waiting == []
    async with asyncio.timeout(60):
        assert [events async for events in stream if events] == [[completed]]
