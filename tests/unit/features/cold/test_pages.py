"""Rows in pages are read, listed and changed as all others are, whatever moves meanwhile."""

from __future__ import annotations

import random
import threading
from collections import Counter
from itertools import count

import pytest

from llama_stack_responses.features.cold import pages as module
from llama_stack_responses.features.cold.pages import PagedRecords, decoded, encoded
from llama_stack_responses.store import codec
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Conflict, Delete, Put, Record, VersionIs
from tests.support.records import FailingOver, WatchedRecords


def key_of(number: int) -> str:
    return f"l/owner{number % 3}/6ab13b{number:08x}/resp_{number:024x}"


async def filled(records: PagedRecords, numbers: range) -> dict[str, bytes]:
    """Store rows, and move them into pages."""
    rows = {key_of(number): codec.encode({"words": "a row of a list " * 8, "number": number}) for number in numbers}
    await records.unpaged.commit([Put(key, value) for key, value in rows.items()])
    found = await records.unpaged.get_many(list(rows))
    assert await records.settle(found, [])
    assert await records.unpaged.get_many(list(rows)) == {}
    return rows


async def pages(records: PagedRecords) -> dict[str, Record]:
    return dict(await records.unpaged.range("ck/", "ck0", limit=1000))


def test_page_has_the_rows_that_were_put_there() -> None:
    rows = [(f"i/{number:x}", Record(bytes((number % 256,)) * number, number + 1)) for number in range(300)]
    rows.sort()
    assert list(decoded(encoded(rows)).items()) == rows
    for damaged in (b"\2" + encoded(rows)[1:], encoded(rows)[:-9]):
        with pytest.raises(codec.UnreadableError):
            decoded(damaged)


async def test_many_rows_take_little() -> None:
    records = PagedRecords(MemoryRecords())
    rows = await filled(records, range(2000))
    taken = await pages(records)
    assert len(taken) > 10
    assert sum(len(key) + len(page.value) for key, page in taken.items()) < sum(map(len, rows)) / 2


async def test_random_changes_of_rows_by_themselves_and_in_pages() -> None:
    chance = random.Random(7)
    records = PagedRecords(PartitionedRecords([MemoryRecords(), MemoryRecords()]))
    rows = await filled(records, range(0, 900, 3))
    for number in range(1, 60, 3):
        rows[key_of(number)] = b"by itself"
        await records.unpaged.commit([Put(key_of(number), b"by itself")])
    for _ in range(150):
        key = chance.choice([*rows, key_of(chance.randrange(900))])
        op = Delete(key) if chance.random() < 0.5 else Put(key, b"new")
        await records.commit([op])
        rows.pop(key, None)
        if isinstance(op, Put):
            rows[key] = op.value
        start, end = sorted((key_of(chance.randrange(900)), key_of(chance.randrange(900))))
        reverse, limit = chance.random() < 0.5, chance.choice([1, 7, 500])
        found = await records.range(start, end, limit=limit, reverse=reverse)
        wanted = sorted((each for each in rows if start <= each < end), reverse=reverse)[:limit]
        assert [each for each, _ in found] == wanted
    read = await records.get_many([*rows, key_of(5000)])
    assert {key: codec.repacked(each.value) for key, each in read.items()} == rows
    await records.commit([Delete(key) for key in rows])
    assert await records.unpaged.range("!", "~", limit=9) == []


async def test_row_that_moves_while_it_is_read_is_found() -> None:
    store = MemoryRecords()
    plain = PagedRecords(store)
    rows = await filled(plain, range(40))
    key = sorted(rows)[20]
    for at in range(1, 6):
        calls = count(1)

        async def move(_: str, at: int = at, calls: count[int] = calls) -> None:
            if next(calls) == at:
                lifts = await plain.lifts([key])
                await (plain.commit(lifts) if lifts else plain.settle(await store.get_many([key]), []))

        records = PagedRecords(WatchedRecords(store, after=move))
        assert await records.get_many([key])
        assert [each for each, _ in await records.range("l/", "l0", limit=100)] == sorted(rows)
        assert await records.get_many([key])


async def test_commits_of_the_same_page_are_both_made() -> None:
    store = MemoryRecords()
    plain = PagedRecords(store)
    await filled(plain, range(40))
    waiting = [Delete(key_of(1))]

    async def before(name: str) -> None:
        if name == "commit" and waiting:
            await plain.commit([waiting.pop()])

    records = PagedRecords(WatchedRecords(store, before=before))
    await records.commit([Delete(key_of(2))], [VersionIs(key_of(2), 1)])
    assert len(await plain.range("l/", "l0", limit=100)) == 38
    with pytest.raises(Conflict) as refused:
        await plain.commit([Delete(key_of(3))], [VersionIs(key_of(3), 2), VersionIs("other", None)])
    assert refused.value.failed == (VersionIs(key_of(3), 2),)


async def test_each_page_of_a_range_is_decoded_once_and_many_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    records = PagedRecords(MemoryRecords())
    rows = await filled(records, range(2000))
    opened, threads = Counter[bytes](), set[int]()

    def opening(value: bytes) -> dict[str, Record]:
        opened[value] += 1
        threads.add(threading.get_ident())
        return decoded(value)

    monkeypatch.setattr(module, "decoded", opening)
    assert len(await records.range("l/", "l0", limit=3000)) == len(rows)
    assert set(opened.values()) == {1}
    assert len(opened) > 10
    assert threads - {threading.get_ident()}


@pytest.mark.parametrize("settles", [True, False])
async def test_page_of_a_lost_primary_is_not_the_base_of_one_with_the_same_version(settles: bool) -> None:
    lost, other = MemoryRecords(), MemoryRecords()
    for store, deleted in ((lost, 0), (other, 3)):
        await filled(PagedRecords(store), range(0, 30, 3))
        await PagedRecords(store).commit([Delete(key_of(deleted))])
        await store.commit([Put(key_of(90), b"by itself")])
    records = PagedRecords(FailingOver(lost, other, before=("commit", "replicated")))
    if settles:
        assert await records.settle(await lost.get_many([key_of(90)]), [])
    else:
        await records.commit([Delete(key_of(6))])
    left = {key for key, _ in await PagedRecords(other).range("l/", "l0", limit=100)}
    gone = {3} if settles else {3, 6}
    assert left == {key_of(number) for number in (*range(0, 30, 3), 90)} - {key_of(number) for number in gone}
