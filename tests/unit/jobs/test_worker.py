"""Workers claim queued jobs within their limits, recover stalled jobs of other workers, and finish every job."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from llama_stack_responses.concurrency.share import Share
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation.loop import Generation
from llama_stack_responses.intervals import DEFAULT, Intervals
from llama_stack_responses.jobs import queue as jobs
from llama_stack_responses.jobs import runner
from llama_stack_responses.jobs.queue import QUEUE
from llama_stack_responses.jobs.work_class import Work, WorkClass
from llama_stack_responses.store.records import Condition, Delete, Op, Put
from tests.support.inference import Round, finish, text
from tests.support.memory import count_of, no_garbage_collection
from tests.support.records import WatchedRecords
from tests.support.waiting import turns, until
from tests.support.wire import output_text
from tests.unit.jobs.harness import ANNA, HURRIED, ID, PATIENCE, ROUNDS, SAID, ProcessHarness, shared, texts_of

type Json = dict[str, Any]

HELLO: Round = [text("Hel"), text("lo"), finish(tokens=2)]


class Clock:
    """The store's clock."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records(clock: Clock) -> WatchedRecords:
    return shared(clock=clock)


class Process(ProcessHarness):
    """A process with a worker."""

    def __init__(
        self,
        records: WatchedRecords,
        *rounds: Round,
        accept: asyncio.Event | None = None,
        intervals: Intervals = HURRIED,
        beginning_seconds: float = 0.001,
        **options: Any,
    ) -> None:
        super().__init__(records, *rounds, accept=accept, intervals=intervals, beginning_seconds=beginning_seconds)
        self.background = self.background_jobs(**options)

    async def kill(self) -> None:
        """End all tasks without a hand-over."""
        tasks = [*self.background.worker._tasks, *self.background.worker._runners]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class LostReplyRecords(WatchedRecords):
    """Records that apply the first claim but report a lost connection."""

    unheard = 0

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        if not self.unheard and any(isinstance(op, Put) and op.key.startswith("h/") for op in ops):
            self.unheard += 1
            raise ApiError(503, "The connection was lost.")


class YieldingRecords(WatchedRecords):
    """Records that sleep after each commit, so that other tasks see the jobs in between."""

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        await asyncio.sleep(0.02)


type Start = Callable[..., Process]


@pytest.fixture
async def start(records: WatchedRecords) -> AsyncIterator[Start]:
    """Start processes on the store, and stop them after the test."""
    started: list[Process] = []

    def begin(*rounds: Round, on: WatchedRecords = records, **options: Any) -> Process:
        process = Process(on, *rounds, **options)
        process.background.start()
        started.append(process)
        return process

    yield begin
    records.away = False
    for process in started:
        await process.background.worker.stop()


