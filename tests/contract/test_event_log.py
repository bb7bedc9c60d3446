"""On every backend, each reader of an event log sees the same events once, wherever it starts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.generation.shared_events import SharedEvents
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.jobs.direct_delivery import DirectClient
from llama_stack_responses.jobs.event_follower import EventFollower
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.event_rows import ReservationRefused
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.store.records import Condition, Conflict, Put, Records, VersionIs
from tests.contract.backends import Clock
from tests.support.memory import no_garbage_collection
from tests.support.records import WatchedRecords
from tests.support.waiting import until, waiting_readers

pytestmark = pytest.mark.needs("transactions")

type Json = dict[str, Any]

ID: Final = "resp_1"
LAST: Final = 40
SILENCE: Final = 60.0
HURRIED: Final = replace(DEFAULT, store_retry_seconds=0.001)


def event(number: int) -> Json:
    kind = "response.completed" if number == LAST else "response.output_text.delta"
    return {"type": kind, "sequence_number": number, "delta": "é" * (number % 3)}


EVENTS: Final = [event(number) for number in range(LAST + 1)]


async def lasts() -> bool:
    return True


async def ended() -> bool:
    return False


async def begun() -> Condition:
    """Return a condition that holds while the response has its job."""
    return VersionIs("j/another", None)


class EventLogHarness:
    """An event log as seen by one process.

    Args:
        records: the records that it shares with other processes.
        poll: seconds between polls for new events.
    """

    def __init__(self, records: Records, poll: float = DEFAULT.event_poll_seconds) -> None:
        self.records = records
        self.notifier = Notifier()
        self.event_log = EventLog(records, self.notifier, poll)

    async def write(self, events: Sequence[Json]) -> None:
        await self.records.commit(await self.event_log.batch(ID, events))
        self.notifier.notify(ID)

    async def write_and_announce(self, events: Sequence[Json]) -> None:
        await self.records.commit(await self.event_log.batch(ID, events))
        self.event_log.announce(ID, SharedEvents(events))

    async def write_all(self, sizes: Sequence[int]) -> None:
        """Write all events in batches of these sizes, in rotation."""
        written = turn = 0
        while written < len(EVENTS):
            size = sizes[turn % len(sizes)]
            await self.write(EVENTS[written : written + size])
            written, turn = written + size, turn + 1
            await asyncio.sleep(0)

    async def follow(self, after: int) -> list[Json]:
        """Return the events that a reader sees after `after`, up to the end."""
        batches = self.event_log.follow(ID, after, SILENCE, lasts, begun)
        return [event async for events in batches for event in events]


@pytest.fixture
def here(records: Records) -> EventLogHarness:
    return EventLogHarness(records)


async def keys(records: Records) -> list[str]:
    return [key for key, _ in await records.range("!", "~", limit=1000)]


# Following


@pytest.mark.parametrize("sizes", [[1], [1, 7, 2]])
async def test_readers_starting_any_time_see_each_event_once(here: EventLogHarness, sizes: list[int]) -> None:
    starts = range(-1, LAST, 6)
    readers = [asyncio.create_task(here.follow(after)) for after in starts]
    await here.write_all(sizes)
    readers += [asyncio.create_task(here.follow(after)) for after in starts]
    async with asyncio.timeout(60):
        seen = await asyncio.gather(*readers)
    assert seen == [EVENTS[after + 1 :] for after in starts] * 2


async def test_readers_in_other_process_see_same_events(here: EventLogHarness) -> None:
    # They get no notifications.
    there = EventLogHarness(here.records)
    readers = [asyncio.create_task(there.follow(after)) for after in (-1, 3)]
    readers += [asyncio.create_task(here.follow(-1))]
    await here.write_all([5])
    async with asyncio.timeout(60):
        assert await asyncio.gather(*readers) == [EVENTS, EVENTS[4:], EVENTS]


async def test_slow_reader_blocks_no_writer_and_misses_no_event(here: EventLogHarness) -> None:
    stream = here.event_log.follow(ID, -1, SILENCE, lasts, begun)
    await here.write(EVENTS[:2])
    seen = await anext(stream)
    await here.write(EVENTS[2:30])
    await here.write(EVENTS[30:])
    async for events in stream:
        seen += events
    assert seen == EVENTS


async def test_long_event_log_is_read_in_pages(here: EventLogHarness) -> None:
    for number in range(LAST):
        await here.records.commit(
            [op for part in range(5) for op in await here.event_log.batch(ID, [event_of(5 * number + part)])]
        )
    some = await here.event_log.read(ID, -1)
    assert 0 < len(some) < 5 * LAST
    assert await here.event_log.read_all(ID, -1) == [event_of(number) for number in range(5 * LAST)]
    assert await here.event_log.read_all(ID, 150) == [event_of(number) for number in range(151, 5 * LAST)]


def event_of(number: int) -> Json:
    return {"type": "response.output_text.delta", "sequence_number": number}


async def test_timeout_without_events_yields_empty_batch(here: EventLogHarness) -> None:
    await here.write(EVENTS[:3])
    stream = here.event_log.follow(ID, 1, 0.0, lasts, begun)
    assert await anext(stream) == EVENTS[2:3]
    assert await anext(stream) == []
    await here.write(EVENTS[3:])
    assert [event async for events in stream for event in events] == EVENTS[3:]


async def test_event_log_without_terminal_event_is_read_until_job_ends(here: EventLogHarness) -> None:
    await here.write(EVENTS[:3])
    async with asyncio.timeout(60):
        seen = [event async for events in here.event_log.follow(ID, -1, SILENCE, ended, begun) for event in events]
        assert seen == EVENTS[:3]
        assert [events async for events in here.event_log.follow("resp_2", -1, SILENCE, ended, begun)] == []


async def test_events_written_as_job_ends_are_read(here: EventLogHarness) -> None:
    async def write_and_end() -> bool:
        await here.write(EVENTS[:3])
        return False

    seen = [event async for events in here.event_log.follow(ID, -1, SILENCE, write_and_end, begun) for event in events]
    assert seen == EVENTS[:3]


async def test_event_logs_of_similar_ids_do_not_mix(here: EventLogHarness) -> None:
    await here.write(EVENTS[:3])
    for other in ("resp_", "resp_10", "resp_0"):
        await here.records.commit(await here.event_log.batch(other, EVENTS[:9]))
    assert await here.event_log.read_all(ID, -1) == EVENTS[:3]


async def test_empty_list_of_events_makes_no_batch(here: EventLogHarness) -> None:
    assert await here.event_log.batch(ID, []) == []
    assert await here.event_log.read(ID, -1) == []


# Direct delivery


class WrittenEvents:
    """A client to which deltas can be written.

    Attributes:
        events: the events that were written or yielded.
        accepts: whether it takes them.
    """

    def __init__(self) -> None:
        self.events: list[Json] = []
        self.accepts = True
        self.client = DirectClient(lambda: self.write)
        self.client.connect()

    def write(self, events: SharedEvents) -> bool:
        """Take deltas."""
        if not self.accepts or any(event["type"] != "response.output_text.delta" for event in events.events):
            return False
        self.events += events.events
        return True

    async def follow(self, event_log: EventLog) -> list[int]:
        """Follow all events; return the numbers of those that were yielded."""
        yielded = []
        async for events in event_log.follow(ID, -1, SILENCE, lasts, begun, None, self.client):
            self.events += events
            yielded += [event["sequence_number"] for event in events]
        return yielded


async def test_deltas_are_written_to_waiting_client_without_reading_the_store(records: Records) -> None:
    reads: list[str] = []

    async def note(name: str) -> None:
        reads.append(name)

    here, written = EventLogHarness(WatchedRecords(records, before=note), poll=SILENCE), WrittenEvents()
    await here.write_and_announce(EVENTS[:2])
    async with asyncio.timeout(60):
        following = asyncio.create_task(written.follow(here.event_log))
        await until(lambda: waiting_readers(here.event_log, ID) == 1)
        before = reads.count("range")
        for number in range(2, LAST):
            await here.write_and_announce(EVENTS[number : number + 1])
            for _ in range(5):
                await asyncio.sleep(0)  # a reader that was woken would read now
        assert written.events == EVENTS[:LAST]
        assert reads.count("range") == before
        await here.write_and_announce(EVENTS[LAST:])
        assert await following == [0, 1, LAST]
    assert written.events == EVENTS


@pytest.mark.parametrize("refused", [range(2, 4), range(9, LAST)])
async def test_client_that_refuses_deltas_gets_each_event_once(here: EventLogHarness, refused: range) -> None:
    written = WrittenEvents()
    await here.write_and_announce(EVENTS[:2])
    async with asyncio.timeout(60):
        following = asyncio.create_task(written.follow(here.event_log))
        for number in range(2, LAST + 1):
            written.accepts = number not in refused
            await here.write_and_announce(EVENTS[number : number + 1])
            if number % 3 == 0:
                await until(lambda: waiting_readers(here.event_log, ID) == 1)
        await following
    assert written.events == EVENTS


async def test_client_whose_write_fails_gets_each_event_and_the_writer_goes_on(here: EventLogHarness) -> None:
    def fail(_: SharedEvents) -> bool:
        raise RuntimeError

    written = WrittenEvents()
    written.client = DirectClient(lambda: fail)
    written.client.connect()
    await here.write_and_announce(EVENTS[:2])
    async with asyncio.timeout(60):
        following = asyncio.create_task(written.follow(here.event_log))
        await until(lambda: waiting_readers(here.event_log, ID) == 1)
        await here.write_and_announce(EVENTS[2:LAST])
        await here.write_and_announce(EVENTS[LAST:])
        await following
    assert written.events == EVENTS


async def test_event_that_reader_missed_is_read_from_the_store(here: EventLogHarness) -> None:
    written = WrittenEvents()
    await here.write_and_announce(EVENTS[:2])
    async with asyncio.timeout(60):
        following = asyncio.create_task(written.follow(here.event_log))
        await until(lambda: waiting_readers(here.event_log, ID) == 1)
        await here.records.commit(await here.event_log.batch(ID, EVENTS[2:5]))
        await here.write_and_announce(EVENTS[5:9])
        await here.write_and_announce(EVENTS[9:])
        await following
    assert written.events == EVENTS


async def test_follower_after_outage_does_not_repeat_events_that_were_written_directly(records: Records) -> None:
    watched, written = WatchedRecords(records), WrittenEvents()
    here = EventLogHarness(watched)
    follower = EventFollower(here.notifier, JobQueue(watched, 0), here.event_log, HURRIED)
    await here.write_and_announce(EVENTS[:2])

    async def follow() -> None:
        async for events in follower.follow(ID, -1, SILENCE, None, written.client):
            written.events += events

    async with asyncio.timeout(60):
        following = asyncio.create_task(follow())
        await until(lambda: waiting_readers(here.event_log, ID) == 1)
        await here.write_and_announce(EVENTS[2:9])
        assert written.events == EVENTS[:9]
        watched.away = True
        here.notifier.notify(ID)
        await until(lambda: waiting_readers(here.event_log, ID) == 0)
        watched.away = False
        await here.write_and_announce(EVENTS[9:])
        await following
    assert written.events == EVENTS


# Batches written twice


@pytest.mark.parametrize("after", range(-1, 10))
async def test_batch_rewritten_with_more_events_is_read_once(here: EventLogHarness, after: int) -> None:
    await here.write(EVENTS[:2])
    await here.write(EVENTS[2:5])
    await here.write(EVENTS[2:8])
    await here.write(EVENTS[8:10])
    assert await here.event_log.read_all(ID, after) == EVENTS[after + 1 : 10]
    assert await here.event_log.read(ID, after) == EVENTS[after + 1 : 10]


async def test_reader_between_rewrites_sees_each_event_once(here: EventLogHarness) -> None:
    stream = here.event_log.follow(ID, -1, SILENCE, lasts, begun)
    await here.write(EVENTS[:5])
    seen = await anext(stream)
    await here.write(EVENTS[:9])
    seen += await anext(stream)
    await here.write(EVENTS[9:])
    async for events in stream:
        seen += events
    assert seen == EVENTS


# Cutting back


async def test_unread_events_can_be_cut_back(here: EventLogHarness) -> None:
    await here.write(EVENTS[:2])
    await here.write(EVENTS[2:4])
    await here.write(EVENTS[2:6])
    ops, unread = here.event_log.cut_back(ID, await here.event_log.read_all(ID, 1))
    await here.records.commit(ops, unread)
    assert await here.event_log.read_all(ID, -1) == EVENTS[:2]
    assert await keys(here.records) == [f"e/{ID}/00000001"]


async def test_read_events_cannot_be_cut_back(here: EventLogHarness) -> None:
    await here.write(EVENTS[:6])
    stream = here.event_log.follow(ID, 3, SILENCE, lasts, begun)
    assert await anext(stream) == EVENTS[4:6]
    ops, unread = here.event_log.cut_back(ID, EVENTS[2:6])
    with pytest.raises(Conflict):
        await here.records.commit(ops, unread)
    await stream.aclose()
    with pytest.raises(Conflict):
        await here.records.commit(ops, unread)
    assert await here.event_log.read_all(ID, -1) == EVENTS[:6]


async def test_closed_reader_is_freed_without_the_garbage_collector(here: EventLogHarness) -> None:
    await here.write(EVENTS[:6])
    held = Admission(Quota("answers", 10**9, 10**9))
    follower = EventFollower(Notifier(), JobQueue(here.records, 0), here.event_log, DEFAULT)
    # The first call of a Redis script raises NoScriptError within redis-py, in a reference cycle with its callers.
    await here.event_log.read_all(ID, -1)
    await here.records.get_many([f"j/{ID}"])
    with no_garbage_collection():
        stream = follower.follow(ID, -1, SILENCE, lambda: held.reserve(ANONYMOUS))
        assert await anext(stream) == EVENTS[:6]
        assert held.held
        await stream.aclose()
        assert held.held == 0


async def test_reader_racing_cut_back_sees_only_remaining_events(here: EventLogHarness) -> None:
    for _ in range(4):
        await here.records.commit([Put("keep", b"")])
        await here.write(EVENTS[:2])
        await here.write(EVENTS[2:6])
        reader = asyncio.create_task(here.follow(-1))
        ops, unread = here.event_log.cut_back(ID, EVENTS[2:6])
        try:
            await here.records.commit(ops, unread)
            stands = 2
        except Conflict:
            stands = 6
        again = [event | {"delta": "again"} for event in EVENTS[stands:LAST]] + EVENTS[LAST:]
        await here.write(again)
        async with asyncio.timeout(60):
            assert await reader == EVENTS[:stands] + again
        await drop(here)


async def drop(here: EventLogHarness) -> None:
    await here.records.commit(here.event_log.expire(ID, await here.records.now() - 1))
    assert await here.event_log.sweep() == 1


# Expiry


async def test_expired_event_log_is_dropped(here: EventLogHarness, clock: Clock) -> None:
    for number in range(LAST + 1):
        await here.records.commit(await here.event_log.batch(ID, EVENTS[number : number + 1]))
    await here.follow(LAST - 1)
    await here.records.commit(
        [*await here.event_log.batch("resp_2", EVENTS), *here.event_log.expire("resp_2", clock.now + 60)]
    )
    await here.records.commit(here.event_log.expire(ID, clock.now + 30))
    assert await here.event_log.sweep() == 0
    clock.now += 32
    assert await here.event_log.sweep() == 1
    assert await here.event_log.sweep() == 0
    assert await here.event_log.read_all(ID, -1) == []
    assert await here.event_log.read_all("resp_2", -1) == EVENTS
    clock.now += 30
    assert await here.event_log.sweep() == 1
    assert await keys(here.records) == []


async def test_many_expired_event_logs_are_dropped_in_batches(here: EventLogHarness, clock: Clock) -> None:
    for number in range(5):
        await here.records.commit(
            [*await here.event_log.batch(f"r{number}", EVENTS), *here.event_log.expire(f"r{number}", clock.now)]
        )
    clock.now += 2
    assert [await here.event_log.sweep(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert await keys(here.records) == []


async def test_reader_during_deletion_sees_no_gap(here: EventLogHarness) -> None:
    here.event_log = EventLog(here.records, here.notifier, rows=8)
    await here.write_all([1])
    seen: list[list[Json]] = []

    async def read(_: str) -> None:
        seen.append(await here.event_log.read(ID, 3, 2))

    await EventLog(WatchedRecords(here.records, after=read), here.notifier).forget(ID)
    assert seen[0] == EVENTS[4:6]
    assert [events for events in seen if events not in (EVENTS[4:6], EVENTS[4:5], [])] == []


async def test_concurrent_sweeps_drop_event_log_once(here: EventLogHarness, clock: Clock) -> None:
    await here.write(EVENTS)
    await here.records.commit(here.event_log.expire(ID, clock.now))
    clock.now += 2
    await asyncio.gather(*(here.event_log.sweep() for _ in range(3)))
    assert await keys(here.records) == []


# Large events


LARGE: Final = "x" * 200_000


def large(number: int) -> Json:
    return {"type": "response.created", "sequence_number": number, "response": {"instructions": LARGE}}


def room(units: int) -> Admission:
    """Return the large answers of one user, who may hold this many bytes."""
    return Admission(Quota("large answers", 10 * units, units))


async def test_each_large_event_has_a_separate_row(here: EventLogHarness) -> None:
    events = [large(0), large(1), event(2), event(3), large(4)]
    ops = await here.event_log.batch(ID, events)
    assert [op.key[-1] for op in ops if isinstance(op, Put)] == ["0", "1", "3", "4"]
    await here.records.commit(ops)
    assert await here.event_log.read_all(ID, -1) == events


async def test_events_with_unpaired_surrogates_share_a_row_with_others(here: EventLogHarness) -> None:
    events = [event(0), {**event(1), "delta": "\ud800"}, event(2)]
    ops = await here.event_log.batch(ID, events)
    assert len([op for op in ops if isinstance(op, Put)]) == 1
    await here.records.commit(ops)
    assert await here.event_log.read_all(ID, -1) == events


@pytest.mark.parametrize("at_once", [True, False])
async def test_stalled_readers_of_a_row_hold_it_once(here: EventLogHarness, at_once: bool) -> None:
    await here.write([large(0), large(1)])
    wide = room(10 * len(LARGE))
    streams = [here.event_log.follow(ID, -1, SILENCE, lasts, begun, lambda: wide.reserve(ANONYMOUS)) for _ in range(30)]
    if at_once:
        first = await asyncio.gather(*map(anext, streams))
    else:
        first = [await anext(each) for each in streams]
    assert first == [[large(0)]] * 30
    assert len({id(events[0]) for events in first}) == 1
    assert len(LARGE) < wide.held < 2 * len(LARGE)
    assert await anext(streams[0]) == [large(1)]
    assert wide.held < 3 * len(LARGE)
    streams.clear()
    # A store's client may keep frames in cycles, with exceptions.
    await until(lambda: gc.collect() >= 0 and wide.held == 0)


async def test_waiting_reader_holds_no_row(here: EventLogHarness) -> None:
    await here.write([large(0)])
    wide = room(10 * len(LARGE))
    stream = here.event_log.follow(ID, -1, 0.0, lasts, begun, lambda: wide.reserve(ANONYMOUS))
    assert await anext(stream) == [large(0)]
    assert wide.held > len(LARGE)
    assert await anext(stream) == []
    gc.collect()  # Redis's client leaves a cycle of an exception that it has handled.
    assert wide.held == 0


async def test_reader_without_room_for_the_next_row_is_refused(here: EventLogHarness) -> None:
    await here.write([large(0), large(1)])
    narrow = room(len(LARGE) + len(LARGE) // 2)
    stalled, other = (
        here.event_log.follow(ID, after, SILENCE, lasts, begun, lambda: narrow.reserve(ANONYMOUS)) for after in (-1, 0)
    )
    assert await anext(stalled) == [large(0)]
    with pytest.raises(ReservationRefused) as refused:
        await anext(other)
    assert refused.value.error.status == 429
    del stalled
    await until(lambda: gc.collect() >= 0 and narrow.held == 0)
    other = here.event_log.follow(ID, 0, SILENCE, lasts, begun, lambda: narrow.reserve(ANONYMOUS))
    assert await anext(other) == [large(1)]


async def test_readers_continue_after_failed_read_of_another(here: EventLogHarness) -> None:
    await here.write([large(0)])
    errors = [ApiError(503, "The store is unavailable.")]

    async def fail(call: str) -> None:
        if call == "range" and errors:
            raise errors.pop()

    here.event_log = EventLog(WatchedRecords(here.records, before=fail), here.notifier)
    streams = [here.event_log.follow(ID, -1, SILENCE, lasts, begun) for _ in range(3)]
    found = await asyncio.gather(*map(anext, streams), return_exceptions=True)
    assert sorted(isinstance(each, ApiError) for each in found) == [False, False, True]
    assert [each for each in found if not isinstance(each, ApiError)] == [[large(0)]] * 2
