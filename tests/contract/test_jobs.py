"""On every backend, a job belongs to at most one worker at a time, and is never lost before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.jobs.job import Job, name_of
from llama_stack_responses.jobs.queue import MAX_TRIES, JobQueue, PassedOver
from llama_stack_responses.store import codec
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Conflict, Delete, Put, Records, writes_of
from tests.contract.backends import Clock
from tests.support.leases import requeue_stalled
from tests.support.records import WatchedRecords, just_before_a_commit

pytestmark = [pytest.mark.needs("transactions"), pytest.mark.every_store]

type Json = dict[str, Any]

ANNA = Owner("anna")
BERT = Owner("bert", {"teams": ["search"]}, "shop")
BODY: Json = {"model": "m", "input": "..."}


class QueueHarness:
    """Common operations of these tests."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.jobs = JobQueue(records, limit=100)

    async def submit(self, *response_ids: str, owner: Owner = ANONYMOUS) -> None:
        for response_id in response_ids:
            async with self.jobs.enqueued(response_id, owner, BODY) as ops:
                await self.records.commit(ops)

    async def claim(self, worker: str = "w1") -> Job:
        job = await self.jobs.claim(worker)
        assert job is not None
        return job

    async def taken(self, owners: Set[str] = frozenset(), models: Set[str] = frozenset()) -> str | None:
        """Claim the next job that is not of these, and return its id."""
        job = await self.jobs.claim("w1", PassedOver(owners, models))
        return job.response_id if job else None

    async def finish(self, job: Job) -> bool:
        """Return whether the worker could still finish the job."""
        try:
            await self.records.commit([Put("done", b""), *job.delete_ops()], [job.fence])
        except Conflict:
            return False
        return True

    async def rows(self) -> list[str]:
        """Return all stored keys except those of owners' turns in the queue, and of what was announced."""
        rows = await self.records.range("!", "~", limit=1000)
        return [key for key, _ in rows if key[0] not in "uz" and not key.startswith(("oa/", "qh/"))]


@pytest.fixture
async def harness(records: Records) -> AsyncIterator[QueueHarness]:
    harness = QueueHarness(records)
    yield harness
    await harness.jobs.hints_written()


# Claiming


async def test_job_is_claimed_by_one_worker(harness: QueueHarness) -> None:
    ids = [f"resp_{number}" for number in range(12)]
    await harness.submit(*ids)

    async def checkpoint(worker: str) -> list[str]:
        taken = []
        while job := await harness.jobs.claim(worker):
            assert job.state.worker == worker
            taken.append(job.response_id)
        return taken

    taken = await asyncio.gather(*(checkpoint(f"w{number}") for number in range(6)))
    assert sorted(response_id for each in taken for response_id in each) == sorted(ids)


async def test_jobs_are_claimed_in_order_of_arrival(harness: QueueHarness, clock: Clock) -> None:
    for number, name in enumerate(["anna", "bert", "carl"]):
        clock.now += 1
        await harness.submit(f"resp_{number}", owner=Owner(name))
    assert [(await harness.claim()).response_id for _ in range(3)] == ["resp_0", "resp_1", "resp_2"]
    assert await harness.jobs.claim("w1") is None


