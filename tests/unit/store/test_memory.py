from __future__ import annotations

import asyncio

from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put


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
