"""Packing while a partition does not answer, or while its primary dies."""

from __future__ import annotations

from pathlib import Path
from typing import override

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id, tag_of
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.cold import packing
from llama_stack_responses.features.cold.prefixes import CHAINS
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Put, Record
from tests.contract.conversations import CREATED, assistant, response, user
from tests.support.cold import AFTER, ColdStore, in_folder, sent
from tests.support.records import FailingOver, WatchedRecords

PARTS = 4


class WithoutChains(WatchedRecords):
    """A partition as its primary has it that has deleted all its chains."""

    @override
    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        if start.startswith(CHAINS):
            return []
        return await super().range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)


class Site:
    """A store in partitions, of which some can be away, with responses in each."""

    def __init__(self, folder: Path) -> None:
        self.now = CREATED + 2 * AFTER
        self.parts = [WatchedRecords(MemoryRecords(clock=lambda: self.now)) for _ in range(PARTS)]
        self.cold = ColdStore(PartitionedRecords(self.parts), in_folder(folder), lambda: self.now)

    async def fill(self) -> set[str]:
        found = set()
        for number in range(3 * PARTS):
            made = response(assistant(f"answer {number}"), id=new_id("resp", number + 1), created_at=CREATED)
            owner = Owner(f"user {number % 5}")
            await self.cold.archive.save(made, owner=owner, base=None, input_items=[user(f"question {number}")])
            found.add(made["id"])
        return found

    async def work(self) -> None:
        with pytest.raises(ApiError, match="cannot be reached"):
            await self.cold.packing.work()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def outside(ids: set[str], away: int) -> set[str]:
    return {each for each in ids if tag_of(each) % PARTS != away}


@pytest.mark.parametrize("away", range(1, PARTS))
async def test_others_are_packed_while_a_partition_is_away(site: Site, away: int) -> None:
    ids = await site.fill()
    site.parts[away].away = True
    await site.work()
    site.parts[away].away = False
    assert await site.cold.packed() == outside(ids, away)
    assert site.cold.packing._pause(packing._RETRY_SECONDS) == packing._RETRY_SECONDS
    await site.cold.packing.work()
    assert await site.cold.packed() == ids


async def test_first_partition_is_missed_only_by_a_server_that_has_just_started(site: Site) -> None:
    ids = await site.fill()
    await site.cold.hot.commit([Put("p/worker", b"")])
    await site.cold.objects.put("known", sent())  # the name of the folder is in the first partition
    site.cold.packing.shares.worker = "worker"
    site.parts[0].away = True
    await site.work()
    site.parts[0].away = False
    assert await site.cold.packed() == set()
    await site.cold.packing.shares.own()
    site.parts[0].away = True
    await site.work()
    site.parts[0].away = False
    assert await site.cold.packed() == outside(ids, 0)
    await site.cold.packing.work()
    assert await site.cold.packed() == ids


@pytest.mark.parametrize("at", range(1, 40, 3))
async def test_partition_that_goes_away_meanwhile_keeps_what_it_has(site: Site, at: int) -> None:
    ids = await site.fill()
    calls = list[str]()

    async def go_away(name: str) -> None:
        calls.append(name)
        site.parts[2].away |= len(calls) == at

    site.parts[2]._before = go_away
    try:
        await site.cold.packing.work()
    except ApiError:
        assert site.parts[2].away
    site.parts[2].away, site.parts[2]._before = False, None
    assert await site.cold.packed() >= outside(ids, 2)
    site.now += 2 * packing._UPLOAD_SECONDS
    await site.cold.packing.work()
    await site.cold.packing.work()
    assert await site.cold.packed() == ids
    for each in sorted(ids):
        stored = await site.cold.archive.load(each)
        assert stored
        assert len(await site.cold.archive.history(stored.history)) == 2


async def test_object_stays_while_only_a_dying_primary_has_deleted_its_chains(site: Site) -> None:
    ids = await site.fill()
    await site.cold.packing.work()
    for number, part in enumerate(site.parts):
        site.parts[number] = FailingOver(WithoutChains(part), part, before=("replicated",))
    await site.cold.packing.collect()
    assert {part.server for part in site.parts if isinstance(part, FailingOver)} == {"first", "second"}
    for each in ids:
        assert await site.cold.archive.load(each), "its chain is in the store again"
