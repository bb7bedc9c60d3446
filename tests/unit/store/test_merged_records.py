"""Tasks whose calls are merged see what they would see alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from llama_stack_responses.concurrency.tasks import gather_or_cancel
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store import merged_records
from llama_stack_responses.store.codec import TooLarge
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.merged_records import MergedRecords
from llama_stack_responses.store.records import Delete, Empty, Op, Put, Record, VersionIs, after_prefix, committed
from tests.contract.counting_proxy import CountingProxy
from tests.support.records import WatchedRecords


async def opened(*keys: str, max_bytes: int = 10_000) -> tuple[MergedRecords, CountingProxy]:
    records = MemoryRecords()
    await records.commit([Put(key, b"value") for key in keys])
    proxy = CountingProxy(records)
    return MergedRecords(proxy, 0, max_bytes), proxy


async def test_tasks_read_together() -> None:
    keys = [f"a/{number:02}" for number in range(20)]
    merged, proxy = await opened(*keys)

    async def task(number: int) -> tuple[Any, Any, Any]:
        some = keys[number : number + 2]
        found = await merged.get_many([*some, "a/none"])
        rows = await merged.range(some[0], "b", limit=2)
        return found, rows, await merged.get_many(some, max_bytes=1)

    read = await gather_or_cancel(task(number) for number in range(18))
    one = Record(b"value", 1)
    for number, (found, rows, bounded) in enumerate(read):
        first, second = keys[number : number + 2]
        assert found == {first: one, second: one}
        assert rows == [(first, one), (second, one)]
        assert bounded == {first: one}
    assert proxy.reads == 3


async def test_commits_are_one_without_those_whose_conditions_do_not_hold() -> None:
    merged, proxy = await opened("a", "b", "c")
    commits = [
        ([Put(f"new/{key}", b"")], [VersionIs(key, version)]) for key, version in {"a": 1, "b": 7, "c": 1}.items()
    ]
    assert await gather_or_cancel(committed(merged, *each) for each in commits) == [True, False, True]
    assert proxy.commits == 2
    assert {key for key, _ in await proxy.range("new/", "new0", limit=9)} == {"new/a", "new/c"}


@pytest.mark.parametrize(
    ("one", "other", "applied"),
    [
        # A condition on what the other writes.
        (([Put("a", b"")], []), ([Put("new", b"")], [VersionIs("a", 1)]), [True, False]),
        (([Delete("f/1")], [Empty("f/", "f/1")]), ([Put("f/2", b"")], []), [True, True]),
        (([Put("f/2", b"")], []), ([Delete("a")], [Empty("f/", "f/1")]), [True, False]),
        # Both write the same key.
        (([Put("a", b"one")], []), ([Put("a", b"other")], []), [True, True]),
        # One frees memory: a full store takes it.
        (([Delete("b")], []), ([Put("new", b"")], []), [True, True]),
    ],
)
async def test_commits_that_depend_on_each_other_are_several(one: Any, other: Any, applied: list[bool]) -> None:
    merged, proxy = await opened("a", "b", "f/1")
    assert await gather_or_cancel(committed(merged, *each) for each in (one, other)) == applied
    assert proxy.commits == 2


async def test_same_write_of_several_tasks_is_made_once() -> None:
    merged, proxy = await opened("a", "b")

    def task(key: str) -> Coroutine[Any, Any, bool]:
        return committed(merged, [Delete(key), Put("g/shared", b"")], [VersionIs(key, 1)])

    assert await gather_or_cancel(map(task, "ab")) == [True, True]
    assert proxy.commits == 1
    assert (await proxy.get_many(["g/shared"]))["g/shared"].version == 1


async def test_tasks_that_read_too_much_together_fail() -> None:
    merged, _ = await opened("a", "b", max_bytes=9)
    assert await merged.get_many(["a"])
    with pytest.raises(TooLarge):
        await merged.range("b", "c", limit=1)


async def test_error_of_the_store_is_that_of_each_task() -> None:
    records = WatchedRecords(MemoryRecords())
    records.away = True
    merged = MergedRecords(records, 0, 1)
    calls: list[Coroutine[Any, Any, Any]] = [
        *(merged.get_many(["a"]) for _ in range(3)),
        *(merged.range("a", "b", limit=1) for _ in range(3)),
        *(merged.commit([Put("a", b"")]) for _ in range(3)),
    ]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in errors] == [ApiError] * 9


async def test_other_work_of_the_event_loop_goes_on_between_tasks() -> None:
    merged, _ = await opened("a")
    order = list[str]()

    async def task() -> None:
        await merged.get_many(["a"])
        order.append("task")

    async def other() -> None:
        while order.count("task") < 16:
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(*(task() for _ in range(16)), other())
    runs = "".join(each[0] for each in order).split("o")
    assert max(map(len, runs)) <= merged_records._WOKEN


@pytest.mark.parametrize("seed", range(20))
async def test_random_tasks_leave_what_they_leave_one_after_another(seed: int) -> None:
    """Each task moves a counter on if it is as the task has read it: none is lost, none counts twice."""
    chance = random.Random(seed)
    keys = [f"k/{number}" for number in range(chance.randrange(1, 6))]
    merged, proxy = await opened(*keys)
    counted = dict.fromkeys(keys, 1)

    async def task(key: str, also: str) -> None:
        while True:
            found = await merged.get_many([key, also])
            ops: list[Op] = [Put(each, b"value") for each in dict.fromkeys((key, also))]
            if await committed(merged, ops, [VersionIs(key, found[key].version), VersionIs(also, found[also].version)]):
                break
        for each in {key, also}:
            counted[each] += 1

    await gather_or_cancel(task(chance.choice(keys), chance.choice(keys)) for _ in range(30))
    rows = await proxy.range("k/", after_prefix("k/"), limit=9)
    assert {key: record.version for key, record in rows} == counted
