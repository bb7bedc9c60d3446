"""Partitions that move to other primaries of a cluster while clients write: how long that takes, and what it holds up.

    .venv/bin/python -m benchmarks.resharding                                   # key by key, one after the other
    .venv/bin/python -m benchmarks.resharding --atomic --server .../valkey-server   # as a whole, together: Valkey 9
    .venv/bin/python -m benchmarks.resharding --rows 10000 --partitions 1

The cluster has three primaries with a replica each. In each partition there are rows of 1 kB, and one client that
commits two rows again and again, and waits for each answer. All partitions move to the next primary. Each commit that
failed is counted, and in the end both rows have to have been written as often as was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.records import Put, VersionIs
from llama_stack_responses.store.redis import RedisRecords, cluster_parts
from tests.support.cluster import ChosenNode, Cluster

VALUE: Final = b"x" * 1000
ROWS_A_COMMIT: Final = 500
QUIET_SECONDS: Final = 1.0
"""For as long, clients write before and after the move."""


@dataclass
class Written:
    """What a client has seen.

    Attributes:
        seconds: of each commit that was acknowledged, with its end.
        failed: how many were not.
    """

    seconds: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0


async def write(records: RedisRecords, done: asyncio.Event, written: Written) -> None:
    """Commit two rows until the event; check that nothing of it is lost."""
    acknowledged, known = 0, 0
    while not done.is_set():
        began = time.perf_counter()
        try:
            await records.commit([Put("one", VALUE), Put("other", VALUE)], [VersionIs("one", known or None)])
        except ApiError:
            written.failed += 1
            known = (await versions(records))[0]
        else:
            acknowledged, known = acknowledged + 1, known + 1
            written.seconds.append((time.perf_counter() - began, time.perf_counter()))
    one, other = await versions(records)
    if one != other or one < acknowledged:
        raise RuntimeError(
            f"{acknowledged} commits were acknowledged, and the rows have the versions {one} and {other}"
        )


async def versions(records: RedisRecords) -> tuple[int, int]:
    """Return how often both rows were written, as soon as the store answers."""
    while True:
        try:
            found = await records.get_many(["one", "other"])
        except ApiError:
            continue
        one, other = (found[key].version if key in found else 0 for key in ("one", "other"))
        return one, other


async def measure(cluster: Cluster, partitions: int, rows: int, *, atomic: bool) -> None:
    """Measure, and print what was measured."""
    async with AsyncExitStack() as running:
        parts = cluster_parts(cluster.url, partitions, prefix="p")
        for part in parts:
            running.push_async_callback(part.close)
            for first in range(0, rows, ROWS_A_COMMIT):
                await part.commit(
                    [Put(f"r/{number}", VALUE) for number in range(first, min(rows, first + ROWS_A_COMMIT))]
                )
        done, written = asyncio.Event(), [Written() for _ in parts]
        places = [f"{{p{number}}}:" for number in range(partitions)]
        async with asyncio.TaskGroup() as group:
            for part, each in zip(parts, written, strict=True):
                group.create_task(write(part, done, each))
            await asyncio.sleep(QUIET_SECONDS)
            began = time.perf_counter()
            if atomic:
                await asyncio.to_thread(cluster.move_as_a_whole, places)
            else:
                for place in places:
                    await asyncio.to_thread(cluster.move, place)
            ended = time.perf_counter()
            await asyncio.sleep(QUIET_SECONDS)
            done.set()
    moving = [took for each in written for took, at in each.seconds if at > began and at - took < ended]
    quiet = [took for each in written for took, at in each.seconds if at <= began]
    how = "as a whole" if atomic else "key by key"
    sys.stdout.write(
        f"{partitions} partitions with {rows} rows moved in {ended - began:.2f} s, {how}: "
        f"{len(moving)} commits meanwhile, {sum(each.failed for each in written)} failed, the longest took "
        f"{max(moving):.2f} s, median {1000 * median(moving):.1f} ms (before: {1000 * median(quiet):.1f} ms)\n"
    )


def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=8, help="how many move (default: 8)")
    parser.add_argument("--rows", type=int, default=2000, help="of each (default: 2,000)")
    parser.add_argument("--atomic", action="store_true", help="move them as a whole")
    parser.add_argument("--server", default="", help="the path of the server's program")
    options = parser.parse_args()
    ChosenNode.program = options.server
    with (
        tempfile.TemporaryDirectory(prefix="resharding-") as folder,
        Cluster(Path(folder), "--appendfsync", "no", node=ChosenNode) as cluster,
    ):
        asyncio.run(measure(cluster, options.partitions, options.rows, atomic=options.atomic))


if __name__ == "__main__":
    main()
