"""Workers take what waits, one each, look after one another's jobs, and leave nothing undone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.jobs import event_log as journal
from llama_stack_responses.jobs import queue as jobs
from llama_stack_responses.jobs import runner as attempt
from llama_stack_responses.jobs import worker as crew
from llama_stack_responses.jobs.queue import LEASE, QUEUE
from llama_stack_responses.store.records import Condition, Op, Put
from tests.support.inference import Round, finish, text
from tests.support.records import WatchedRecords
from tests.support.wire import output_text
from tests.unit.jobs.office import ID, PATIENCE, ROUNDS, SAID, Office, said, shared, turns, until

type Json = dict[str, Any]

HELLO: Round = [text("Hel"), text("lo"), finish(tokens=2)]


class Clock:
    """The store's clock."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "_PAUSE", 0.0)
    monkeypatch.setattr(attempt, "RETRY", 0.001)
    monkeypatch.setattr(crew, "RETRY", 0.001)
    monkeypatch.setattr(journal, "_POLL", 0.001)
    monkeypatch.setattr(crew, "_LOOK", 0.001)
    monkeypatch.setattr(crew, "_BREATH", 0.005)
    monkeypatch.setattr(crew, "_GLANCE", 0.001)
    monkeypatch.setattr(crew, "_GRACE", 0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records(clock: Clock) -> WatchedRecords:
    return shared(clock=clock)


class Process(Office):
    """A process with workers."""

    def __init__(
        self, records: WatchedRecords, *rounds: Round, accept: asyncio.Event | None = None, **options: Any
    ) -> None:
        super().__init__(records, *rounds, accept=accept)
        self.workers = self.crew(**options)

    async def kill(self) -> None:
        """Ends it without a word."""
        tasks = [*self.workers._tasks, *self.workers._attempts]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Deaf(WatchedRecords):
    """Records that make the first claim without saying so."""

    unheard = 0

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        if not self.unheard and any(isinstance(op, Put) and op.key.startswith("h/") for op in ops):
            self.unheard += 1
            raise ApiError(503, "The connection was lost.")


class Watched(WatchedRecords):
    """Records on which there is time after each commit for a look at whose the jobs are."""

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        await asyncio.sleep(0.02)


type Start = Callable[..., Process]


@pytest.fixture
async def start(records: WatchedRecords) -> AsyncIterator[Start]:
    """Starts processes on the store, which end with the test."""
    started: list[Process] = []

    def begin(*rounds: Round, on: WatchedRecords = records, **options: Any) -> Process:
        process = Process(on, *rounds, **options)
        process.workers.start()
        started.append(process)
        return process

    yield begin
    records.away = False
    for process in started:
        await process.workers.stop()


async def until_ended(office: Office, response_id: str = ID) -> None:
    """Waits until the job is gone."""
    async with asyncio.timeout(PATIENCE):
        while await office.jobs.find(response_id):
            await turns(1)


# Making


async def test_what_is_queued_is_made(records: WatchedRecords, start: Start) -> None:
    here = start(*ROUNDS)
    await here.submit(here.workers)
    batches = here.workers.follow(ID, -1, PATIENCE)
    events = [event async for batch in batches for event in batch]
    final = await here.result()
    assert (final["status"], said(final)) == ("completed", SAID)
    assert events == await here.journal.read_all(ID, -1)


async def test_all_is_well_while_everybody_is_at_work_and_only_then(start: Start) -> None:
    here = start(*ROUNDS)
    await here.submit(here.workers)
    await until_ended(here)
    await here.workers.check()
    here.workers._tasks[0].cancel()
    await turns(2)
    with pytest.raises(ApiError, match="Restart it") as refused:
        await here.workers.check()
    assert refused.value.status == 503


async def test_what_another_process_queued_is_made(records: WatchedRecords, start: Start) -> None:
    there = Process(records)
    await there.submit(there.workers)
    here = start(*ROUNDS)
    await until_ended(here)
    assert said(await here.result()) == SAID


async def test_only_so_many_at_a_time(start: Start) -> None:
    gate = asyncio.Event()
    here = start(*[[text("a"), gate, finish()]] * 5, size=2)
    for number in range(5):
        await here.submit(here.workers, f"resp_{number}")
    await until(lambda: here.inference.streaming == 2)
    await turns(50)
    assert here.inference.streaming == 2
    assert len(here.inference.requests) == 2
    gate.set()
    for number in range(5):
        await until_ended(here, f"resp_{number}")
        assert (await here.result(f"resp_{number}"))["status"] == "completed"


async def test_one_owner_gets_no_more_than_their_share_of_the_work(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start(*[[text("a"), gate, finish()]] * 5, size=3, share=2)
    for number in range(4):
        await here.submit(here.workers, f"resp_{number}")
    await until(lambda: here.inference.streaming == 2)
    await turns(50)
    assert here.inference.streaming == 2
    async with here.jobs.enqueued("resp_b", Owner("bert"), {"model": "m", "input": "hi"}) as ops:
        await records.commit(ops)
    here.workers._bell.ring(QUEUE)
    while (waiting := await here.jobs.find("resp_b")) and waiting.job.worker is None:
        await turns(1)
    assert len(here.inference.requests) == 2
    gate.set()
    for number in range(4):
        await until_ended(here, f"resp_{number}")


async def test_each_is_made_once_over_all_processes(records: WatchedRecords, start: Start) -> None:
    processes = [start(*[HELLO] * 12) for _ in range(3)]
    await asyncio.gather(*(processes[n % 3].submit(processes[n % 3].workers, f"resp_{n}") for n in range(12)))
    for number in range(12):
        await until_ended(processes[0], f"resp_{number}")
        assert said(await processes[0].result(f"resp_{number}")) == ["Hello"]
    assert sum(len(process.inference.requests) for process in processes) == 12


async def test_a_full_queue_is_refused_and_nothing_is_stored(records: WatchedRecords) -> None:
    office = Process(records, waiting=1)
    await office.submit(office.workers)
    with pytest.raises(ApiError) as refused:
        await office.submit(office.workers, "resp_2")
    assert refused.value.status == 429
    assert await office.archive.load("resp_2") is None


# The dead


async def test_the_work_of_a_dead_process_goes_on_in_another(
    records: WatchedRecords, clock: Clock, start: Start
) -> None:
    dies = start(ROUNDS[0], [text("And"), asyncio.Event()])
    await dies.submit(dies.workers)
    reader = asyncio.create_task(dies.read())
    await until(lambda: dies.inference.sent == 6)
    await dies.kill()
    lives = start(*ROUNDS[1:])
    await turns(50)
    assert await lives.jobs.find(ID)
    clock.now += LEASE + 1
    await until_ended(lives)
    final = await lives.result()
    assert said(final, "completed") == SAID
    async with asyncio.timeout(PATIENCE):
        assert await reader == await lives.journal.read_all(ID, -1)


async def test_who_could_not_say_that_it_lives_takes_nobody_for_dead_yet(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_GAP", 0.0)
    await takes_nobody_for_dead(records, start)


async def test_worker_that_has_just_started_takes_nobody_for_dead_yet(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_GRACE", PATIENCE)
    await takes_nobody_for_dead(records, start)


async def takes_nobody_for_dead(records: WatchedRecords, start: Start) -> None:
    """Looks whether a worker leaves the job of one whose lease ran out alone while it renews its own again and again."""
    office = Process(records)
    await office.submit(office.workers)
    held = await office.claim("other")
    here = start(*ROUNDS)
    life = f"p/{here.workers._worker}"
    async with asyncio.timeout(PATIENCE):
        while (found := (await records.get_many([life])).get(life)) is None or found.version < 5:
            await turns(1)
    assert await office.jobs.find(ID) == held


async def test_a_process_that_ends_hands_its_work_over(records: WatchedRecords, start: Start) -> None:
    first = start(ROUNDS[0], [text("And"), asyncio.Event()])
    await first.submit(first.workers)
    await until(lambda: first.inference.sent == 6)
    async with asyncio.timeout(PATIENCE):
        await first.workers.stop()
    assert first.inference.streaming == 0
    held = await first.jobs.find(ID)
    assert held is not None
    assert (held.job.worker, held.job.tries) == (None, 0)
    second = start(*ROUNDS[1:])
    await until_ended(second)
    assert said(await second.result(), "completed") == SAID


async def test_a_process_that_ends_without_its_store_ends(records: WatchedRecords, start: Start) -> None:
    first = start([text("And"), asyncio.Event()])
    await first.submit(first.workers)
    await until(lambda: first.inference.sent == 1)
    records.away = True
    async with asyncio.timeout(PATIENCE):
        await first.workers.stop()
    assert first.inference.streaming == 0


async def test_a_worker_whose_job_was_taken_lets_go_of_the_provider(records: WatchedRecords, start: Start) -> None:
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.workers)
    await until(lambda: here.inference.streaming == 1)
    assert await here.jobs.seize(ID, "somebody", "cancelled")
    await until(lambda: here.inference.streaming == 0)


# What a worker has without knowing it


async def test_a_job_that_was_claimed_without_hearing_so_is_made(records: WatchedRecords, start: Start) -> None:
    office = Process(records)
    await office.submit(office.workers)
    deaf = Deaf(records)
    here = start(*ROUNDS, on=deaf)
    await until_ended(here)
    assert deaf.unheard == 1
    assert said(await here.result()) == SAID


async def lose_the_store(here: Process, records: WatchedRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the store away until the process has ended its streams."""
    records.away = True
    with monkeypatch.context() as hurry:
        hurry.setattr(crew, "_SILENT", 0.0)
        await until(lambda: here.inference.streaming == 0)
    records.away = False


async def test_a_worker_that_took_itself_for_dead_takes_its_jobs_up_again(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start(ROUNDS[0], [text("And"), asyncio.Event()], *ROUNDS[1:])
    await here.submit(here.workers)
    await until(lambda: here.inference.sent == 6)
    await lose_the_store(here, records, monkeypatch)
    await until_ended(here)
    assert said(await here.result(), "completed") == SAID


def has_sent(process: Process, deltas: int) -> bool:
    """Whether the provider has sent so many deltas to the process."""
    return process.inference.sent == deltas


async def test_outages_of_the_store_in_one_round_do_not_count_as_tries(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = jobs.TRIES + 2
    here = start(*[[text("Hel"), asyncio.Event()]] * outages, HELLO)
    await here.submit(here.workers)
    for outage in range(1, outages + 1):
        await until(partial(has_sent, here, outage))
        await lose_the_store(here, records, monkeypatch)
    await until_ended(here)
    final = await here.result()
    assert (final["status"], said(final, "completed")) == ("completed", ["Hello"])


async def test_a_store_that_is_away_for_a_moment_is_waited_for(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start([text("Hel"), gate, text("lo"), finish(tokens=2)])
    await here.submit(here.workers)
    await until(lambda: here.inference.sent == 1)
    records.away = True
    gate.set()
    await until(lambda: here.inference.streaming == 0)
    records.away = False
    await until_ended(here)
    assert said(await here.result()) == ["Hello"]
    assert len(here.inference.requests) == 1


async def test_an_attempt_that_breaks_is_made_again_and_then_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    here = start(*ROUNDS)
    with monkeypatch.context() as patch:
        patch.setattr(here.archive, "history", broken)
        patch.setattr(attempt, "close_cut", broken)
        await here.submit(here.workers)

        async with asyncio.timeout(PATIENCE):
            while (held := await here.jobs.find(ID)) and held.job.tries <= jobs.TRIES:
                await turns(1)
    await until_ended(here)
    final = await here.result()
    assert (final["status"], said(final)) == ("failed", [])
    assert here.inference.requests == []
    assert "ZeroDivisionError" in caplog.text


# Cancelling


@pytest.mark.parametrize("where", ["here", "there"])
async def test_cancelling_ends_it_wherever_it_is_made(records: WatchedRecords, start: Start, where: str) -> None:
    here, there = start(ROUNDS[0], [text("And"), asyncio.Event()]), Process(records)
    await here.submit(here.workers)
    await until(lambda: here.inference.sent == 6)
    async with asyncio.timeout(PATIENCE):
        await (here if where == "here" else there).workers.cancel(ID)
    await until(lambda: here.inference.streaming == 0)
    final = await here.result()
    assert (final["status"], said(final, "completed")) == ("cancelled", SAID[:1])


async def test_what_waits_is_cancelled_without_being_made(records: WatchedRecords) -> None:
    office = Process(records)
    await office.submit(office.workers)
    await office.workers.cancel(ID)
    assert (await office.result())["status"] == "cancelled"
    await office.workers.cancel(ID)
    assert (await office.result())["status"] == "cancelled"


async def leave(here: Process, steps: int) -> None:
    """Cancels the response, and leaves after so many turns of the loop."""
    request = asyncio.create_task(here.workers.cancel(ID))
    await turns(steps)
    request.cancel()
    await asyncio.wait([request])


@pytest.mark.parametrize("steps", range(1, 24, 2))
async def test_it_is_cancelled_even_if_the_client_leaves_meanwhile(start: Start, steps: int) -> None:
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.workers)
    await until(lambda: here.inference.streaming == 1)
    await leave(here, steps)
    held = await here.jobs.find(ID)
    if held is not None and held.job.verdict is None:
        await here.workers.cancel(ID)  # it had not begun
    await until_ended(here)
    assert (await here.result())["status"] == "cancelled"


async def test_who_leaves_while_it_is_cancelled_does_not_leave_it_to_be_recovered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_BREATH", LEASE - 1)
    here = start(size=0)
    await here.submit(here.workers)
    await leave(here, 6)
    held = await here.jobs.find(ID)
    assert held is not None
    assert held.job.verdict == "cancelled"
    await until_ended(here)


async def test_many_who_cancel_at_once(records: WatchedRecords, start: Start) -> None:
    processes = [start([text("And"), asyncio.Event()]) for _ in range(2)]
    await processes[0].submit(processes[0].workers)
    await until(lambda: any(process.inference.streaming for process in processes))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(process.workers.cancel(ID) for process in processes * 3))
    assert (await processes[0].result())["status"] == "cancelled"


@pytest.mark.parametrize("steps", range(0, 40, 2))
async def test_cancelling_and_finishing_race(records: WatchedRecords, start: Start, steps: int) -> None:
    here, there = start(HELLO), Process(records)
    await here.submit(here.workers)
    await until(lambda: len(here.inference.requests) == 1)
    await turns(steps)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(here.workers.cancel(ID), there.workers.cancel(ID))
    await until_ended(here)
    assert (await here.result())["status"] in ("cancelled", "completed")


# Readers


async def test_readers_are_let_go_when_the_process_ends(records: WatchedRecords, start: Start) -> None:
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.workers)
    await until(lambda: here.inference.streaming == 1)

    async def read() -> list[Json]:
        return [event async for batch in here.workers.follow(ID, -1, PATIENCE) for event in batch]

    reader = asyncio.create_task(read())
    await turns(20)
    here.workers.hang_up()
    async with asyncio.timeout(PATIENCE):
        events = await reader
    assert "response.completed" not in [event["type"] for event in events]


async def test_readers_stay_while_the_store_is_away(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start([text("Hel"), gate, text("lo"), finish(tokens=2)])
    await here.submit(here.workers)
    events: list[Json] = []
    silences = 0

    async def read() -> None:
        nonlocal silences
        async for batch in here.workers.follow(ID, -1, PATIENCE):
            events.extend(batch)
            silences += not batch

    reader = asyncio.create_task(read())
    await until(lambda: any(event.get("delta") == "Hel" for event in events))
    records.away = True
    gate.set()
    await until(lambda: silences > 2)
    records.away = False
    async with asyncio.timeout(PATIENCE):
        await reader
    assert events == await here.journal.read_all(ID, -1)
    assert output_text(events[-1]["response"]) == "Hello"


async def test_readers_are_let_go_when_the_process_ends_without_its_store(
    records: WatchedRecords, start: Start
) -> None:
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.workers)
    await until(lambda: here.inference.streaming == 1)
    batches = here.workers.follow(ID, -1, PATIENCE)
    await anext(batches)
    records.away = True
    here.workers.hang_up()
    async with asyncio.timeout(PATIENCE):
        assert [events async for events in batches if events] == []


# For clients that wait


async def test_what_a_client_waits_for_needs_no_place(start: Start) -> None:
    held = asyncio.Event()
    busy = start([text("on"), held, finish()], HELLO, size=1)
    await busy.submit(busy.workers, "resp_2")
    await until(lambda: busy.inference.streaming == 1)
    await busy.open(busy.workers)
    await until_ended(busy)
    assert said(await busy.result(background=False)) == ["Hello"]
    held.set()
    await until_ended(busy, "resp_2")


async def test_what_a_client_waits_for_takes_no_place(start: Start) -> None:
    held = asyncio.Event()
    busy = start([text("on"), held, finish()], HELLO, size=1)
    await busy.open(busy.workers)
    await busy.submit(busy.workers, "resp_2")
    await until_ended(busy, "resp_2")
    held.set()
    await until_ended(busy)
    assert said(await busy.result(background=False)) == ["on"]


async def test_of_what_goes_on_without_its_client_there_is_only_so_much(start: Start) -> None:
    held = asyncio.Event()
    busy = start(*[[text("on"), held, finish()]] * 4, size=1, waiting=2)
    opened = [busy.open(busy.workers, f"resp_{number}", patience=0.01) for number in range(4)]
    found = await asyncio.gather(*opened, return_exceptions=True)
    refused = [each for each in found if isinstance(each, ApiError)]
    assert [(each.status, each.code) for each in refused] == [(429, "rate_limit_exceeded")] * 2
    assert "responses with an Idempotency-Key" in str(refused[0])
    with pytest.raises(
        ApiError, match="responses with an Idempotency-Key"
    ):  # two are made, whether clients wait or not
        await busy.open(busy.workers, "resp_5", patience=0.01)
    held.set()
    for number in range(4):
        await until_ended(busy, f"resp_{number}")
    await busy.open(busy.workers, "resp_4")
    await until_ended(busy, "resp_4")


async def test_a_refusal_takes_no_place(start: Start) -> None:
    process = start(*[ApiError(429, "Slow down.")] * 3, waiting=1)
    for _ in range(3):
        with pytest.raises(ApiError, match=r"Slow down\."):
            await process.open(process.workers)
        await until(lambda: not process.workers._attempts)


async def test_a_refusal_leaves_nothing(records: WatchedRecords, start: Start) -> None:
    process = start(ApiError(429, "Slow down."), on=Watched(records))
    with pytest.raises(ApiError, match=r"Slow down\."):
        await process.open(process.workers)
    assert [key for key, _ in await records.range("!", "~", limit=99) if key[0] not in "px"] == []


async def test_a_refusal_is_heard_though_the_store_is_away(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = asyncio.Event()
    process = start(ApiError(429, "Slow down."), accept=accept)
    opening = asyncio.create_task(process.open(process.workers))
    await until(lambda: bool(process.inference.requests))
    records.away = True
    accept.set()
    monkeypatch.setattr(crew, "_SILENT", 0.0)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ApiError, match=r"Slow down\."):
            await opening


async def test_a_refusal_that_comes_late_is_the_responses(records: WatchedRecords, start: Start) -> None:
    accept = asyncio.Event()
    process = start(ApiError(429, "Slow down."), accept=accept)
    await process.open(process.workers, patience=0.01)
    accept.set()
    await until_ended(process)
    assert (await process.result(background=False))["error"]["message"] == "Slow down."
    assert [key for key, _ in await records.range("y/", "y0", limit=9)] == ["y/key"]


async def test_what_its_server_did_not_begin_another_does(clock: Clock, start: Start) -> None:
    dying = start(HELLO, accept=asyncio.Event())
    opening = asyncio.create_task(dying.open(dying.workers))
    await until(lambda: bool(dying.inference.requests))
    await dying.kill()
    await opening
    clock.now += LEASE + 1
    other = start(HELLO)
    await until_ended(other)
    assert said(await other.result(background=False)) == ["Hello"]


async def test_who_waits_is_told_when_it_has_begun(start: Start) -> None:
    accept = asyncio.Event()
    process, other = start(HELLO, accept=accept), start()
    opening = asyncio.create_task(process.open(process.workers))
    await until(lambda: bool(process.inference.requests))
    begun = asyncio.create_task(other.workers.begun(ID))
    await turns(20)
    assert [begun.done(), opening.done()] == [False, False]
    accept.set()
    await begun
    await opening
    await other.workers.ended(ID)
    assert said(await other.result(background=False)) == ["Hello"]


async def test_who_waits_is_let_go_when_the_server_ends(start: Start) -> None:
    process, other = start(HELLO, accept=asyncio.Event()), start()
    opening = asyncio.create_task(process.open(process.workers))
    await until(lambda: bool(process.inference.requests))
    waiting = [asyncio.create_task(each) for each in (other.workers.begun(ID), other.workers.ended(ID))]
    await turns(20)
    assert not any(each.done() for each in waiting)
    other.workers.hang_up()
    await asyncio.wait(waiting)
    await process.workers.stop()
    await opening
