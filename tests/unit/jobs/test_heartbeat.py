"""A renewal of a lease that the store applies late changes nothing that came after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest

from llama_stack_responses.core.ids import new_id
from llama_stack_responses.jobs.dead_workers import lease_key
from llama_stack_responses.jobs.heartbeat import Heartbeat
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.jobs.worker_leases import _Lease, _State
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, Unanswered
from tests.contract.backends import Clock
from tests.support.records import WatchedRecords

LEASE: Final = "p/w1"
TAGGED: Final = lease_key("w1", 3)


class LateRecords(WatchedRecords):
    """Records whose next commit comes late.

    Attributes:
        is_late: whether the next commit is given up and held back.
        held: what is held back, unless it was settled.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(MemoryRecords(clock=clock))
        self.is_late = False
        self.held: tuple[Sequence[Op], Sequence[Condition]] | None = None

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if not self.is_late:
            return await super().commit(ops, conditions)
        self.is_late, self.held = False, (ops, conditions)
        raise Unanswered("The response store has not answered.", self._settle)

    async def _settle(self) -> bool:
        self.held = None
        return False

    async def arrive(self) -> None:
        """Apply what is held back."""
        if self.held:
            await super().commit(*self.held)


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
async def records(clock: Clock) -> LateRecords:
    return LateRecords(clock)


@pytest.fixture
async def heartbeat(records: LateRecords, clock: Clock) -> Heartbeat:
    """The heartbeat of a worker, whose last renewal is still on its way."""
    heartbeat = Heartbeat(JobQueue(records, 10, clock=clock), "w1")
    await heartbeat.renew()
    records.is_late = True
    with pytest.raises(Unanswered):
        await heartbeat.renew()
    return heartbeat


async def test_late_renewal_does_not_cut_the_next_one_short(
    heartbeat: Heartbeat, records: LateRecords, clock: Clock
) -> None:
    clock.now += 9
    await heartbeat.renew()
    await records.arrive()
    clock.now += 9
    assert LEASE in await records.get_many([LEASE])


async def test_late_renewal_writes_no_lease_of_a_worker_that_has_ended(
    heartbeat: Heartbeat, records: LateRecords
) -> None:
    await heartbeat.end()
    await records.arrive()
    assert await records.get_many([LEASE]) == {}


async def test_renewal_whose_caller_is_cancelled_comes_before_the_end_of_the_lease(records: LateRecords) -> None:
    heartbeat, began, go_on = Heartbeat(JobQueue(records, 10), "w1"), asyncio.Event(), asyncio.Event()

    async def wait(name: str) -> None:
        if name == "commit" and not began.is_set():
            began.set()
            await go_on.wait()

    records._before = wait
    renewing = asyncio.ensure_future(heartbeat.renew())
    await began.wait()
    renewing.cancel()
    ending = asyncio.ensure_future(heartbeat.end())
    await asyncio.wait([renewing])
    go_on.set()
    await ending
    assert await records.get_many([LEASE]) == {}


async def test_requests_that_need_the_lease_at_once_renew_it_once(heartbeat: Heartbeat, records: LateRecords) -> None:
    heartbeat.expire()
    before = (await records.get_many([LEASE]))[LEASE].version
    await asyncio.gather(*(heartbeat.ensure() for _ in range(9)))
    assert (await records.get_many([LEASE]))[LEASE].version == before + 1


async def test_late_claim_does_not_cut_the_lease_of_its_tag_short(records: LateRecords, clock: Clock) -> None:
    heartbeat = Heartbeat(JobQueue(records, 10, clock=clock), "w1")
    await heartbeat.renew()
    records.is_late = True
    with pytest.raises(Unanswered):
        await records.commit(await heartbeat.lease_ops(new_id("resp", 3)))
    clock.now += 9
    await heartbeat.renew()
    await records.arrive()
    clock.now += 9
    assert TAGGED in await records.get_many([TAGGED])


async def test_claim_long_after_the_last_one_of_its_tag_has_a_lease_until_the_next_heartbeats(
    records: LateRecords, clock: Clock
) -> None:
    heartbeat = Heartbeat(JobQueue(records, 10, clock=clock), "w1")
    await heartbeat.renew()
    await records.commit(await heartbeat.lease_ops(new_id("resp", 3)))
    for _ in range(6):
        clock.now += 3
        await heartbeat.renew()
    clock.now += 0.5  # as long as the lease would be there, had it been left
    await records.commit(await heartbeat.lease_ops(new_id("resp", 3)))
    for _ in range(3):
        clock.now += 3
        assert TAGGED in await records.get_many([TAGGED])
        await heartbeat.renew()


async def test_deletion_of_an_idle_lease_that_comes_late_leaves_the_next_one(
    records: LateRecords, clock: Clock
) -> None:
    lease = _Lease(records, TAGGED)
    await records.commit([await lease.used(clock.now + 10)])
    lease.state, records.is_late = _State.ENDING, True
    with pytest.raises(Unanswered):
        await lease.end()
    await records.commit([await lease.used(clock.now + 10)])
    await records.arrive()
    assert TAGGED in await records.get_many([TAGGED])
