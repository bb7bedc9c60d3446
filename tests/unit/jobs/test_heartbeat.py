"""A renewal of a lease that the store applies late changes nothing that came after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest

from llama_stack_responses.jobs.heartbeat import Heartbeat
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Op, Unanswered
from tests.contract.backends import Clock
from tests.support.records import WatchedRecords

LEASE: Final = "p/w1"


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
