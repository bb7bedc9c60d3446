"""Server processes share the packing of idle responses, on one Valkey and in a cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.cold.objects import Objects
from llama_stack_responses.features.cold.pages import PagedRecords
from llama_stack_responses.features.cold.prefixes import CHAINS
from llama_stack_responses.features.cold.rows import Chain
from llama_stack_responses.jobs.served_partitions import living_workers
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Records
from tests.contract.conversations import assistant, response, user
from tests.support.cluster import Cluster
from tests.support.cold import ColdStore, in_folder
from tests.support.packing_server import opened
from tests.support.valkey import Valkey
from tests.support.waiting import until_found

# No host takes part.
pytestmark = [pytest.mark.extended, pytest.mark.one_host]

USERS: Final = 24
AFTER: Final = 1_000.0


@contextmanager
def packing(url: str, folder: Path, name: str, partitions: int) -> Iterator[subprocess.Popen[str]]:
    """Run a server that packs."""
    command = [
        sys.executable,
        "-m",
        "tests.support.packing_server",
        url,
        str(folder),
        name,
        str(AFTER),
        str(partitions),
    ]
    with (folder / name).open("w") as output, subprocess.Popen(command, stdout=output, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def packed_by(folder: Path, name: str) -> list[str]:
    """Return the ids of what a server has packed."""
    return (folder / name).read_text().split()


async def stored(records: Records, first: int) -> dict[str, str]:
    """Store two old responses for each of some users; return the users of the responses.

    None continues another one, which a server may have packed by then: such a response stays longer.
    """
    archive, created = Archive(records), int(await records.now() - 2 * AFTER)
    found = {}
    for number in range(first, first + USERS):
        owner = Owner(f"user {number}")
        tag = archive.placement.of_owner(owner)
        for turn in range(2):
            made = response(assistant(f"answer {turn}"), id=new_id("resp", tag), created_at=created + turn)
            asked = user(f"question {number} {turn}")
            await archive.save(made, owner=owner, base=None, input_items=[asked])
            found[made["id"]] = owner.principal
    return found


async def check(url: str, folder: Path, partitions: int) -> None:
    """Have two servers pack, kill one, and have the other pack all."""
    records = opened(url, partitions)
    cold = ColdStore(records, in_folder(folder), lambda: 0.0)
    try:
        with packing(url, folder, "one", partitions) as one, packing(url, folder, "two", partitions):

            async def both_live() -> bool:
                return len(await living_workers(records)) == 2

            async def all_packed() -> bool:
                return await cold.packed() == of.keys()

            await until_found(both_live, 120)
            of = await stored(records, 0)
            await until_found(all_packed, 120)
            first, second = packed_by(folder, "one"), packed_by(folder, "two")
            assert sorted([*first, *second]) == sorted(of), "a response was packed twice"
            assert {of[each] for each in first}.isdisjoint(of[each] for each in second)
            assert first
            assert second
            one.kill()
            of |= await stored(records, USERS)
            await until_found(all_packed, 120)
        assert packed_by(folder, "one") == first
        assert sorted([*first, *packed_by(folder, "two")]) == sorted(of)
        await check_objects(records, cold.objects)
    finally:
        await records.close()


async def check_objects(records: Records, objects: Objects) -> None:
    """Check that nothing was written to the object store that is not used."""
    rows = await PagedRecords(records).range(CHAINS, "co0", limit=1_000)
    assert sum(Chain.decode(record).total for _, record in rows) == sum([each.size async for each in objects.all()])


def test_two_servers_on_one_store_pack_different_users(tmp_path: Path) -> None:
    with Valkey(tmp_path) as server:
        asyncio.run(check(server.url, tmp_path, 1))


def test_two_servers_in_a_cluster_pack_different_partitions(tmp_path: Path) -> None:
    with Cluster(tmp_path, replicas=0) as cluster:
        asyncio.run(check(cluster.url, tmp_path, 8))
