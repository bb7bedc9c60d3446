"""Where the partitions of a store are, how full they are, and what waits in them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlsplit

from ...core.errors import ApiError
from ...core.types import Json
from ...jobs.served_partitions import HELD, QUEUED, living_workers, workers_of
from ...store.partitions import PartitionedRecords
from ...store.records import Limited, Occupancy, Occupied, Records, pages_in, unmoved

_MAX_JOBS: Final = 10_000
"""Rows of jobs of a partition that are counted at most."""

_AT_ONCE: Final = 16
"""Partitions of a server that are read at a time."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition.

    Attributes:
        partition: its number.
        slot: its slot in a cluster.
        primary: the address of the server that has it; None if the store has no server.
        replicas: those of its copies; None if unknown.
        state: `ok`, or `away`: it does not answer, so the numbers below are unknown.
        rows: how many rows it has.
        bytes: what they take, estimated.
        waiting: how many background responses wait; at most 10,000 are counted.
        held: how many of them workers hold, as far.
        worker: the living worker that serves it; None if none lives.
    """

    partition: int
    slot: int | None
    primary: str | None
    replicas: Sequence[str] | None
    state: str = "ok"
    rows: int | None = None
    bytes: int | None = None
    waiting: int | None = None
    held: int | None = None
    worker: str | None = None


class PartitionsView:
    """Reads how a store is spread, in a bounded time whatever it holds.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = unmoved(records)
        spread = self._records
        self._parts: Sequence[Records] = spread.parts if isinstance(spread, PartitionedRecords) else [spread]
        self._failure: ApiError | None = None

    async def read(self) -> tuple[list[Json], list[Json]]:
        """Return the partitions, and the servers that have them with what they take in all and what is left.

        Raises:
            ApiError: 503, no partition answers.
        """
        of_servers = defaultdict[str | None, list[int]](list)
        for number, part in enumerate(self._parts):
            of_servers[await _server(part)].append(number)
        workers = await self._workers()
        read = await asyncio.gather(*(self._of_server(*each, workers) for each in of_servers.items()))
        found = {each.partition: each for each in (partition for some, _ in read for partition in some)}
        if self._failure and all(each.state == "away" for each in found.values()):
            raise self._failure
        return [asdict(found[number]) for number in sorted(found)], [server for _, server in read]

    async def _workers(self) -> list[str | None]:
        try:
            return workers_of(len(self._parts), await living_workers(self._records))
        except ApiError as error:
            if error.retry_after is None:  # the settings of the store are wrong
                raise
            return [None] * len(self._parts)

    async def _of_server(
        self, server: str | None, numbers: Sequence[int], workers: Sequence[str | None]
    ) -> tuple[list[Partition], Json]:
        first = self._parts[numbers[0]]
        known: Mapping[str, int | None] = {"bytes": None, "free": None}
        try:
            free = await first.free() if isinstance(first, Limited) else None
            known = {"bytes": await first.size(), "free": free}
            turns = asyncio.Semaphore(_AT_ONCE)
            read = [self._partition(number, server, workers[number], turns) for number in numbers]
            partitions = await asyncio.gather(*read)
            state = "ok"
        except ApiError as error:
            # The others on this server would not answer either, each after some seconds.
            self._failure, state = error, "away"
            partitions = [Partition(each, _slot(self._parts[each]), server, None, "away") for each in numbers]
        return partitions, {"server": server, "state": state, "partitions": len(numbers), **known}

    async def _partition(
        self, number: int, server: str | None, worker: str | None, turns: asyncio.Semaphore
    ) -> Partition:
        part = self._parts[number]
        async with turns:
            held = await part.occupancy() if isinstance(part, Occupied) else None
            waiting, running = [await _count(part, prefix) for prefix in (QUEUED, HELD)]
            filled = held or Occupancy(0, await part.size(), None)
        rows = held.rows if held else None
        slot, replicas = _slot(part), filled.replicas
        return Partition(number, slot, server, replicas, "ok", rows, filled.size, waiting, running, worker)


async def _server(part: Records) -> str | None:
    """Return the address of the server of a partition, without a user."""
    if not isinstance(part, Occupied):
        return None
    server = await part.server()
    return (urlsplit(server).netloc or server).rpartition("@")[2]


def _slot(part: Records) -> int | None:
    return part.hash_slot if isinstance(part, Occupied) else None


async def _count(part: Records, prefix: str) -> int:
    count = 0
    async for rows in pages_in(part, 0, prefix):
        count += len(rows)
        if count >= _MAX_JOBS:
            break
    return min(count, _MAX_JOBS)
