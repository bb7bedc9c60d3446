"""Servers share what is idle, and go on where one has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.cold import candidates, packing
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.shares import Share, Shares, Span
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Put, Records
from tests.contract.conversations import CREATED, assistant, response, user
from tests.support.cold import AFTER, ColdStore, in_folder
from tests.support.records import WatchedRecords


def in_parts(count: int) -> Records:
    return PartitionedRecords([MemoryRecords() for _ in range(count)])


@pytest.mark.parametrize("partitions", [1, 8, 256])
async def test_shares_of_living_servers_are_all(partitions: int) -> None:
    records = in_parts(partitions)
    servers = [Shares(records) for _ in range(3)]
    for number, each in enumerate(servers):
        each.worker = f"worker {number}"
        assert await each.own() == []
    await records.commit([Put(f"p/worker {number}", b"") for number in range(3)])
    own = [await each.own() for each in servers]
    assert all(len(each) > max(64, partitions) / 6 for each in own)
    assert sorted(share for each in own for share in each) == list(await Shares(records).own())
    await records.commit([Put("p/worker 9", b"")])
    assert sum([len(await each.own()) for each in servers]) < sum(map(len, own))


async def test_each_list_is_in_the_range_of_its_share() -> None:
    shares = Shares(in_parts(4))
    for number in range(200):
        owner = Owner(f"user {number}")
        share = shares.of_key(number, f"l/{Hasher(owner).owner}/")
        [span] = await shares.spans([share])
        assert share.partition == number % 4
        assert span.start <= f"l/{Hasher(owner).owner}/" < span.end


async def test_each_conversation_is_in_the_range_of_its_share() -> None:
    for partitions in (1, 4):
        shares, own = Shares(in_parts(partitions)), set[Share]()
        for number in range(200):
            key = f"c/{new_id('conv', number % 2 * number)}"
            share = shares.of_key(number, key)
            [span] = shares.conversations([share])
            assert span.start <= key < span.end
            own.add(share)
        assert len(own) > 30
        whole = [Span(number, "c/", "c0") for number in range(partitions)]
        assert shares.conversations(await shares.own()) == whole


async def test_adjacent_shares_are_one_range_except_where_a_server_has_ended() -> None:
    records = in_parts(2)
    shares = Shares(records)
    assert await shares.spans(await shares.own()) == [Span(0, "l/", "l0"), Span(1, "l/", "l0")]
    await records.commit([Put(Share(1, 3).cursor, b"l/9x")])
    found = await shares.spans([Share(1, number) for number in (1, 2, 3, 4, 7)])
    starts = [f"l/{'-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_'[2 * number]}" for number in range(10)]
    assert found == [
        Span(1, starts[1], starts[3]),
        Span(1, "l/9x", starts[5], Share(1, 3).cursor),
        Span(1, starts[7], starts[8]),
    ]


async def store(cold: ColdStore, users: int) -> set[str]:
    found = set()
    for number in range(users):
        made = response(assistant(f"answer {number}"), created_at=CREATED)
        await cold.archive.save(made, owner=Owner(f"user {number}"), base=None, input_items=[user("question")])
        found.add(made["id"])
    return found


async def test_server_goes_on_where_one_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_LISTED", 2)
    records = MemoryRecords(clock=lambda: CREATED + 2 * AFTER)
    cold = ColdStore(records, in_folder(tmp_path), lambda: CREATED + 2 * AFTER)
    ids = await store(cold, 10)
    killed = Packing(records, cold.objects, AFTER, least_bytes=1, object_bytes=1)

    async def kill(_: str) -> None:
        if len(await cold.packed()) == 6:
            raise asyncio.CancelledError

    killed._records._records = WatchedRecords(records, before=kill)
    with pytest.raises(asyncio.CancelledError):
        await killed.work()
    [(_, cursor)] = await records.range("cp/next", "cp/o", limit=9)
    [_, goes_on] = await Shares(records).spans(await Shares(records).own())
    assert goes_on.start == cursor.value.decode()
    await cold.packing.work()
    assert await cold.packed() == ids
    assert not await records.range("cp/next", "cp/o", limit=9)


async def test_objects_are_looked_at_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_COLLECTED", 2)
    records = MemoryRecords(clock=lambda: CREATED + 2 * AFTER)
    cold = ColdStore(records, in_folder(tmp_path), lambda: CREATED + 2 * AFTER)
    await store(cold, 5)
    await Packing(records, cold.objects, AFTER, least_bytes=1, object_bytes=1)._pack()
    assert len(await cold.stored()) == 5
    for each in await cold.packed():
        await cold.archive.delete(each)
    for left in (3, 1, 0):
        await cold.packing.collect()
        assert len(await cold.stored()) == left
