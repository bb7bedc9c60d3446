"""On every backend: a job is one worker's at a time, and somebody's until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.jobs.queue import LEASE, TRIES, Held, Jobs, name_of
from llama_stack_responses.store import codec
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Conflict, Put, Records, writes_of
from tests.contract.backends import Clock
from tests.support.records import WatchedRecords, just_before_a_commit

pytestmark = pytest.mark.needs("work")

type Json = dict[str, Any]

ANNA = Owner("anna")
BERT = Owner("bert", {"teams": ["search"]}, "shop")
BODY: Json = {"model": "m", "input": "..."}


class Desk:
    """What the tests do over and over."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.jobs = Jobs(records, limit=100)

    async def submit(self, *response_ids: str, owner: Owner = ANONYMOUS) -> None:
        for response_id in response_ids:
            async with self.jobs.enqueued(response_id, owner, BODY) as ops:
                await self.records.commit(ops)

    async def claim(self, worker: str = "w1") -> Held:
        held = await self.jobs.claim(worker)
        assert held is not None
        return held

    async def taken(self, passed_over: Set[str] = frozenset()) -> str | None:
        """The id of the next job, which is taken."""
        held = await self.jobs.claim("w1", passed_over)
        return held.response_id if held else None

    async def finish(self, held: Held) -> bool:
        """Whether the worker could still bring it to its end."""
        try:
            await self.records.commit([Put("done", b""), *held.gone()], [held.fence])
        except Conflict:
            return False
        return True

    async def rows(self) -> list[str]:
        """The keys of all that is stored, but for the owners' turns in the queue."""
        return [key for key, _ in await self.records.range("!", "~", limit=1000) if key[0] not in "uz"]


@pytest.fixture
def desk(records: Records) -> Desk:
    return Desk(records)


# Handing out


async def test_a_job_goes_to_one_worker_only(desk: Desk) -> None:
    ids = [f"resp_{number}" for number in range(12)]
    await desk.submit(*ids)

    async def work(worker: str) -> list[str]:
        taken = []
        while held := await desk.jobs.claim(worker):
            assert held.job.worker == worker
            taken.append(held.response_id)
        return taken

    taken = await asyncio.gather(*(work(f"w{number}") for number in range(6)))
    assert sorted(response_id for each in taken for response_id in each) == sorted(ids)


async def test_jobs_go_in_the_order_in_which_they_came(desk: Desk, clock: Clock) -> None:
    for number, name in enumerate(["anna", "bert", "carl"]):
        clock.now += 1
        await desk.submit(f"resp_{number}", owner=Owner(name))
    assert [(await desk.claim()).response_id for _ in range(3)] == ["resp_0", "resp_1", "resp_2"]
    assert await desk.jobs.claim("w1") is None


async def test_many_jobs_of_one_owner_let_another_through(desk: Desk, clock: Clock) -> None:
    await desk.submit(*(f"resp_a{number}" for number in range(10)), owner=ANNA)
    clock.now += 1
    await desk.submit("resp_b", owner=BERT)
    taken = [(await desk.claim()).response_id for _ in range(11)]
    assert taken.index("resp_b") == 1
    assert [each for each in taken if each != "resp_b"] == [f"resp_a{number}" for number in range(10)]


async def test_a_burst_of_one_owner_lets_another_through(desk: Desk, clock: Clock) -> None:
    await asyncio.gather(*(desk.submit(f"resp_a{number}", owner=ANNA) for number in range(10)))
    clock.now += 1
    await desk.submit("resp_b", owner=BERT)
    taken = [(await desk.claim()).response_id for _ in range(11)]
    assert taken.index("resp_b") == 1


async def test_who_has_had_a_turn_lets_another_through_however_slow_the_workers_are(
    desk: Desk, clock: Clock, records: Records
) -> None:
    others = Jobs(records, limit=100)  # another server's
    for number in range(40):
        await desk.submit(f"resp_a{number}", owner=ANNA)
    for _ in range(5):
        clock.now += 600
        await desk.claim()
    await desk.jobs.noted()
    for number in range(3):
        async with others.enqueued(f"resp_b{number}", BERT, BODY) as ops:
            await records.commit(ops)
    taken = [held.response_id[:6] for _ in range(6) if (held := await others.claim("w2"))]
    assert taken[0] == "resp_b"
    assert taken.count("resp_b") == 3


