from __future__ import annotations

import asyncio

import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Conflict, Delete, Put, VersionIs

ALICE, BOB = Owner("alice"), Owner("bob")


class SharedRecords:
    """Records of several users, of whom `owner` is served."""

    def __init__(self, max_records: int = 1000, max_bytes: int = 1_000_000) -> None:
        self.owner = ANONYMOUS
        self.records = MemoryRecords(max_records, max_bytes, current_user=lambda: self.owner)

    async def put(self, owner: Owner, *keys: str, size: int = 0) -> None:
        self.owner = owner
        for key in keys:
            await self.records.commit([Put(key, b"x" * size)])


async def keys(records: MemoryRecords) -> list[str]:
    return [key for key, _ in await records.range("!", "~", limit=100)]


async def test_oldest_records_are_evicted_over_max_records() -> None:
    records = MemoryRecords(max_records=3)
    for key in "abc":
        await records.commit([Put(key, b"")])
    await records.commit([Put("a", b"")])
    await records.commit([Put("d", b""), Put("e", b"", 1e12)])
    assert await keys(records) == ["a", "d", "e"]


async def test_oldest_records_are_evicted_over_max_bytes() -> None:
    records = MemoryRecords(max_bytes=1000)
    await records.commit([Put("a", b"x" * 399), Put("b", b"x" * 399)])
    await records.commit([Put("a", b"x" * 499)])
    assert await keys(records) == ["a", "b"]
    await records.commit([Put("c", b"x" * 199)])
    assert await keys(records) == ["a", "c"]
    await records.commit([Put("d", b"x" * 2000)])
    assert await keys(records) == []
    await asyncio.gather(*(records.commit([Put(key, b"x" * 90)]) for key in "abcdefghijkl"))
    assert await keys(records) == list("cdefghijkl")


async def test_owner_of_most_records_loses_the_oldest() -> None:
    shared = SharedRecords(max_records=6)
    await shared.put(ALICE, "a1", "a2")
    await shared.put(BOB, *(f"b{number}" for number in range(20)))
    assert await keys(shared.records) == ["a1", "a2", "b16", "b17", "b18", "b19"]
    await shared.put(ALICE, "a3", "a4", "a5", "a6", "a7")
    assert await keys(shared.records) == ["a5", "a6", "a7", "b17", "b18", "b19"]


async def test_owner_of_most_bytes_loses_the_oldest() -> None:
    shared = SharedRecords(max_bytes=10_000)
    await shared.put(ALICE, *(f"a{number}" for number in range(30)), size=50)
    await shared.put(BOB, "b1", "b2", "b3", "b4", size=4_000)
    assert await keys(shared.records) == sorted([*(f"a{number}" for number in range(30)), "b3", "b4"])
    # One value over the limit removes nothing of other users.
    await shared.put(BOB, "b5", size=20_000)
    assert await keys(shared.records) == sorted(f"a{number}" for number in range(30))


async def test_work_for_no_user_counts_for_owner_of_records_it_relies_on() -> None:
    """A worker writes events on the condition that the job is unchanged."""
    shared = SharedRecords(max_records=5)
    await shared.put(ALICE, "job_a")
    await shared.put(BOB, "job_b")
    shared.owner = ANONYMOUS
    for number, job in enumerate(["job_a", *["job_b"] * 9]):
        version = (await shared.records.get_many([job]))[job].version
        ops = [Put(job, b""), Put(f"e{number}", b"")]
        await shared.records.commit(ops, [VersionIs(job, version)])
    # Bob's job is written each time, so it is never the oldest.
    assert await keys(shared.records) == ["e0", "e8", "e9", "job_a", "job_b"]


async def test_record_that_another_user_writes_keeps_its_owner() -> None:
    shared = SharedRecords(max_records=4)
    await shared.put(ALICE, "shared", "a1")
    await shared.put(BOB, "shared", "b1", "b2", "b3")
    assert await keys(shared.records) == ["a1", "b2", "b3", "shared"]


async def test_deleted_and_expired_records_count_for_no_owner() -> None:
    shared = SharedRecords(max_records=3)
    await shared.put(ALICE, "a1", "a2")
    await shared.records.commit([Delete("a1"), Put("a3", b"", 1.0)])
    await shared.records.sweep(2.0)
    await shared.put(BOB, "b1", "b2", "b3")
    assert await keys(shared.records) == ["a2", "b2", "b3"]
    assert await shared.records.size() == 6


@pytest.mark.parametrize("cancelled", [False, True])
async def test_call_waits_for_the_thread_of_a_large_commit(cancelled: bool) -> None:
    records = MemoryRecords()
    rows = [Put(f"k{number}", b"") for number in range(5_000)]
    large = asyncio.create_task(records.commit(rows))
    await asyncio.sleep(0)
    if cancelled:
        large.cancel()
    await records.commit([Put("later", b"")], [VersionIs(rows[-1].key, 1)])
    assert len(await records.get_many([each.key for each in rows])) == len(rows)
    await asyncio.wait([large])
    assert large.cancelled() == cancelled


async def test_conflict_of_a_large_commit_is_raised_and_writes_nothing() -> None:
    records = MemoryRecords()
    with pytest.raises(Conflict):
        await records.commit([Put(f"k{number}", b"") for number in range(5_000)], [VersionIs("k1", 7)])
    assert await records.range("!", "~", limit=10_000) == []
