"""Limits on rows: requests of one process fill them exactly, however their counts and writes overlap."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from llama_stack_responses.jobs.row_quota import RowQuota
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put
from tests.support.records import WatchedRecords
from tests.support.waiting import turns


class FullError(Exception):
    """There are two rows already."""


@asynccontextmanager
async def admitted(quota: RowQuota) -> AsyncIterator[None]:
    """Admit a row with the prefix `q/`, of which there may be two, for the block."""
    row = await quota.take("q/", 2)
    if row is None:
        raise FullError
    try:
        yield
    finally:
        row.finish()


async def write(quota: RowQuota, records: MemoryRecords, key: str, written: asyncio.Event | None = None) -> None:
    """Write a row. Leave the block when the event is set."""
    async with admitted(quota):
        await records.commit([Put(key, b"")])
        if written:
            await written.wait()


async def test_row_that_is_written_but_pending_is_counted_once() -> None:
    records = MemoryRecords()
    quota, written = RowQuota(records), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(write(quota, records, "q/1", written))
        await turns(5)
        second = group.create_task(write(quota, records, "q/2"))
        await turns(5)
        assert not second.done(), "the first row may be among those that were counted, or not"
        written.set()
    assert len(await records.range("q/", "q0", limit=3)) == 2
    assert not quota._prefixes


async def test_row_that_lands_during_a_count_is_counted_once() -> None:
    records = MemoryRecords()
    counted, go_on = asyncio.Event(), asyncio.Event()

    async def after(call: str) -> None:
        if call == "range" and counted.is_set():
            await go_on.wait()

    quota = RowQuota(WatchedRecords(records, after=after))
    written = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(write(quota, records, "q/1", written))
        await turns(5)
        counted.set()
        second = group.create_task(write(quota, records, "q/2"))
        await turns(5)
        written.set()
        await first
        go_on.set()
    assert second.exception() is None


async def test_count_serves_for_an_eighth_of_what_is_free_and_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    records, numbers, now, counts = MemoryRecords(), count(), 0.0, 0

    async def before(call: str) -> None:
        nonlocal counts
        counts += call == "range"

    async def counted(prefix: str, rows: int) -> int:
        nonlocal counts
        counts = 0
        for _ in range(rows):
            row = await quota.take(prefix, 100)
            assert row
            assert row.count == len(await records.range(prefix, f"{prefix}~", limit=100)) + 1
            await records.commit([Put(f"{prefix}{next(numbers)}", b"")])
            row.finish()
        return counts

    quota = RowQuota(WatchedRecords(records, before=before))
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    assert await counted("q/", 13) == 1
    assert await counted("q/", 1) == 1
    assert await counted("q/", 10) == 0
    now = 1.0
    assert await counted("q/", 1) == 1
    assert await counted("other/", 94) > await counted("third/", 50)
    assert await counted("other/", 6) == 6
    assert await quota.take("other/", 100) is None


async def test_request_over_the_limit_is_refused_after_pending_rows_landed() -> None:
    records = MemoryRecords()
    quota, written = RowQuota(records), asyncio.Event()
    writers = [asyncio.create_task(write(quota, records, f"q/{number}", written)) for number in range(2)]
    await turns(5)
    third = asyncio.create_task(write(quota, records, "q/3"))
    await turns(5)
    written.set()
    await asyncio.gather(*writers)
    with pytest.raises(FullError):
        await third


async def test_request_is_admitted_when_pending_row_is_given_up() -> None:
    records = MemoryRecords()
    quota = RowQuota(records)
    await records.commit([Put("q/0", b"")])

    async def give_up() -> None:
        async with admitted(quota):
            await turns(20)
            raise ConnectionError

    lost = asyncio.create_task(give_up())
    await turns(5)
    second = asyncio.create_task(write(quota, records, "q/2"))
    with pytest.raises(ConnectionError):
        await lost
    await second
    assert not quota._prefixes


async def test_cancelled_request_leaves_the_others_waiting() -> None:
    records = MemoryRecords()
    quota, written = RowQuota(records), asyncio.Event()
    first = asyncio.create_task(write(quota, records, "q/1", written))
    await turns(5)
    waiting = [asyncio.create_task(write(quota, records, f"q/{number}")) for number in (2, 3)]
    await turns(5)
    waiting[0].cancel()
    written.set()
    await asyncio.gather(first, waiting[1])
    assert [key for key, _ in await records.range("q/", "q0", limit=3)] == ["q/1", "q/3"]