def lines_about_job(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines that name the job."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if ID in line]


async def until_ended(harness: ProcessHarness, response_id: str = ID) -> None:
    """Wait until the job is gone."""
    async with asyncio.timeout(PATIENCE):
        while await harness.jobs.find(response_id):
            await turns(1)


# Running


async def test_queued_job_completes(records: WatchedRecords, start: Start) -> None:
    here = start(*ROUNDS)
    await here.submit(here.background)
    batches = here.background.events.follow(ID, -1, PATIENCE)
    events = [event async for batch in batches for event in batch]
    final = await here.result()
    assert (final["status"], texts_of(final)) == ("completed", SAID)
    assert events == await here.event_log.read_all(ID, -1)


async def test_job_is_work_of_its_user(start: Start) -> None:
    here = start(HELLO)
    await here.submit(here.background)
    await until_ended(here)
    assert here.inference.shares == [Share(ANNA.identity)]


async def test_next_job_of_a_user_begins_when_the_model_server_has_accepted_the_first(start: Start) -> None:
    accept = asyncio.Event()
    here = start(HELLO, HELLO, size=2, accept=accept, beginning_seconds=3600)
    for name in ("resp_1", "resp_2"):
        await here.submit(here.background, name)
    await until(lambda: here.background.worker.running == 2 and bool(here.inference.requests))
    await turns(100)
    assert len(here.inference.requests) == 1
    accept.set()
    for name in ("resp_1", "resp_2"):
        await until_ended(here, name)
        assert texts_of(await here.result(name)) == ["Hello"]
    assert here.beginnings.is_idle


async def test_job_whose_input_has_no_room_waits_until_another_ends(start: Start) -> None:
    gate = asyncio.Event()
    here = start([text("a"), gate, finish()], HELLO, size=2, held_bytes=60_000)
    for name in ("resp_1", "resp_2"):
        await here.submit(here.background, name, input="x" * 40_000)
    await until(lambda: here.background.worker.running == 2 and here.inference.streaming == 1)
    await turns(1_000)
    assert len(here.inference.requests) == 1
    gate.set()
    for name in ("resp_1", "resp_2"):
        await until_ended(here, name)
        assert (await here.result(name))["status"] == "completed"


async def test_job_whose_input_cannot_be_read_yet_blocks_no_other_and_is_counted_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = start(HELLO, HELLO, size=2, held_bytes=100_000)
    history, names, fails = here.archive.history, list[str | None](), True

    async def read(name: str | None, allowance: Any = None, hold: Callable[[int], object] | None = None) -> list[Json]:
        names.append(name)
        if fails and name == names[0]:
            assert hold
            hold(10_000)
            raise ApiError(503, "The query took too long.")
        return await history(name, allowance, hold)

    monkeypatch.setattr(here.archive, "history", read)
    await here.submit(here.background, "resp_1", input="first")
    await until(lambda: len(names) > 20)
    await here.submit(here.background, "resp_2", input="x" * 40_000)
    await until_ended(here, "resp_2")
    fails = False
    await until_ended(here, "resp_1")
    for name in ("resp_1", "resp_2"):
        assert (await here.result(name))["status"] == "completed"


async def test_job_whose_input_alone_exceeds_the_limit_runs(start: Start) -> None:
    here = start(HELLO, held_bytes=1_000)
    await here.submit(here.background, input="x" * 40_000)
    await until_ended(here)
    assert (await here.result())["status"] == "completed"


async def test_input_of_cancelled_job_is_released_without_garbage_collection(start: Start) -> None:
    gc.collect()
    before = count_of(Generation)
    with no_garbage_collection():
        here = start([text("a"), asyncio.Event(), finish()])
        await here.submit(here.background)
        await until(lambda: here.inference.streaming == 1)
        assert count_of(Generation) == before + 1
        await here.background.cancel(ID)
        await until(lambda: count_of(Generation) == before)


async def test_health_check_fails_when_worker_task_has_ended(start: Start) -> None:
    here = start(*ROUNDS)
    await here.submit(here.background)
    await until_ended(here)
    await here.background.worker.check()
    here.background.worker._tasks[0].cancel()
    await turns(2)
    with pytest.raises(ApiError, match="Restart the server") as refused:
        await here.background.worker.check()
    assert refused.value.status == 503


async def test_job_queued_by_other_process_completes(records: WatchedRecords, start: Start) -> None:
    there = Process(records)
    await there.submit(there.background)
    here = start(*ROUNDS)
    await until_ended(here)
    assert texts_of(await here.result()) == SAID


async def test_worker_runs_no_more_jobs_than_its_size(start: Start) -> None:
    gate = asyncio.Event()
    here = start(*[[text("a"), gate, finish()]] * 5, size=2)
    for number in range(5):
        await here.submit(here.background, f"resp_{number}")
    await until(lambda: here.inference.streaming == 2)
    await turns(50)
    assert here.inference.streaming == 2
    assert len(here.inference.requests) == 2
    gate.set()
    for number in range(5):
        await until_ended(here, f"resp_{number}")
        assert (await here.result(f"resp_{number}"))["status"] == "completed"


async def test_owner_runs_no_more_jobs_than_its_share(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start(*[[text("a"), gate, finish()]] * 5, size=3, share=2)
    for number in range(4):
        await here.submit(here.background, f"resp_{number}")
    await until(lambda: here.inference.streaming == 2)
    await turns(50)
    assert here.inference.streaming == 2
    async with here.jobs.enqueued("resp_b", Owner("bert"), {"model": "m", "input": "hi"}) as ops:
        await records.commit(ops)
    here.background._notifier.notify(QUEUE)
    while (waiting := await here.jobs.find("resp_b")) and waiting.state.worker is None:
        await turns(1)
    assert len(here.inference.requests) == 2
    gate.set()
    for number in range(4):
        await until_ended(here, f"resp_{number}")


async def test_jobs_that_can_wait_leave_room_for_others(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start(*[[text("a"), gate, finish()]] * 5, size=3, deferred=2)
    for number in range(3):
        await here.submit(here.background, f"resp_{number}", work=Work(WorkClass.FLEX))
    await until(lambda: here.inference.streaming == 2)
    await turns(50)
    assert here.inference.streaming == 2
    await here.submit(here.background, "resp_3")
    await until(lambda: here.inference.streaming == 3)
    running = [await here.jobs.find(f"resp_{number}") for number in range(4)]
    assert [job is not None and job.state.worker is not None for job in running] == [True, True, False, True]
    gate.set()
    for number in range(4):
        await until_ended(here, f"resp_{number}")


async def test_model_at_its_limit_leaves_workers_to_others(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start(*[[text("a"), gate, finish()]] * 5, size=4, at_once={"slow-*": 2, "*": 3})
    for number in range(3):
        await here.submit(here.background, f"resp_{number}", model="slow-1")
    await until(lambda: here.inference.streaming == 2)
    await turns(50)
    assert here.inference.streaming == 2
    for number in (3, 4):
        await here.submit(here.background, f"resp_{number}", model="m")
    await until(lambda: here.inference.streaming == 4)
    running = [await here.jobs.find(f"resp_{number}") for number in range(5)]
    assert [job is not None and job.state.worker is not None for job in running] == [True, True, False, True, True]
    gate.set()
    for number in range(5):
        await until_ended(here, f"resp_{number}")


async def test_each_job_runs_once_across_processes(records: WatchedRecords, start: Start) -> None:
    processes = [start(*[HELLO] * 12) for _ in range(3)]
    await asyncio.gather(*(processes[n % 3].submit(processes[n % 3].background, f"resp_{n}") for n in range(12)))
    for number in range(12):
        await until_ended(processes[0], f"resp_{number}")
        assert texts_of(await processes[0].result(f"resp_{number}")) == ["Hello"]
    assert sum(len(process.inference.requests) for process in processes) == 12


async def test_full_queue_refuses_job_and_stores_nothing(records: WatchedRecords) -> None:
    harness = Process(records, waiting=1)
    await harness.submit(harness.background)
    with pytest.raises(ApiError) as refused:
        await harness.submit(harness.background, "resp_2")
    assert refused.value.status == 429
    assert await harness.archive.load("resp_2") is None


# Dead workers


async def test_job_of_dead_process_continues_in_other_process(
    records: WatchedRecords, clock: Clock, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llama_stack_responses.jobs")
    dies = start(ROUNDS[0], [text("And"), asyncio.Event()])
    await dies.submit(dies.background)
    reader = asyncio.create_task(dies.read())
    await until(lambda: dies.inference.sent == 6)
    await dies.kill()
    lives = start(*ROUNDS[1:])
    await turns(50)
    assert await lives.jobs.find(ID)
    await passes(clock, DEFAULT.lease_seconds + 1, lives)
    await until_ended(lives)
    final = await lives.result(taken_over=True)
    assert texts_of(final, "completed") == SAID
    async with asyncio.timeout(PATIENCE):
        assert await reader == await lives.event_log.read_all(ID, -1)
    dead = dies.background.worker_id
    assert lines_about_job(caplog) == [
        f"requeued a job because the lease of its worker expired: {ID} (worker {dead})",
        f"resumed a job: {ID} (start 2, round 2)",
    ]


async def test_worker_that_just_started_does_not_recover_jobs_yet(records: WatchedRecords, start: Start) -> None:
    """A worker leaves the job of an expired lease alone while it renews its own lease repeatedly."""
    harness = Process(records)
    await harness.submit(harness.background)
    job = await harness.claim("other")
    here = start(*ROUNDS, intervals=replace(HURRIED, grace_seconds=PATIENCE))
    await renewed(here, times=5)
    assert await harness.jobs.find(ID) == job


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
async def test_worker_whose_clock_jumped_leaves_others_time_to_renew_their_leases(
    records: WatchedRecords, clock: Clock, start: Start, seconds: float
) -> None:
    harness = Process(records)
    await harness.jobs.heartbeat("other")
    await harness.submit(harness.background)
    job = await harness.claim("other")
    here = start(*ROUNDS)
    await renewed(here, times=2)
    # As after a sleep of the machine: all leases expire at once, or none does for an hour.
    clock.now += seconds
    await renewed(here, times=5)
    assert await harness.jobs.find(ID) == job
    await passes(clock, DEFAULT.lease_seconds + 1, here)
    await until_ended(here)


async def renewed(process: Process, times: int = 1) -> None:
    """Wait until a process has renewed its lease so many times from now on."""
    life = f"p/{process.background.worker_id}"

    async def version() -> int:
        found = (await process.records.get_many([life])).get(life)
        return found.version if found else 0

    before = await version()
    async with asyncio.timeout(PATIENCE):
        while await version() < before + times:
            await turns(1)


async def passes(clock: Clock, seconds: float, alive: Process) -> None:
    """Let seconds pass on the store's clock, in which a process renews its lease as usual."""
    for _ in range(round(seconds)):
        clock.now += 1.0
        await renewed(alive)


async def test_stopping_process_hands_over_its_job(records: WatchedRecords, start: Start) -> None:
    first = start(ROUNDS[0], [text("And"), asyncio.Event()])
    await first.submit(first.background)
    await until(lambda: first.inference.sent == 6)
    async with asyncio.timeout(PATIENCE):
        await first.background.worker.stop()
    assert first.inference.streaming == 0
    job = await first.jobs.find(ID)
    assert job is not None
    assert (job.state.worker, job.state.tries) == (None, 0)
    second = start(*ROUNDS[1:])
    await until_ended(second)
    assert texts_of(await second.result(taken_over=True), "completed") == SAID


async def test_job_claimed_during_hand_over_is_released_unstarted(clock: Clock) -> None:
    claimed, go_on = asyncio.Event(), asyncio.Event()

    class LateReply(WatchedRecords):
        """Records whose reply to a claim waits."""

        async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
            await super().commit(ops, conditions)
            if any(isinstance(op, Put) and op.key.startswith("h/") for op in ops):
                claimed.set()
                await go_on.wait()

    process = Process(LateReply(shared(clock=clock)), HELLO)
    await process.submit(process.background)
    process.background.start()
    await asyncio.wait_for(claimed.wait(), PATIENCE)
    process.background.worker.hand_over()
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        while (job := await process.jobs.find(ID)) and job.state.worker:
            await turns(1)
    assert job is not None
    assert job.state.tries == 0
    assert process.inference.sent == 0
    await process.background.worker.stop()


async def test_process_stops_during_store_outage(records: WatchedRecords, start: Start) -> None:
    first = start([text("And"), asyncio.Event()])
    await first.submit(first.background)
    await until(lambda: first.inference.sent == 1)
    records.away = True
    async with asyncio.timeout(PATIENCE):
        await first.background.worker.stop()
    assert first.inference.streaming == 0


async def test_worker_whose_job_was_taken_over_closes_provider_stream(
    records: WatchedRecords, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llama_stack_responses.jobs")
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.background)
    await until(lambda: here.inference.streaming == 1)
    await here.jobs.heartbeat("other")
    assert await here.jobs.claim_to_end(ID, "other", "cancelled")
    await until(lambda: here.inference.streaming == 0)
    assert f"dropped a job that another worker has taken over: {ID}" in lines_about_job(caplog)


# Lost replies and lost leases


async def test_job_that_a_worker_claims_again_after_its_claim_was_lost_runs_once(
    records: WatchedRecords, start: Start
) -> None:
    """A failover of the store has lost the claim: the second one gives the job the same version."""
    asking = Process(records)
    await asking.submit(asking.background)
    waiting = await records.range("!", "~", limit=1000)
    rarely, rounds = replace(DEFAULT, poll_seconds=60.0), ([text("And"), asyncio.Event()] for _ in range(2))
    here = start(*rounds, intervals=rarely)
    while not any("delta" in event for event in await here.event_log.read_all(ID, -1)):
        await turns(1)  # then it has nothing to write
    await records.commit([Delete(f"j/{ID}"), Delete(f"h/{here.background.worker_id}/{ID}")])
    await records.commit([Put(key, row.value) for key, row in waiting if key[0] in "jq"])
    here.background.worker._notifier.notify(QUEUE)
    await until(lambda: here.inference.sent == 2)
    await turns(20)
    assert here.inference.streaming == 1


async def test_claimed_job_runs_although_reply_was_lost(records: WatchedRecords, start: Start) -> None:
    harness = Process(records)
    await harness.submit(harness.background)
    deaf = LostReplyRecords(records)
    here = start(*ROUNDS, on=deaf)
    await until_ended(here)
    assert deaf.unheard == 1
    assert texts_of(await here.result()) == SAID


async def lose_the_store(here: Process, records: WatchedRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the store offline until the process has ended its streams."""
    records.away = True
    with monkeypatch.context() as hurry:
        hurry.setattr(here.background.worker, "_intervals", replace(HURRIED, lease_lost_seconds=0.0))
        await until(lambda: here.inference.streaming == 0)
    records.away = False


async def test_worker_that_lost_its_lease_resumes_its_jobs(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llama_stack_responses.jobs")
    here = start(ROUNDS[0], [text("And"), asyncio.Event()], *ROUNDS[1:])
    await here.submit(here.background)
    await until(lambda: here.inference.sent == 6)
    await lose_the_store(here, records, monkeypatch)
    await until_ended(here)
    assert texts_of(await here.result(), "completed") == SAID
    assert lines_about_job(caplog) == [
        f"dropped a job because the lease of this worker expired: {ID}",
        f"requeued a job that this worker did not run: {ID}",
        f"resumed a job: {ID} (start 2, round 2)",
    ]


def has_sent(process: Process, deltas: int) -> bool:
    """Return whether the provider has sent this many deltas to the process."""
    return process.inference.sent == deltas


async def test_store_outages_in_one_round_do_not_count_as_tries(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = jobs.MAX_TRIES + 2
    here = start(*[[text("Hel"), asyncio.Event()]] * outages, HELLO)
    await here.submit(here.background)
    for outage in range(1, outages + 1):
        await until(partial(has_sent, here, outage))
        await lose_the_store(here, records, monkeypatch)
    await until_ended(here)
    final = await here.result()
    assert (final["status"], texts_of(final, "completed")) == ("completed", ["Hello"])


async def test_job_waits_out_short_store_outage(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start([text("Hel"), gate, text("lo"), finish(tokens=2)])
    await here.submit(here.background)
    await until(lambda: here.inference.sent == 1)
    records.away = True
    gate.set()
    await until(lambda: here.inference.streaming == 0)
    records.away = False
    await until_ended(here)
    assert texts_of(await here.result()) == ["Hello"]
    assert len(here.inference.requests) == 1


async def test_crashing_job_is_retried_then_failed(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    here = start(*ROUNDS)
    with monkeypatch.context() as patch:
        patch.setattr(here.archive, "history", broken)
        patch.setattr(runner, "close_cut", broken)
        await here.submit(here.background)

        async with asyncio.timeout(PATIENCE):
            while (job := await here.jobs.find(ID)) and job.state.tries <= jobs.MAX_TRIES:
                await turns(1)
    await until_ended(here)
    final = await here.result()
    assert (final["status"], texts_of(final)) == ("failed", [])
    assert here.inference.requests == []
    assert "ZeroDivisionError" in caplog.text


# Cancelling


@pytest.mark.parametrize("where", ["here", "there"])
async def test_cancel_ends_job_in_any_process(records: WatchedRecords, start: Start, where: str) -> None:
    here, there = start(ROUNDS[0], [text("And"), asyncio.Event()]), Process(records)
    await here.submit(here.background)
    await until(lambda: here.inference.sent == 6)
    async with asyncio.timeout(PATIENCE):
        await (here if where == "here" else there).background.cancel(ID)
    await until(lambda: here.inference.streaming == 0)
    final = await here.result()
    assert (final["status"], texts_of(final, "completed")) == ("cancelled", SAID[:1])


async def test_cancelled_queued_job_never_runs(records: WatchedRecords) -> None:
    harness = Process(records)
    await harness.submit(harness.background)
    await harness.background.cancel(ID)
    assert (await harness.result())["status"] == "cancelled"
    await harness.background.cancel(ID)
    assert (await harness.result())["status"] == "cancelled"


async def leave(here: Process, steps: int) -> None:
    """Cancel the response, and disconnect after `steps` iterations of the event loop."""
    request = asyncio.create_task(here.background.cancel(ID))
    await turns(steps)
    request.cancel()
    await asyncio.wait([request])


@pytest.mark.parametrize("steps", range(1, 24, 2))
async def test_cancel_takes_effect_although_client_disconnects(start: Start, steps: int) -> None:
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.background)
    await until(lambda: here.inference.streaming == 1)
    await leave(here, steps)
    job = await here.jobs.find(ID)
    if job is not None and job.state.verdict is None:
        await here.background.cancel(ID)  # the request to cancel had not begun
    await until_ended(here)
    assert (await here.result())["status"] == "cancelled"


async def test_interrupted_cancel_is_finished_without_waiting_for_recovery(
    start: Start,
) -> None:
    here = start(size=0, intervals=replace(HURRIED, heartbeat_seconds=DEFAULT.lease_seconds - 1))
    await here.submit(here.background)
    await here.jobs.release(await here.claim())  # one that was begun is ended by a worker
    await leave(here, 10)
    job = await here.jobs.find(ID)
    assert job is not None
    assert job.state.verdict == "cancelled"
    await until_ended(here)


async def test_concurrent_cancels_all_succeed(records: WatchedRecords, start: Start) -> None:
    processes = [start([text("And"), asyncio.Event()]) for _ in range(2)]
    await processes[0].submit(processes[0].background)
    await until(lambda: any(process.inference.streaming for process in processes))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(process.background.cancel(ID) for process in processes * 3))
    assert (await processes[0].result())["status"] == "cancelled"


@pytest.mark.parametrize("steps", range(0, 40, 2))
async def test_cancel_racing_completion_ends_in_one_status(records: WatchedRecords, start: Start, steps: int) -> None:
    here, there = start(HELLO), Process(records)
    await here.submit(here.background)
    await until(lambda: len(here.inference.requests) == 1)
    await turns(steps)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(here.background.cancel(ID), there.background.cancel(ID))
    await until_ended(here)
    assert (await here.result())["status"] in ("cancelled", "completed")


# Readers


async def test_readers_are_released_when_process_ends(records: WatchedRecords, start: Start) -> None:
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.background)
    await until(lambda: here.inference.streaming == 1)

    async def read() -> list[Json]:
        return [event async for batch in here.background.events.follow(ID, -1, PATIENCE) for event in batch]

    reader = asyncio.create_task(read())
    await turns(20)
    here.background.events.close()
    async with asyncio.timeout(PATIENCE):
        events = await reader
    assert "response.completed" not in [event["type"] for event in events]


async def test_readers_stay_connected_during_store_outage(records: WatchedRecords, start: Start) -> None:
    gate = asyncio.Event()
    here = start([text("Hel"), gate, text("lo"), finish(tokens=2)])
    await here.submit(here.background)
    events: list[Json] = []
    silences = 0

    async def read() -> None:
        nonlocal silences
        async for batch in here.background.events.follow(ID, -1, PATIENCE):
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
    assert events == await here.event_log.read_all(ID, -1)
    assert output_text(events[-1]["response"]) == "Hello"


async def test_readers_are_released_when_process_ends_during_store_outage(
    records: WatchedRecords, start: Start
) -> None:
    here = start([text("And"), asyncio.Event()])
    await here.submit(here.background)
    await until(lambda: here.inference.streaming == 1)
    batches = here.background.events.follow(ID, -1, PATIENCE)
    await anext(batches)
    records.away = True
    here.background.events.close()
    async with asyncio.timeout(PATIENCE):
        assert [events async for events in batches if events] == []


# Detached responses that a client waits for


async def test_awaited_response_runs_while_worker_is_full(start: Start) -> None:
    resume = asyncio.Event()
    busy = start([text("on"), resume, finish()], HELLO, size=1)
    await busy.submit(busy.background, "resp_2")
    await until(lambda: busy.inference.streaming == 1)
    await busy.open(busy.background)
    await until_ended(busy)
    assert texts_of(await busy.result(background=False)) == ["Hello"]
    resume.set()
    await until_ended(busy, "resp_2")


async def test_awaited_response_takes_no_worker_slot(start: Start) -> None:
    resume = asyncio.Event()
    busy = start([text("on"), resume, finish()], HELLO, size=1)
    await busy.open(busy.background)
    await busy.submit(busy.background, "resp_2")
    await until_ended(busy, "resp_2")
    resume.set()
    await until_ended(busy)
    assert texts_of(await busy.result(background=False)) == ["on"]


async def test_awaited_responses_are_limited_per_process(start: Start) -> None:
    resume = asyncio.Event()
    busy = start(*[[text("on"), resume, finish()]] * 4, size=1, waiting=2)
    opened = [busy.open(busy.background, f"resp_{number}", acceptance_seconds=0.01) for number in range(4)]
    found = await asyncio.gather(*opened, return_exceptions=True)
    refused = [each for each in found if isinstance(each, ApiError)]
    assert [(each.status, each.code) for each in refused] == [(429, "rate_limit_exceeded")] * 2
    assert "responses with an Idempotency-Key" in str(refused[0])
    with pytest.raises(
        ApiError, match="responses with an Idempotency-Key"
    ):  # two are running, whether clients wait or not
        await busy.open(busy.background, "resp_5", acceptance_seconds=0.01)
    resume.set()
    for number in range(4):
        await until_ended(busy, f"resp_{number}")
    await busy.open(busy.background, "resp_4")
    await until_ended(busy, "resp_4")


async def test_refused_response_frees_its_place(start: Start) -> None:
    process = start(*[ApiError(429, "Slow down.")] * 3, waiting=1)
    for _ in range(3):
        with pytest.raises(ApiError, match=r"Slow down\."):
            await process.open(process.background)
        await until(lambda: not process.background.worker._runners)


async def test_refused_response_leaves_no_records(records: WatchedRecords, start: Start) -> None:
    process = start(ApiError(429, "Slow down."), on=YieldingRecords(records))
    with pytest.raises(ApiError, match=r"Slow down\."):
        await process.open(process.background)
    assert [key for key, _ in await records.range("!", "~", limit=99) if key[0] not in "px"] == []


async def test_refusal_reaches_client_during_store_outage(
    records: WatchedRecords, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = asyncio.Event()
    process = start(ApiError(429, "Slow down."), accept=accept)
    acceptance = asyncio.create_task(process.open(process.background))
    await until(lambda: bool(process.inference.requests))
    [running] = process.background.worker._runners.values()
    records.away = True
    accept.set()
    # If the lease is lost before the refusal, the response is left to another server.
    await until(lambda: running.concluding)
    monkeypatch.setattr(process.background.worker, "_intervals", replace(HURRIED, lease_lost_seconds=0.0))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ApiError, match=r"Slow down\."):
            await acceptance


async def test_late_refusal_fails_response(records: WatchedRecords, start: Start) -> None:
    accept = asyncio.Event()
    process = start(ApiError(429, "Slow down."), accept=accept)
    await process.open(process.background, acceptance_seconds=0.01)
    accept.set()
    await until_ended(process)
    assert (await process.result(background=False))["error"]["message"] == "Slow down."
    assert [key for key, _ in await records.range("y/", "y0", limit=9)] == ["y/key"]


async def test_response_of_dead_server_is_run_by_other_server(clock: Clock, start: Start) -> None:
    dying = start(HELLO, accept=asyncio.Event())
    acceptance = asyncio.create_task(dying.open(dying.background))
    await until(lambda: bool(dying.inference.requests))
    await dying.kill()
    await acceptance
    clock.now += DEFAULT.lease_seconds + 1
    other = start(HELLO)
    await until_ended(other)
    assert texts_of(await other.result(background=False)) == ["Hello"]


async def test_begun_waits_until_provider_accepts_in_other_process(start: Start) -> None:
    accept = asyncio.Event()
    process, other = start(HELLO, accept=accept), start()
    acceptance = asyncio.create_task(process.open(process.background))
    await until(lambda: bool(process.inference.requests))
    begun = asyncio.create_task(other.background.events.begun(ID))
    await turns(20)
    assert [begun.done(), acceptance.done()] == [False, False]
    accept.set()
    await begun
    await acceptance
    await other.background.events.ended(ID)
    assert texts_of(await other.result(background=False)) == ["Hello"]


async def test_begun_and_ended_waiters_are_released_when_server_ends(start: Start) -> None:
    process, other = start(HELLO, accept=asyncio.Event()), start()
    acceptance = asyncio.create_task(process.open(process.background))
    await until(lambda: bool(process.inference.requests))
    waiting = [
        asyncio.create_task(each) for each in (other.background.events.begun(ID), other.background.events.ended(ID))
    ]
    await turns(20)
    assert not any(each.done() for each in waiting)
    other.background.events.close()
    await asyncio.wait(waiting)
    await process.background.worker.stop()
    await acceptance


async def test_lease_is_renewed_while_many_event_logs_are_deleted(start: Start) -> None:
    here = start(HELLO)
    deleting = asyncio.Event()

    async def sweep(number: int = 0, *, limit: int = 10) -> int:
        deleting.set()
        await asyncio.sleep(0)
        return limit

    here.background.worker._event_log.sweep = sweep  # type: ignore[method-assign]
    await asyncio.wait_for(deleting.wait(), 60)
    heartbeat = here.background.worker._heartbeat
    renewed = heartbeat._renewed
    await until(lambda: heartbeat._renewed != renewed)


async def test_lease_is_renewed_while_stalled_work_is_looked_for(start: Start) -> None:
    """Many partitions, or one that does not answer, may take longer than a lease."""
    here = start(HELLO)
    looking = asyncio.Event()

    async def look(by: str) -> int:
        looking.set()
        return await asyncio.Future[int]()

    jobs = here.background.worker._jobs
    jobs.requeue_stalled = look  # type: ignore[method-assign]
    await asyncio.wait_for(looking.wait(), 60)
    renewed = asyncio.Event()

    async def heartbeat(worker: str, holding: Iterable[str] = ()) -> float:
        renewed.set()
        return 0.0

    jobs.heartbeat = heartbeat  # type: ignore[method-assign]
    await asyncio.wait_for(renewed.wait(), 60)
