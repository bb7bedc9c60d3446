"""Which partitions a worker serves."""

from __future__ import annotations

from typing import Final

from llama_stack_responses.core.ids import new_id, tag_of
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.jobs.served_partitions import ServedPartitions
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords

NUMBER: Final = 64
DAY: Final = 86_400.0


class Counted(PartitionedRecords):
    """Counts the ranges that are read of partitions."""

    ranges = 0

    async def range_in(self, number: int, start: str, end: str, *, limit: int, reverse: bool = False):  # type: ignore[no-untyped-def]
        self.ranges += 1
        return await super().range_in(number, start, end, limit=limit, reverse=reverse)


def new_records() -> Counted:
    return Counted([MemoryRecords() for _ in range(NUMBER)])


async def enqueue(jobs: JobQueue, tag: int) -> str:
    response_id = new_id("resp", tag)
    async with jobs.enqueued(response_id, ANONYMOUS, {"model": "m"}) as ops:
        await jobs._records.commit(ops)
    return response_id


async def test_each_partition_has_one_living_worker() -> None:
    records = new_records()
    workers = {name: JobQueue(records, 100, look_seconds=DAY) for name in ("one", "two", "three")}
    for _ in range(2):
        for name, jobs in workers.items():
            await jobs.heartbeat(name)
    before = {name: set(jobs.served.own) for name, jobs in workers.items()}
    assert sorted(number for own in before.values() for number in own) == list(range(NUMBER))
    assert min(map(len, before.values())) > NUMBER // 8
    await workers.pop("two").deregister("two")
    for name, jobs in workers.items():
        await jobs.heartbeat(name)
        assert before[name] <= set(jobs.served.own), "what it had, it has"
    assert sorted(number for jobs in workers.values() for number in jobs.served.own) == list(range(NUMBER))


async def test_job_is_claimed_by_its_process_without_a_look_at_other_partitions() -> None:
    records = new_records()
    jobs = JobQueue(records, 100, look_seconds=DAY)
    assert await jobs.claim("one") is None
    before, response_id = records.ranges, await enqueue(jobs, 9)
    job = await jobs.claim("one")
    assert job is not None
    assert job.response_id == response_id
    assert records.ranges - before <= 4


async def test_idle_process_looks_at_its_partitions_at_intervals_only() -> None:
    records = new_records()
    jobs = JobQueue(records, 100, look_seconds=DAY)
    await jobs.claim("one")
    before = records.ranges
    for _ in range(20):
        assert await jobs.claim("one") is None
    assert records.ranges == before


async def test_jobs_that_a_full_process_announces_are_claimed_by_others() -> None:
    records = new_records()
    full, idle = (JobQueue(records, 100, look_seconds=DAY) for _ in range(2))
    assert await idle.claim("two") is None
    response_id = await enqueue(full, 33)
    assert await idle.claim("two") is None
    await full.notify_workers()
    job = await idle.claim("two")
    assert job is not None
    assert job.response_id == response_id


async def test_partitions_with_jobs_take_turns() -> None:
    records = new_records()
    jobs = JobQueue(records, 100, look_seconds=DAY)
    for tag in (1, 1, 1, 2):
        await enqueue(jobs, tag)
    served = ServedPartitions(records, None)
    assert [number async for number in served.in_order()] == [1, 2]
    claimed = [await jobs.claim("one") for _ in range(4)]
    assert [jobs.served.number_of(tag_of(job.response_id)) for job in claimed if job] == [1, 2, 1, 1]