async def test_jobs_of_one_owner_write_no_key_in_common(desk: Desk, records: Records) -> None:
    written: list[set[str]] = []
    for number in range(2):
        async with desk.jobs.enqueued(f"resp_{number}", ANNA, BODY) as ops:
            await records.commit(ops)
        written.append({op.key for op in writes_of(ops)})
    assert not written[0] & written[1]


async def test_turns_that_are_not_written_yet_count_in_their_process(desk: Desk, clock: Clock) -> None:
    await asyncio.gather(*(desk.submit(f"resp_a{number}", owner=ANNA) for number in range(3)))
    await desk.submit("resp_b", owner=BERT)
    assert [(await desk.claim()).response_id[:6] for _ in range(2)].count("resp_b") == 1


async def test_newcomers_without_end_do_not_keep_a_second_job_waiting_for_ever(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_a0", "resp_a1", owner=ANNA)
    waited = 0
    for number in range(100):
        clock.now += 1
        await desk.submit(f"resp_{number}", owner=Owner(f"new-{number}"))
        if (await desk.claim()).response_id == "resp_a1":
            waited = number
            break
    assert 1 < waited < 80


async def test_what_a_burst_owes_is_forgotten_when_it_has_been_worked_off(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_a0", "resp_a1", owner=ANNA)
    await desk.submit("resp_b0", owner=BERT)
    for _ in range(3):
        await desk.claim()
    await desk.submit("resp_a2", owner=ANNA)
    clock.now += 1
    await desk.submit("resp_b1", owner=BERT)
    assert [(await desk.claim()).response_id for _ in range(2)] == ["resp_a2", "resp_b1"]


async def test_jobs_of_an_owner_are_passed_over_and_wait_on(desk: Desk, clock: Clock) -> None:
    await desk.submit(*(f"resp_a{number}" for number in range(7)), owner=ANNA)
    clock.now += 1
    held = await desk.claim()
    await desk.submit("resp_b0", "resp_b1", owner=BERT)
    passed_over = {name_of(Owner("anna", {"teams": ["other"]}))}
    assert [await desk.taken(passed_over) for _ in range(3)] == ["resp_b0", "resp_b1", None]
    await desk.jobs.give_back(held)
    assert await desk.taken(passed_over) is None
    assert await desk.taken() == held.response_id


async def test_a_job_behind_many_that_are_passed_over_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_stack_responses.jobs.queue._PAGE", 3)
    await desk.submit(*(f"resp_a{number}" for number in range(10)), owner=ANNA)
    await desk.submit(*(f"resp_b{number}" for number in range(8)), owner=BERT)
    passed_over = {name_of(BERT)}
    assert [await desk.taken(passed_over) for _ in range(10)] == [f"resp_a{number}" for number in range(10)]
    assert await desk.taken(passed_over) is None


async def test_a_full_queue_is_refused(records: Records) -> None:
    desk = Desk(records)
    desk.jobs = Jobs(records, limit=3)
    await desk.submit("resp_1", "resp_2", "resp_3")
    await refused(desk, "resp_4", ANONYMOUS, "Too many background responses are waiting")
    await desk.claim()
    await desk.submit("resp_4")


async def test_what_one_owner_may_have_counts_until_it_ends_and_leaves_room_for_others(records: Records) -> None:
    desk = Desk(records)
    desk.jobs = Jobs(records, limit=20, per_owner=2)
    await desk.submit("resp_a0", "resp_a1", owner=ANNA)
    held = await desk.claim()
    await refused(desk, "resp_a2", Owner("anna", {"teams": ["other"]}), "You have 2 background responses")
    await desk.submit("resp_b0", owner=BERT)
    await desk.submit("resp_0", "resp_1", "resp_2", owner=ANONYMOUS)
    assert await desk.finish(held)
    await desk.submit("resp_a2", owner=ANNA)
    seized = await desk.jobs.seize("resp_a2", "w2", "cancelled")
    assert seized
    assert await desk.finish(seized)
    await desk.submit("resp_a3", owner=ANNA)


@pytest.mark.parametrize("owner", [ANNA, ANONYMOUS], ids=["their share", "the queue"])
async def test_of_many_that_are_queued_at_once_as_many_are_taken_as_there_may_be(
    records: Records, owner: Owner
) -> None:
    async def turn(_: str) -> None:
        await asyncio.sleep(0)

    desk = Desk(WatchedRecords(records, before=turn, after=turn))
    desk.jobs = Jobs(desk.records, limit=20 if owner is ANNA else 5, per_owner=5)
    submitted = [desk.submit(f"resp_{number}", owner=owner) for number in range(15)]
    found = await asyncio.gather(*submitted, return_exceptions=True)
    assert [each.code for each in found if isinstance(each, ApiError)] == ["rate_limit_exceeded"] * 10
    assert len(await records.range("q/", "q0", limit=20)) == 5
    assert not desk.jobs._quotas._counts


async def refused(desk: Desk, response_id: str, owner: Owner, why: str) -> None:
    with pytest.raises(ApiError, match=why) as refusal:
        await desk.submit(response_id, owner=owner)
    assert (refusal.value.status, refusal.value.code) == (429, "rate_limit_exceeded")
    assert refusal.value.retry_after


async def test_a_job_says_whose_it_is_and_what_it_takes(desk: Desk) -> None:
    await desk.submit("resp_1", owner=BERT)
    waiting = await desk.jobs.find("resp_1")
    assert waiting is not None
    assert (waiting.job.owner, waiting.job.worker, waiting.job.tries) == (BERT, None, 0)
    held = await desk.claim()
    assert (held.job.owner, held.job.worker, held.job.tries, held.job.verdict) == (BERT, "w1", 1, None)
    assert await desk.jobs.find("resp_1") == held
    work = await desk.jobs.work("resp_1")
    assert work is not None
    assert (work.body, work.rounds, list(work.output)) == (BODY, 0, [])
    assert await desk.jobs.find("resp_2") is None
    assert await desk.jobs.work("resp_2") is None


# The dead


async def test_the_jobs_of_the_dead_are_rescued_once(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_1", "resp_2", "resp_3")
    await desk.jobs.breathe("dies")
    await desk.jobs.breathe("lives")
    lost = [await desk.claim("dies"), await desk.claim("dies")]
    kept = await desk.claim("lives")
    assert await desk.jobs.rescue() == 0
    clock.now += LEASE - 1
    await desk.jobs.breathe("lives")
    assert await desk.jobs.rescue() == 0
    clock.now += 2
    assert sum(await asyncio.gather(*(desk.jobs.rescue() for _ in range(4)))) == 2
    assert await desk.jobs.still_held([*lost, kept]) == {kept.response_id}
    again = [await desk.claim("lives"), await desk.claim("lives")]
    assert {held.response_id for held in again} == {held.response_id for held in lost}
    assert [held.job.tries for held in again] == [2, 2]
    assert await desk.jobs.claim("lives") is None


async def test_who_retires_is_dead_at_once(desk: Desk) -> None:
    await desk.submit("resp_1")
    await desk.jobs.breathe("w1")
    await desk.claim("w1")
    await desk.jobs.retire("w1")
    assert await desk.jobs.rescue() == 1


async def test_a_worker_that_comes_back_to_life_in_time_keeps_its_jobs(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_1")
    await desk.jobs.breathe("w1")
    held = await desk.claim("w1")
    clock.now += LEASE + 1
    late = Jobs(just_before_a_commit(desk.records, lambda: desk.jobs.breathe("w1")), limit=100)
    assert await late.rescue() == 0
    assert await desk.finish(held)


async def test_a_server_whose_clock_is_ahead_takes_nobody_for_dead(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_1")
    await desk.jobs.breathe("w1")
    held = await desk.claim("w1")
    await Archive(desk.records, clock=lambda: clock.now + LEASE + 1).sweep()
    assert await desk.jobs.rescue() == 0
    assert await desk.finish(held)


async def test_work_that_keeps_ending_its_server_is_given_up(desk: Desk) -> None:
    await desk.submit("resp_1")
    for number in range(TRIES):
        held = await desk.claim(f"w{number}")
        assert (held.job.tries, held.job.verdict) == (number + 1, None)
        assert await desk.jobs.rescue() == 1
    assert (await desk.claim("last")).job.verdict == "failed"
    assert await desk.jobs.rescue() == 1
    assert (await desk.claim("very last")).job.verdict == "failed"


async def test_tries_of_living_worker_that_recovers_its_job_do_not_count(desk: Desk) -> None:
    await desk.submit("resp_1")
    await desk.jobs.breathe("w1")
    for _ in range(2 * TRIES):
        held = await desk.claim("w1")
        assert (held.job.tries, held.job.verdict) == (1, None)
        assert await desk.jobs.recover("w1", "resp_1", counts=False)


async def test_tries_of_living_worker_that_end_with_defect_count(desk: Desk) -> None:
    await desk.submit("resp_1")
    for number in range(TRIES):
        assert (await desk.claim("w1")).job.tries == number + 1
        assert await desk.jobs.recover("w1", "resp_1", counts=True)
    assert (await desk.claim("w1")).job.verdict == "failed"


async def test_tries_of_workers_that_only_lost_their_lease_do_not_count(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_1")
    workers = [f"w{number}" for number in range(2 * TRIES)]
    for number, worker in enumerate(workers):
        await desk.jobs.breathe(worker)
        held = await desk.claim(worker)
        assert (held.job.tries, held.job.verdict) == (1, None)
        # No worker reaches the store; then all do, and one is first to look for the dead.
        clock.now += LEASE + 1
        assert await desk.jobs.rescue() == 1
        for each in workers[: number + 1]:
            await desk.jobs.breathe(each)


async def test_try_of_worker_that_is_seen_alive_late_is_taken_back(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_1")
    for number in range(TRIES - 1):
        await desk.claim(f"w{number}")
        assert await desk.jobs.rescue() == 1
    assert (await desk.claim("w2")).job.tries == TRIES
    await desk.jobs.breathe("w0")
    assert await desk.jobs.rescue() == 1
    held = await desk.claim("w3")
    assert (held.job.tries, held.job.verdict) == (TRIES, None)
    assert sorted(held.job.lost) == ["w1", "w2"]


async def test_a_cancelled_job_whose_worker_died_stays_cancelled(desk: Desk) -> None:
    await desk.submit("resp_1")
    for _ in range(TRIES + 1):
        await desk.claim()
        assert await desk.jobs.rescue() == 1
    await desk.jobs.seize("resp_1", "w2", "cancelled")
    assert await desk.jobs.rescue() == 1
    assert (await desk.claim()).job.verdict == "cancelled"


async def test_a_worker_learns_what_it_has_without_knowing(desk: Desk) -> None:
    await desk.submit("resp_1", "resp_2")
    await desk.jobs.breathe("w1")
    lost = await desk.claim("w1")
    kept = await desk.claim("w2")
    assert await desk.jobs.held_by("w1") == {lost.response_id}
    assert await desk.jobs.recover("w1", lost.response_id, counts=True)
    assert not await desk.jobs.recover("w1", kept.response_id, counts=True)
    assert await desk.jobs.held_by("w1") == set()
    assert await desk.jobs.still_held([lost, kept]) == {kept.response_id}
    assert (await desk.claim("w1")).job.tries == 2


# What another version wrote


@pytest.mark.parametrize("row", ["j/resp_1", "k/resp_1"])
async def test_a_job_that_cannot_be_read_waits_and_holds_no_other_up(desk: Desk, row: str) -> None:
    await desk.submit("resp_1", "resp_2")
    written = (await desk.records.get_many([row]))[row]
    await desk.records.commit([Put(row, b"\x02")])
    assert (await desk.claim()).response_id == "resp_2"
    assert await desk.jobs.claim("w1") is None
    await desk.records.commit([Put(row, written.value)])
    held = await desk.claim()
    assert (held.response_id, held.job.tries) == ("resp_1", 1)


async def test_a_job_of_the_dead_that_cannot_be_read_holds_no_other_up(desk: Desk) -> None:
    await desk.submit("resp_1", "resp_2")
    assert {(await desk.claim()).response_id, (await desk.claim()).response_id} == {"resp_1", "resp_2"}
    await desk.records.commit([Put("j/resp_1", b"\x02")])
    assert await desk.jobs.rescue() == 1
    assert (await desk.claim()).response_id == "resp_2"


async def test_fields_that_a_newer_version_added_are_left_out(desk: Desk) -> None:
    await desk.submit("resp_1")
    rows = await desk.records.get_many(["j/resp_1", "k/resp_1"])
    newer = [Put(key, codec.encode(codec.decode(found.value) | {"mood": "new"})) for key, found in rows.items()]
    await desk.records.commit(newer)
    held = await desk.claim()
    assert held.job.tries == 1
    work = await desk.jobs.work("resp_1")
    assert work is not None
    assert work.body == BODY


# Fencing


async def test_nothing_is_kept_of_who_was_taken_for_dead(desk: Desk) -> None:
    await desk.submit("resp_1")
    stopped = await desk.claim("w1")
    await desk.records.commit([Put("e/1", b"")], [stopped.fence])
    await desk.jobs.rescue()
    with pytest.raises(Conflict):
        await desk.records.commit([Put("e/2", b"")], [stopped.fence])
    other = await desk.claim("w2")
    assert not await desk.finish(stopped)
    await desk.jobs.give_back(stopped)
    assert await desk.jobs.still_held([stopped, other]) == {"resp_1"}
    assert await desk.jobs.claim("w3") is None
    assert await desk.finish(other)
    assert await desk.rows() == ["done", "e/1"]


async def test_nothing_is_kept_of_who_was_taken_from(desk: Desk) -> None:
    await desk.submit("resp_1")
    held = await desk.claim("w1")
    seized = await desk.jobs.seize("resp_1", "w2", "cancelled")
    assert seized is not None
    assert (seized.job.worker, seized.job.verdict, seized.job.tries) == ("w2", "cancelled", 1)
    assert not await desk.finish(held)
    assert await desk.finish(seized)


async def test_a_waiting_job_is_seized_out_of_the_queue(desk: Desk) -> None:
    await desk.submit("resp_1")
    seized = await desk.jobs.seize("resp_1", "w2", "cancelled")
    assert seized is not None
    assert await desk.jobs.claim("w1") is None
    assert await desk.finish(seized)
    assert await desk.rows() == ["done"]


async def test_what_has_ended_cannot_be_seized(desk: Desk) -> None:
    await desk.submit("resp_1")
    assert await desk.finish(await desk.claim())
    assert await desk.jobs.seize("resp_1", "w2", "cancelled") is None
    assert await desk.rows() == ["done"]


async def test_of_an_end_and_many_that_cancel_exactly_one_wins(desk: Desk) -> None:
    for number in range(6):
        response_id = f"resp_{number}"
        await desk.submit(response_id)
        held = await desk.claim("w0")

        async def cancel(worker: str, response_id: str = response_id) -> bool:
            seized = await desk.jobs.seize(response_id, worker, "cancelled")
            return seized is not None and await desk.finish(seized)

        won = await asyncio.gather(desk.finish(held), cancel("w1"), cancel("w2"), cancel("w0"))
        assert won.count(True) == 1, won
        assert await desk.rows() == ["done"]


# Giving back


async def test_what_is_given_back_waits_in_its_place_and_no_try_is_counted(desk: Desk) -> None:
    await desk.submit("resp_1", "resp_2")
    for _ in range(TRIES + 1):
        held = await desk.claim()
        assert (held.response_id, held.job.tries, held.job.verdict) == ("resp_1", 1, None)
        await desk.jobs.give_back(held)
        assert not await desk.finish(held)
    assert await desk.jobs.held_by("w1") == set()


async def test_who_saw_a_job_taken_does_not_lose_it_when_it_is_given_back(desk: Desk) -> None:
    await desk.submit("resp_1")
    held = await desk.claim("w1")
    # Another worker saw the row of the queue before it was taken, and the job after that.
    late = Jobs(just_before_a_commit(desk.records, lambda: desk.jobs.give_back(held)), limit=100)
    assert await late._take(f"q/{held.job.order}/resp_1", "w2") is None
    assert (await desk.claim("w3")).response_id == "resp_1"


async def test_who_saw_a_job_waiting_does_not_lose_it_when_its_worker_takes_it_again(desk: Desk) -> None:
    await desk.submit("resp_1")
    held = await desk.claim("w1")
    await desk.jobs.give_back(held)
    # Somebody looked for the dead before it was given back, and at the job after that.
    late = Jobs(just_before_a_commit(desk.records, lambda: desk.claim("w1")), limit=100)
    assert not await late._rescue("w1", "resp_1")
    assert await desk.jobs.held_by("w1") == {"resp_1"}
    assert await desk.jobs.rescue() == 1


# What is left


async def test_nothing_is_left_of_a_job_that_is_gone(desk: Desk, clock: Clock) -> None:
    await desk.submit("resp_1", "resp_2", "resp_3")
    assert await desk.finish(await desk.claim("w1"))
    await desk.claim("w1")
    assert await desk.jobs.rescue() == 1
    await desk.jobs.give_back(await desk.claim("w2"))
    while held := await desk.jobs.claim("w3"):
        assert await desk.finish(held)
    assert await desk.rows() == ["done"]
    await desk.jobs.noted()
    clock.now += 3 * 86_400
    await desk.records.sweep(clock.now)
    assert [key for key, _ in await desk.records.range("!", "~", limit=10)] == ["done"]


async def test_rows_of_a_job_that_is_gone_are_dropped_when_somebody_comes_by(desk: Desk) -> None:
    await desk.records.commit([Put("q/000000000001/resp_1", b""), Put("h/w1/resp_2", b"")])
    assert await desk.jobs.claim("w1") is None
    assert await desk.jobs.rescue() == 0
    assert await desk.rows() == []
