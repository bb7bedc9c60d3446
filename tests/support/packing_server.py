"""A process that packs what is idle in a store, as a server does that shares this work with others.

python -m tests.support.packing_server URL FOLDER NAME SECONDS [PARTITIONS]

It prints the ids of the responses of each chain that it has packed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.cold.objects import Objects
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.jobs.worker_leases import WorkerLeases
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Records
from llama_stack_responses.store.redis import RedisRecords, cluster_parts
from tests.support.cold import in_folder

LEASE_SECONDS = 3.0


class _Packing(Packing):
    """Prints what it has packed."""

    async def _commit(self, number: int, chains: Sequence[Any], later: float) -> list[bool]:
        are_packed = await super()._commit(number, chains, later)
        for chain, is_packed in zip(chains, are_packed, strict=True):
            if is_packed:
                print(*chain.unit.orders, flush=True)
        return are_packed


def opened(url: str, partitions: int) -> Records:
    """Open a store in a server, or in a cluster if it has several partitions."""
    if partitions > 1:
        return PartitionedRecords(cluster_parts(url, partitions, prefix="responses:", timeout=30))
    return RedisRecords(url, timeout=30)


async def main(url: str, folder: str, name: str, after: str, partitions: str = "1") -> None:
    """Keep a lease, and pack again and again."""
    records = opened(url, int(partitions))
    leases = WorkerLeases(records, LEASE_SECONDS, lambda: 0.0)
    packing = _Packing(
        records, Objects(in_folder(Path(folder)), records), float(after), least_bytes=1, object_bytes=3_000
    )
    packing.shares.worker = name

    async def beat() -> None:
        while True:
            await leases.renew(name, await records.now(), [], first_needed=True)
            await asyncio.sleep(LEASE_SECONDS / 3)

    beating = asyncio.create_task(beat())
    while not beating.done():
        try:
            await packing.work()
        except ApiError as error:
            print(error, file=sys.stderr)
        await asyncio.sleep(0.2)
    await beating


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
