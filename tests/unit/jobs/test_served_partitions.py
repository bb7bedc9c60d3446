"""Which partitions a worker serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id, new_ordered_id, tag_of
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.features.admin.store_view import StoreView
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.jobs.dead_workers import lease_key
from llama_stack_responses.jobs.overview import stalled_of
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.jobs.served_partitions import HELD, ServedPartitions
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Condition, Delete, Op, Put, Record
from tests.support.waiting import SECONDS, turns, until

NUMBER: Final = 64
DAY: Final = 86_400.0


class Part(MemoryRecords):
    """A partition that may be away, or hang.

    Attributes:
        answers: whether commits are answered.
    """

    away = hangs = False

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        self._check_away()
        await self.answers.wait()
        await super().commit(ops, conditions)

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        self._check_away()
        return await super().get_many(keys, max_bytes=max_bytes)

    async def range(self, start: str, end: str, **more: Any) -> list[tuple[str, Record]]:
        self._check_away()
        if self.hangs:
            await asyncio.Event().wait()
        return await super().range(start, end, **more)

    async def now(self) -> float:
        self._check_away()
        return await super().now()

    def _check_away(self) -> None:
        if self.away:
            raise ApiError(503, "away")


class Counted(PartitionedRecords):
    """Counts the ranges that are read of partitions, and the looks at them."""

    ranges = looks = 0

    async def filled_in(self, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        self.looks += 1
        return await super().filled_in(number, ranges)

    async def range_in(self, number: int, start: str, end: str, **more: Any) -> list[tuple[str, Record]]:
        self.ranges += 1
        return await super().range_in(number, start, end, **more)


def new_records() -> Counted:
    return Counted([MemoryRecords() for _ in range(NUMBER)])


async def enqueue(jobs: JobQueue, tag: int, owner: Owner = ANONYMOUS) -> str:
    response_id = new_id("resp", tag)
    async with jobs.enqueued(response_id, owner, {"model": "m"}) as ops:
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


async def test_idle_process_looks_at_its_partitions_once_and_when_a_worker_has_died() -> None:
    records = new_records()
    jobs, other = JobQueue(records, 100, look_seconds=DAY), JobQueue(records, 100)
    await other.heartbeat("dies")
    for _ in range(20):
        await jobs.heartbeat("one")
        assert await jobs.claim("one") is None
        assert await jobs.requeue_stalled("one") == 0
    assert (records.ranges - 20, records.looks) == (0, len(jobs.served.own)), "but for who is alive"
    response_id = await enqueue(other, min(jobs.served.own))
    await other.claim("dies")
    await other.deregister("dies")
    await jobs.heartbeat("one")
    assert await jobs.requeue_stalled("one") == 1
    job = await jobs.claim("one")
    assert job is not None
    assert job.response_id == response_id


async def test_job_that_another_process_requeued_is_claimed_without_a_look() -> None:
    records = new_records()
    idle, releases = (JobQueue(records, 100, look_seconds=DAY) for _ in range(2))
    assert await idle.claim("two") is None
    response_id, looks = await enqueue(releases, 33), records.looks
    job = await releases.claim("one")
    assert job is not None
    looks = records.looks
    await releases.release(job)
    again = await idle.claim("two")
    assert again is not None
    assert (again.response_id, records.looks) == (response_id, looks)


async def test_worker_that_has_ended_takes_no_job() -> None:
    records = new_records()
    jobs = JobQueue(records, 100)
    response_id = await enqueue(jobs, 5)
    await jobs.heartbeat("one")
    await jobs.deregister("one")
    with pytest.raises(ApiError, match="shutting down"):
        await jobs.claim_to_end(response_id, "one", "cancelled")
    await jobs.heartbeat("two")
    assert await jobs.claim_to_end(response_id, "two", "cancelled")


async def test_jobs_of_dead_workers_are_found_while_the_first_partition_is_away() -> None:
    parts = [Part() for _ in range(8)]
    jobs = JobQueue(PartitionedRecords(parts), 100)
    response_id = await enqueue(jobs, 5)
    await jobs.heartbeat("dies")
    await jobs.claim("dies")
    await jobs.deregister("dies")
    parts[0].away = True
    for _ in range(2):
        await jobs.heartbeat("lives")
    with pytest.raises(ApiError):
        await jobs.requeue_stalled("lives")
    job = await jobs.claim("lives")
    assert job is not None
    assert job.response_id == response_id
    await jobs.heartbeat("lives", [response_id])
    parts[5].away = True
    with pytest.raises(ApiError):
        await jobs.heartbeat("lives", [response_id])


async def test_jobs_of_dead_workers_are_found_while_a_partition_hangs() -> None:
    parts = [Part() for _ in range(8)]
    jobs = JobQueue(PartitionedRecords(parts), 100, look_seconds=DAY)
    for tag in (1, 5):
        await enqueue(jobs, tag)
    await jobs.heartbeat("dies")
    for _ in range(2):
        await jobs.claim("dies")
    await jobs.deregister("dies")
    await jobs.heartbeat("lives")
    assert sorted(await jobs.served.having(HELD)) == [1, 5]
    parts[1].hangs = True
    stalled = jobs.dead_workers.iter_stalled(HELD, "lives")
    worker, response_id = await asyncio.wait_for(anext(stalled), SECONDS)
    assert (worker, tag_of(response_id)) == ("dies", 5)


async def test_partition_that_was_away_is_given_time_to_renew_leases() -> None:
    parts = [Part() for _ in range(8)]
    jobs = JobQueue(PartitionedRecords(parts), 100)
    await enqueue(jobs, 5)
    await jobs.heartbeat("lives")
    await jobs.claim("lives")
    parts[5].away = True
    await jobs.heartbeat("looks")
    with pytest.raises(ApiError):
        await jobs.requeue_stalled("looks")
    parts[5].away = False
    await parts[5].commit([Delete(lease_key("lives", 5))])  # as if it had expired meanwhile
    assert await jobs.requeue_stalled("looks") == 0
    jobs.dead_workers._silent_at[5] -= DEFAULT.lease_seconds
    assert await jobs.requeue_stalled("looks") == 1


async def test_claims_wait_once_for_a_partition_that_does_not_answer() -> None:
    parts = [Part() for _ in range(8)]
    jobs, other = (JobQueue(PartitionedRecords(parts), 100, look_seconds=DAY) for _ in range(2))
    first = await enqueue(jobs, 0)
    parts[0].away = True
    with pytest.raises(ApiError):
        await jobs.claim("one")
    parts[0].away, parts[0].hangs = False, True
    for tag in (5, 5):
        response_id = await enqueue(jobs, tag)
        job = await asyncio.wait_for(jobs.claim("one"), SECONDS)
        assert job is not None
        assert job.response_id == response_id
    response_id = await enqueue(other, 3)
    jobs.served._looked_at -= DAY
    job = await asyncio.wait_for(jobs.claim("one"), SECONDS)
    assert job is not None
    assert job.response_id == response_id, "the look does not wait for it either"
    parts[0].hangs = False
    await jobs.served.stop()  # the try, which hangs
    jobs.served.silent(0)
    await until(lambda: not jobs.served._silent)
    job = await jobs.claim("one")
    assert job is not None
    assert job.response_id == first


@pytest.mark.parametrize("first_was_away", [False, True])
async def test_job_of_a_dead_worker_in_a_partition_that_was_away_is_requeued_at_once(first_was_away: bool) -> None:
    parts = [Part() for _ in range(8)]
    jobs = JobQueue(PartitionedRecords(parts), 100, look_seconds=DAY)
    await enqueue(jobs, 5)
    await jobs.heartbeat("dies")
    await jobs.claim("dies")
    parts[5].away, parts[0].away = True, first_was_away
    await jobs.heartbeat("looks")
    with pytest.raises(ApiError):
        await jobs.requeue_stalled("looks")
    parts[5].away = parts[0].away = False
    await jobs.deregister("dies")
    # If the first partition was away too, a living worker may have no lease at all for a moment.
    assert await jobs.requeue_stalled("looks") == (not first_was_away)


async def test_heartbeat_goes_on_while_a_partition_hangs_and_ends_with_its_lease_written_once() -> None:
    parts = [Part() for _ in range(8)]
    jobs = JobQueue(PartitionedRecords(parts), 100)
    for tag in (1, 5):
        await enqueue(jobs, tag)
    await jobs.heartbeat("works")
    held = [job.response_id for _ in range(2) if (job := await jobs.claim("works"))]
    versions = await lease_versions(parts)
    parts[5].answers.clear()
    for _ in range(3):
        async with asyncio.timeout(SECONDS):
            await jobs.heartbeat("works", held)
    assert await lease_versions(parts) == [versions[0] + 3, versions[1]]
    parts[5].answers.set()
    await turns(100)
    # The one that hung, and one for those that waited for it.
    assert (await lease_versions(parts))[1] == versions[1] + 2
    await jobs.deregister("works")
    assert await lease_versions(parts) == [0, 0]


async def lease_versions(parts: Sequence[MemoryRecords]) -> list[int]:
    """Return the versions of the leases of a worker for tags 1 and 5; 0 for none."""
    keys = [lease_key("works", tag) for tag in (1, 5)]
    rows = [await MemoryRecords.get_many(parts[tag], [key]) for tag, key in zip((1, 5), keys, strict=True)]
    return [row[key].version if key in row else 0 for row, key in zip(rows, keys, strict=True)]


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


async def test_rows_for_which_their_own_worker_has_no_room_are_read_by_others() -> None:
    records = new_records()
    full, idle = (ServedPartitions(records, DAY) for _ in range(2))
    for each in (full, idle):
        each._shares = False
    full.own, idle.own = [3], [4]
    waiting, batch = [each.watched("bt/q/") for each in (full, idle)], new_ordered_id("batch", 0, 3)
    await records.commit([Put(f"bt/q/{batch}", b"")])

    async def read(number: int) -> list[str]:
        return [key for key, _ in await records.range_in(number, "bt/q/", "bt/q0", limit=9)]

    assert [await each.read(read) for each in waiting] == [([f"bt/q/{batch}"], []), ([], [])]
    for _ in range(2):
        await waiting[0].announce([tag_of(batch)])
    [(key, row)] = await records.range("qr/", "qr0", limit=9)
    assert (key, row.version) == ("qr/003/bt/q/", 1)
    assert await waiting[1].read(read) == ([], []), "it has not looked again"
    idle._looked_at -= DAY
    assert await waiting[1].read(read) == ([f"bt/q/{batch}"], [])


async def test_rows_for_any_server_are_read_where_some_are_known_to_be() -> None:
    parts = [Part() for _ in range(8)]
    served = ServedPartitions(PartitionedRecords(parts), DAY)
    watched = served.watched("bt/q/")

    async def read(number: int) -> list[str]:
        return [key for key, _ in await parts[number].range("bt/q/", "bt/q0", limit=9)]

    key, other = (f"bt/q/{new_ordered_id('batch', 0, tag)}" for tag in (3, 5))
    await parts[3].commit([Put(key, b"")])
    assert await watched.read(read) == ([key], [])
    await parts[5].commit([Put(other, b"")])
    assert await watched.read(read) == ([key], []), "it has not looked again"
    watched.found(5)
    await parts[5].commit([Delete(other)])
    assert await watched.read(read) == ([key], [])
    await parts[5].commit([Put(other, b"")])
    assert await watched.read(read) == ([key], []), "none was there"
    watched.found(5)
    parts[3].away = True
    for _ in range(2):
        rows, failures = await watched.read(read)
        assert (rows, [each.status for each in failures]) == ([other], [503]), "it holds up no other one"


async def test_owners_whose_tags_are_in_one_partition_take_turns_there() -> None:
    jobs = JobQueue(new_records(), 100, look_seconds=DAY)
    for _ in range(5):
        await enqueue(jobs, 1, Owner("anna"))
    for _ in range(3):
        await jobs.claim("one")
    for _ in range(3):
        await enqueue(jobs, NUMBER + 1, Owner("ben"))
    claimed = [await jobs.claim("one") for _ in range(4)]
    assert [job.state.owner.principal for job in claimed if job] == ["ben", "anna", "ben", "anna"]


class Dying(PartitionedRecords):
    """As a process reaches them that dies before it writes in another partition than that of its commit."""

    async def _try_elsewhere(self, *_: object) -> None:
        pass


async def test_what_a_dead_worker_has_noted_is_written_once_its_lease_is_over() -> None:
    parts = [Part() for _ in range(8)]
    dying, records = Dying(parts), Counted(parts)
    dies, lives = JobQueue(dying, 100), JobQueue(records, 100, look_seconds=DAY)
    written = [f"k/{new_id('resp', number)}" for number in (1, 2, 3)]
    await dies.heartbeat("dies")
    await lives.heartbeat("lives")
    await lives.apply_noted()
    for key in written:
        await dying.commit([Put(f"k/{new_id('resp', 5)}", b""), Put(key, b"")])
    await lives.heartbeat("lives")
    await lives.apply_noted()
    assert await records.get_many(written) == {}, "no worker has looked"
    parts[1].away = True
    await dies.deregister("dies")
    await lives.heartbeat("lives")
    await lives.apply_noted()
    assert (await records.get_many(written[1:])).keys() == {*written[1:]}, "that one is away holds up no others"
    looks = records.looks
    await lives.apply_noted()
    assert records.looks == looks
    parts[1].away = False
    records._away.clear()
    await records.apply_noted(5)
    assert (await records.get_many(written)).keys() == {*written}
    assert await parts[5].range("ob/", "ob0", limit=9) == []


async def test_view_of_the_queue_asks_the_partition_of_each_job_whether_its_worker_lives() -> None:
    parts = [Part() for _ in range(8)]
    records = PartitionedRecords(parts)
    jobs = JobQueue(records, 100)
    for tag in (3, 4):
        await enqueue(jobs, tag)
    await jobs.heartbeat("lives")
    held = [job.response_id for job in [await jobs.claim("lives"), await jobs.claim("lives")] if job]
    await parts[0].commit([Delete(lease_key("lives"))])
    await parts[4].commit([Delete(lease_key("lives", 4))])
    assert {job.response_id: job.state for job in await StoreView(records).queue()} == {
        each: "running" if tag_of(each) == 3 else "stalled" for each in held
    }
    assert await stalled_of(records) == {each: "lives" for each in held if tag_of(each) == 4}