async def test_many_jobs_of_one_owner_do_not_delay_other_owner(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit(*(f"resp_a{number}" for number in range(10)), owner=ANNA)
    clock.now += 1
    await harness.submit("resp_b", owner=BERT)
    taken = [(await harness.claim()).response_id for _ in range(11)]
    assert taken.index("resp_b") == 1
    assert [each for each in taken if each != "resp_b"] == [f"resp_a{number}" for number in range(10)]


async def test_concurrent_jobs_of_one_owner_do_not_delay_other_owner(harness: QueueHarness, clock: Clock) -> None:
    await asyncio.gather(*(harness.submit(f"resp_a{number}", owner=ANNA) for number in range(10)))
    clock.now += 1
    await harness.submit("resp_b", owner=BERT)
    taken = [(await harness.claim()).response_id for _ in range(11)]
    assert taken.index("resp_b") == 1


async def test_owners_take_turns_even_with_slow_workers(harness: QueueHarness, clock: Clock, records: Records) -> None:
    others = JobQueue(records, limit=100)  # of another server
    for number in range(40):
        await harness.submit(f"resp_a{number}", owner=ANNA)
    for _ in range(5):
        clock.now += 600
        await harness.claim()
    await harness.jobs.hints_written()
    for number in range(3):
        async with others.enqueued(f"resp_b{number}", BERT, BODY) as ops:
            await records.commit(ops)
    taken = [job.response_id[:6] for _ in range(6) if (job := await others.claim("w2"))]
    assert taken[0] == "resp_b"
    assert taken.count("resp_b") == 3


async def test_jobs_of_one_owner_write_no_common_key(harness: QueueHarness, records: Records) -> None:
    written: list[set[str]] = []
    for number in range(2):
        async with harness.jobs.enqueued(f"resp_{number}", ANNA, BODY) as ops:
            await records.commit(ops)
        written.append({op.key for op in writes_of(ops)})
    assert not written[0] & written[1]


async def test_unwritten_turns_count_within_process(harness: QueueHarness, clock: Clock) -> None:
    await asyncio.gather(*(harness.submit(f"resp_a{number}", owner=ANNA) for number in range(3)))
    await harness.submit("resp_b", owner=BERT)
    assert [(await harness.claim()).response_id[:6] for _ in range(2)].count("resp_b") == 1


async def test_second_job_is_not_starved_by_new_owners(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_a0", "resp_a1", owner=ANNA)
    waited = 0
    for number in range(100):
        clock.now += 1
        await harness.submit(f"resp_{number}", owner=Owner(f"new-{number}"))
        if (await harness.claim()).response_id == "resp_a1":
            waited = number
            break
    assert 1 < waited < 80


async def test_finished_burst_does_not_delay_later_jobs_of_owner(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_a0", "resp_a1", owner=ANNA)
    await harness.submit("resp_b0", owner=BERT)
    for _ in range(3):
        await harness.claim()
    await harness.submit("resp_a2", owner=ANNA)
    clock.now += 1
    await harness.submit("resp_b1", owner=BERT)
    assert [(await harness.claim()).response_id for _ in range(2)] == ["resp_a2", "resp_b1"]


async def test_passed_over_jobs_of_owner_stay_queued(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit(*(f"resp_a{number}" for number in range(7)), owner=ANNA)
    clock.now += 1
    job = await harness.claim()
    await harness.submit("resp_b0", "resp_b1", owner=BERT)
    passed_over = {name_of(Owner("anna", {"teams": ["other"]}))}
    assert [await harness.taken(passed_over) for _ in range(3)] == ["resp_b0", "resp_b1", None]
    await harness.jobs.release(job)
    assert await harness.taken(passed_over) is None
    assert await harness.taken() == job.response_id


async def test_job_behind_many_passed_over_jobs_is_found(harness: QueueHarness) -> None:
    harness.jobs = JobQueue(harness.records, limit=100, page_rows=3)
    await harness.submit(*(f"resp_a{number}" for number in range(10)), owner=ANNA)
    await harness.submit(*(f"resp_b{number}" for number in range(8)), owner=BERT)
    passed_over = {name_of(BERT)}
    assert [await harness.taken(passed_over) for _ in range(10)] == [f"resp_a{number}" for number in range(10)]
    assert await harness.taken(passed_over) is None


async def test_full_queue_refuses_job(records: Records) -> None:
    harness = QueueHarness(records)
    harness.jobs = JobQueue(records, limit=3)
    await harness.submit("resp_1", "resp_2", "resp_3")
    await refused(harness, "resp_4", ANONYMOUS, "Too many background responses are queued")
    await harness.claim()
    await harness.submit("resp_4")


async def test_quota_of_owner_counts_unfinished_jobs_only(records: Records) -> None:
    harness = QueueHarness(records)
    harness.jobs = JobQueue(records, limit=20, per_user=2)
    await harness.submit("resp_a0", "resp_a1", owner=ANNA)
    job = await harness.claim()
    await refused(harness, "resp_a2", Owner("anna", {"teams": ["other"]}), "You have 2 background responses")
    await harness.submit("resp_b0", owner=BERT)
    await harness.submit("resp_0", "resp_1", "resp_2", owner=ANONYMOUS)
    assert await harness.finish(job)
    await harness.submit("resp_a2", owner=ANNA)
    seized = await harness.jobs.claim_to_end("resp_a2", "w2", "cancelled")
    assert seized
    assert await harness.finish(seized)
    await harness.submit("resp_a3", owner=ANNA)


@pytest.mark.parametrize("owner", [ANNA, ANONYMOUS], ids=["their share", "the queue"])
async def test_concurrent_submissions_fill_quota_exactly(records: Records, owner: Owner) -> None:
    async def turn(_: str) -> None:
        await asyncio.sleep(0)

    harness = QueueHarness(WatchedRecords(records, before=turn, after=turn))
    harness.jobs = JobQueue(harness.records, limit=20 if owner is ANNA else 5, per_user=5)
    submitted = [harness.submit(f"resp_{number}", owner=owner) for number in range(15)]
    found = await asyncio.gather(*submitted, return_exceptions=True)
    assert [each.code for each in found if isinstance(each, ApiError)] == ["rate_limit_exceeded"] * 10
    assert len(await records.range("q/", "q0", limit=20)) == 5
    assert not harness.jobs._quota._prefixes


async def test_owner_below_the_fair_share_is_queued_although_others_fill_the_queue(records: Records) -> None:
    harness = QueueHarness(records)
    harness.jobs = JobQueue(records, limit=12, per_user=3, page_rows=5)
    for number in range(4):
        await harness.submit(*(f"resp_{number}{each}" for each in range(3)), owner=Owner(f"busy {number}"))
    assert len(await records.range("q/", "q0", limit=20)) == 12
    newcomers = [harness.submit(f"resp_a{number}", owner=ANNA) for number in range(3)]
    found = await asyncio.gather(*newcomers, return_exceptions=True)
    assert [each.code for each in found if isinstance(each, ApiError)] == ["rate_limit_exceeded"], "12 jobs, 5 owners"
    await refused(harness, "resp_03", Owner("busy 0"), "You have 3 background responses")
    await refused(harness, "resp_0", ANONYMOUS, "Too many background responses are queued")
    taken = [await harness.taken() for _ in range(5)]
    assert any(str(each).startswith("resp_a") for each in taken), "each owner has a turn"
    assert not harness.jobs._quota._prefixes


async def test_each_of_more_owners_than_the_queue_has_room_for_queues_one_job(records: Records) -> None:
    harness = QueueHarness(records)
    harness.jobs = JobQueue(records, limit=2, per_user=2)
    for number in range(5):
        await harness.submit(f"resp_{number}", owner=Owner(f"user {number}"))
    await refused(harness, "resp_5", Owner("user 4"), "Too many background responses are queued")


async def refused(harness: QueueHarness, response_id: str, owner: Owner, why: str) -> None:
    with pytest.raises(ApiError, match=why) as refusal:
        await harness.submit(response_id, owner=owner)
    assert (refusal.value.status, refusal.value.code) == (429, "rate_limit_exceeded")
    assert refusal.value.retry_after


async def test_claimed_job_has_owner_and_checkpoint(harness: QueueHarness) -> None:
    await harness.submit("resp_1", owner=BERT)
    waiting = await harness.jobs.find("resp_1")
    assert waiting is not None
    assert (waiting.state.owner, waiting.state.worker, waiting.state.tries) == (BERT, None, 0)
    job = await harness.claim()
    assert (job.state.owner, job.state.worker, job.state.tries, job.state.verdict) == (BERT, "w1", 1, None)
    assert await harness.jobs.find("resp_1") == job
    checkpoint = await harness.jobs.checkpoint("resp_1")
    assert checkpoint is not None
    assert (checkpoint.body, checkpoint.rounds, list(checkpoint.output)) == (BODY, 0, [])
    assert await harness.jobs.find("resp_2") is None
    assert await harness.jobs.checkpoint("resp_2") is None


# Stalled jobs


async def test_stalled_jobs_are_requeued_once(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_1", "resp_2", "resp_3")
    await harness.jobs.heartbeat("dies")
    await harness.jobs.heartbeat("lives")
    lost = [await harness.claim("dies"), await harness.claim("dies")]
    kept = await harness.claim("lives")
    assert await requeue_stalled(harness.jobs) == 0
    clock.now += DEFAULT.lease_seconds - 1
    await harness.jobs.heartbeat("lives")
    assert await requeue_stalled(harness.jobs) == 0
    clock.now += 2
    assert sum(await asyncio.gather(*(requeue_stalled(harness.jobs) for _ in range(4)))) == 2
    assert await harness.jobs.unchanged([*lost, kept]) == {kept.response_id}
    again = [await harness.claim("lives"), await harness.claim("lives")]
    assert {job.response_id for job in again} == {job.response_id for job in lost}
    assert [job.state.tries for job in again] == [2, 2]
    assert await harness.jobs.claim("lives") is None


async def test_claim_that_took_the_place_of_a_lost_one_is_another_one(harness: QueueHarness) -> None:
    """A failover has lost the first claim: the second one gives the job the same version."""
    await harness.submit("resp_1")
    waiting = await harness.records.range("!", "~", limit=1000)
    lost = await harness.claim("w1")
    await harness.records.commit([Delete("j/resp_1"), Delete("h/w1/resp_1")])
    await harness.records.commit([Put(key, row.value) for key, row in waiting if key[0] in "jq"])
    made = await harness.claim("w2")
    assert made.version == lost.version
    assert await harness.jobs.unchanged([made]) == {"resp_1"}
    assert await harness.jobs.unchanged([lost]) == set()


async def test_jobs_of_deregistered_worker_are_stalled_at_once(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    await harness.jobs.heartbeat("w1")
    await harness.claim("w1")
    await harness.jobs.deregister("w1")
    assert await requeue_stalled(harness.jobs) == 1


async def test_worker_renewing_its_lease_in_time_keeps_its_jobs(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_1")
    await harness.jobs.heartbeat("w1")
    job = await harness.claim("w1")
    clock.now += DEFAULT.lease_seconds + 1
    late = JobQueue(just_before_a_commit(harness.records, lambda: harness.jobs.heartbeat("w1")), limit=100)
    assert await requeue_stalled(late) == 0
    assert await harness.finish(job)


@pytest.mark.parametrize("is_own", [False, True], ids=["clock of the machine", "clock of the store"])
async def test_worker_that_died_while_the_clock_was_ahead_is_dead(
    harness: QueueHarness, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    monkeypatch.setattr(type(harness.records), "has_own_clock", is_own)
    await harness.submit("resp_1", "resp_2")
    clock.now += 31 * 86_400
    for worker in ("dies", "lives"):
        await harness.jobs.heartbeat(worker)
        await harness.claim(worker)
    clock.now -= 31 * 86_400
    await harness.jobs.heartbeat("lives")
    assert await requeue_stalled(harness.jobs) == 1
    again = await harness.claim("lives")
    assert again.state.lost == ["dies"]


async def test_clock_that_is_set_back_after_a_heartbeat_ends_no_lease(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_1")
    for worker in ("lives", "asks"):
        await harness.jobs.heartbeat(worker)
    job = await harness.claim("lives")
    clock.now -= 31 * 86_400
    assert await harness.jobs.requeue_stalled("asks") == 0
    assert "p/lives" in await harness.records.get_many(["p/lives"])
    assert await harness.finish(job)


async def test_server_with_fast_clock_does_not_expire_leases(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_1")
    await harness.jobs.heartbeat("w1")
    job = await harness.claim("w1")
    await Archive(harness.records, clock=lambda: clock.now + DEFAULT.lease_seconds + 1).sweep()
    assert await requeue_stalled(harness.jobs) == 0
    assert await harness.finish(job)


async def test_job_is_failed_after_killing_too_many_workers(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    for number in range(MAX_TRIES):
        job = await harness.claim(f"w{number}")
        assert (job.state.tries, job.state.verdict) == (number + 1, None)
        assert await requeue_stalled(harness.jobs) == 1
    assert (await harness.claim("last")).state.verdict == "failed"
    assert await requeue_stalled(harness.jobs) == 1
    assert (await harness.claim("very last")).state.verdict == "failed"


async def test_tries_do_not_count_if_live_worker_recovers_job(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    await harness.jobs.heartbeat("w1")
    for _ in range(2 * MAX_TRIES):
        job = await harness.claim("w1")
        assert (job.state.tries, job.state.verdict) == (1, None)
        assert await harness.jobs.requeue_own("w1", "resp_1", counts=False)


async def test_tries_count_if_live_worker_hits_defect(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    for number in range(MAX_TRIES):
        assert (await harness.claim("w1")).state.tries == number + 1
        assert await harness.jobs.requeue_own("w1", "resp_1", counts=True)
    assert (await harness.claim("w1")).state.verdict == "failed"


async def test_tries_do_not_count_if_workers_only_lost_leases(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_1")
    workers = [f"w{number}" for number in range(2 * MAX_TRIES)]
    for number, worker in enumerate(workers):
        await harness.jobs.heartbeat(worker)
        job = await harness.claim(worker)
        assert (job.state.tries, job.state.verdict) == (1, None)
        # No worker reaches the store; then all do, and one is the first to requeue stalled jobs.
        clock.now += DEFAULT.lease_seconds + 1
        assert await requeue_stalled(harness.jobs) == 1
        for each in workers[: number + 1]:
            await harness.jobs.heartbeat(each)


async def test_try_is_taken_back_if_its_worker_turns_out_alive(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_1")
    for number in range(MAX_TRIES - 1):
        await harness.claim(f"w{number}")
        assert await requeue_stalled(harness.jobs) == 1
    assert (await harness.claim("w2")).state.tries == MAX_TRIES
    await harness.jobs.heartbeat("w0")
    assert await requeue_stalled(harness.jobs) == 1
    job = await harness.claim("w3")
    assert (job.state.tries, job.state.verdict) == (MAX_TRIES, None)
    assert sorted(job.state.lost) == ["w1", "w2"]


async def test_cancelled_job_of_dead_worker_stays_cancelled(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    for _ in range(MAX_TRIES + 1):
        await harness.claim()
        assert await requeue_stalled(harness.jobs) == 1
    await harness.jobs.claim_to_end("resp_1", "w2", "cancelled")
    assert await requeue_stalled(harness.jobs) == 1
    assert (await harness.claim()).state.verdict == "cancelled"


async def test_worker_finds_and_requeues_jobs_it_lost_track_of(harness: QueueHarness) -> None:
    await harness.submit("resp_1", "resp_2")
    await harness.jobs.heartbeat("w1")
    lost = await harness.claim("w1")
    kept = await harness.claim("w2")
    assert await harness.jobs.held_by("w1") == {lost.response_id}
    assert await harness.jobs.requeue_own("w1", lost.response_id, counts=True)
    assert not await harness.jobs.requeue_own("w1", kept.response_id, counts=True)
    assert await harness.jobs.held_by("w1") == set()
    assert await harness.jobs.unchanged([lost, kept]) == {kept.response_id}
    assert (await harness.claim("w1")).state.tries == 2


# Rows of other versions


@pytest.mark.parametrize("row", ["j/resp_1", "k/resp_1"])
async def test_unreadable_job_stays_queued_without_blocking_others(harness: QueueHarness, row: str) -> None:
    await harness.submit("resp_1", "resp_2")
    written = (await harness.records.get_many([row]))[row]
    await harness.records.commit([Put(row, b"\x02")])
    assert (await harness.claim()).response_id == "resp_2"
    assert await harness.jobs.claim("w1") is None
    await harness.records.commit([Put(row, written.value)])
    job = await harness.claim()
    assert (job.response_id, job.state.tries) == ("resp_1", 1)


async def test_unreadable_stalled_job_does_not_block_others(harness: QueueHarness) -> None:
    await harness.submit("resp_1", "resp_2")
    assert {(await harness.claim()).response_id, (await harness.claim()).response_id} == {"resp_1", "resp_2"}
    await harness.records.commit([Put("j/resp_1", b"\x02")])
    assert await requeue_stalled(harness.jobs) == 1
    assert (await harness.claim()).response_id == "resp_2"


async def test_fields_added_by_newer_version_are_ignored(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    rows = await harness.records.get_many(["j/resp_1", "k/resp_1"])
    newer = [Put(key, codec.encode(codec.decode(found.value) | {"mood": "new"})) for key, found in rows.items()]
    await harness.records.commit(newer)
    job = await harness.claim()
    assert job.state.tries == 1
    checkpoint = await harness.jobs.checkpoint("resp_1")
    assert checkpoint is not None
    assert checkpoint.body == BODY


# Fencing


async def test_worker_with_expired_lease_cannot_write(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    stopped = await harness.claim("w1")
    await harness.records.commit([Put("e/1", b"")], [stopped.fence])
    await requeue_stalled(harness.jobs)
    with pytest.raises(Conflict):
        await harness.records.commit([Put("e/2", b"")], [stopped.fence])
    other = await harness.claim("w2")
    assert not await harness.finish(stopped)
    await harness.jobs.release(stopped)
    assert await harness.jobs.unchanged([stopped, other]) == {"resp_1"}
    assert await harness.jobs.claim("w3") is None
    assert await harness.finish(other)
    assert await harness.rows() == ["done", "e/1"]


async def test_worker_whose_job_was_taken_over_cannot_write(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    job = await harness.claim("w1")
    seized = await harness.jobs.claim_to_end("resp_1", "w2", "cancelled")
    assert seized is not None
    assert (seized.state.worker, seized.state.verdict, seized.state.tries) == ("w2", "cancelled", 1)
    assert not await harness.finish(job)
    assert await harness.finish(seized)


async def test_queued_job_can_be_taken_over(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    seized = await harness.jobs.claim_to_end("resp_1", "w2", "cancelled")
    assert seized is not None
    assert await harness.jobs.claim("w1") is None
    assert await harness.finish(seized)
    assert await harness.rows() == ["done"]


async def test_finished_job_cannot_be_taken_over(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    assert await harness.finish(await harness.claim())
    assert await harness.jobs.claim_to_end("resp_1", "w2", "cancelled") is None
    assert await harness.rows() == ["done"]


async def test_finish_racing_cancels_has_one_winner(harness: QueueHarness) -> None:
    for number in range(6):
        response_id = f"resp_{number}"
        await harness.submit(response_id)
        job = await harness.claim("w0")

        async def cancel(worker: str, response_id: str = response_id) -> bool:
            seized = await harness.jobs.claim_to_end(response_id, worker, "cancelled")
            return seized is not None and await harness.finish(seized)

        won = await asyncio.gather(harness.finish(job), cancel("w1"), cancel("w2"), cancel("w0"))
        assert won.count(True) == 1, won
        assert await harness.rows() == ["done"]


# Releasing


async def test_released_job_keeps_its_place_and_tries(harness: QueueHarness) -> None:
    await harness.submit("resp_1", "resp_2")
    for _ in range(MAX_TRIES + 1):
        job = await harness.claim()
        assert (job.response_id, job.state.tries, job.state.verdict) == ("resp_1", 1, None)
        await harness.jobs.release(job)
        assert not await harness.finish(job)
    assert await harness.jobs.held_by("w1") == set()


async def test_stale_claim_does_not_lose_released_job(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    job = await harness.claim("w1")
    # Another worker read the queue's row before the claim, and the job after it.
    late = JobQueue(just_before_a_commit(harness.records, lambda: harness.jobs.release(job)), limit=100)
    assert await late._take(f"q/{job.state.order}/resp_1", "w2") is None
    assert (await harness.claim("w3")).response_id == "resp_1"


async def test_stale_recovery_does_not_lose_job_claimed_again(harness: QueueHarness) -> None:
    await harness.submit("resp_1")
    job = await harness.claim("w1")
    await harness.jobs.release(job)
    # A recovery read the worker's row before the release, and the job after it.
    late = JobQueue(just_before_a_commit(harness.records, lambda: harness.claim("w1")), limit=100)
    assert not await late._requeue_stalled("w1", "resp_1")
    assert await harness.jobs.held_by("w1") == {"resp_1"}
    assert await requeue_stalled(harness.jobs) == 1


# Leftovers


async def test_finished_jobs_leave_no_rows(harness: QueueHarness, clock: Clock) -> None:
    await harness.submit("resp_1", "resp_2", "resp_3")
    assert await harness.finish(await harness.claim("w1"))
    await harness.claim("w1")
    assert await requeue_stalled(harness.jobs) == 1
    await harness.jobs.release(await harness.claim("w2"))
    while job := await harness.jobs.claim("w3"):
        assert await harness.finish(job)
    assert await harness.rows() == ["done"]
    await harness.jobs.hints_written()
    clock.now += 3 * 86_400
    await harness.records.sweep(clock.now)
    assert [key for key, _ in await harness.records.range("!", "~", limit=10)] == ["done"]


async def test_orphaned_rows_of_job_are_dropped_on_next_visit(harness: QueueHarness) -> None:
    await harness.records.commit([Put("q/000000000001/resp_1", b""), Put("h/w1/resp_2", b"")])
    assert await harness.jobs.claim("w1") is None
    assert await requeue_stalled(harness.jobs) == 0
    assert await harness.rows() == []
