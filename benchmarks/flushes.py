"""Stored responses per second on a PostgreSQL server with slow log flushes.

The server waits `FLUSH_MS` before each flush of its log (`commit_delay`), like one with a remote disk. Commits that
hold contended locks take a flush each; all others share flushes. The same calls on a server without the wait show the
other limits.

python -m benchmarks.flushes [--seconds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final, Self

import asyncpg

from benchmarks.servers import REPOSITORY, Worker, cpu_seconds
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.postgres import PostgresRecords
from tests.contract.conversations import CREATED, assistant, response, user
from tests.support.postgres import Postgres
from tests.support.stack import LiveStack
from tests.support.upstream import UpstreamProcess

type Json = dict[str, Any]

FLUSH_MS: Final = 20
CLIENTS: Final = 32
SHORT: Final = "local/fast-1"
MODEL: Final = "local/fast-32"
FORMS: Final[Mapping[str, Json]] = {
    "one word": {"model": SHORT},
    "whole": {"model": MODEL},
    "streamed": {"model": MODEL, "stream": True},
    "in the background, streamed": {"model": MODEL, "background": True, "stream": True},
}
SLOW: Final = (f"commit_delay={FLUSH_MS * 1000}", "commit_siblings=0")


@dataclass(frozen=True)
class Flushed:
    """The result of one case.

    Attributes:
        rate: stored responses per second.
        took: latencies, in seconds.
        flushes: log flushes per response.
        here: CPU seconds per response of the process that saves; for requests, of the server.
        there: CPU seconds per response of the database's processes.
    """

    rate: float
    took: Sequence[float]
    flushes: float
    here: float
    there: float

    @property
    def bound(self) -> float:
        """The responses per second of one process that has a processor for itself."""
        return 1 / self.here


def flushes(folder: Path, seconds: float) -> dict[str, tuple[Flushed, Flushed]]:
    """Measure each case, by name: with slow flushes, and with those of this machine."""
    slow, fast = (_cases(folder / name, options, seconds) for name, options in (("slow", SLOW), ("fast", ())))
    return {name: (slow[name], fast[name]) for name in slow}


def _cases(folder: Path, options: Sequence[str], seconds: float) -> dict[str, Flushed]:
    folder.mkdir()
    found: dict[str, Flushed] = {}
    with Postgres(folder / "postgres", *options) as server:
        for owners in (1, CLIENTS):
            name = "saves of one owner" if owners == 1 else "saves, each client an owner"
            found[name] = asyncio.run(_saves(server, owners, seconds))
        with (
            UpstreamProcess(folder / "upstream.log") as model,
            LiveStack(
                REPOSITORY / "templates" / "postgres" / "config.yaml",
                {"INFERENCE_URL": model.client.base_url, "PYTHONPATH": str(REPOSITORY), **server.environment},
                folder / "stack",
            ) as stack,
            Worker("benchmarks.load") as load,
        ):
            for name, form in FORMS.items():
                _ask(load, stack, form, 5)
                found[f"requests, {name}"] = _requests(server, load, stack, form, seconds)
    return found


async def _saves(server: Postgres, owners: int, seconds: float) -> Flushed:
    """Save responses from concurrent clients, each one after another, and each in a new chain."""
    records = PostgresRecords(server.url, schema=f"saves_{owners}")
    archive = Archive(records, clock=lambda: CREATED)
    took: list[float] = []

    async def client(number: int, until: float) -> None:
        owner = Owner(f"user-{number % owners}")
        while (begun := time.perf_counter()) < until:
            created = response(assistant(f"The answer to {begun} of {number}."))
            await archive.save(created, owner=owner, base=None, input_items=[user(f"Question {begun} of {number}.")])
            took.append(time.perf_counter() - begun)

    try:
        await asyncio.gather(*(client(number, time.perf_counter() + 0.5) for number in range(CLIENTS)))
        took.clear()
        measured = await _Measuring.begin(server, time.process_time)
        await asyncio.gather(*(client(number, measured.begun + seconds) for number in range(CLIENTS)))
        return await measured.end(took)
    finally:
        await records.close()


def _requests(server: Postgres, load: Worker, stack: LiveStack, form: Json, seconds: float) -> Flushed:
    """Send requests from concurrent clients to a server, each one after another, for about `seconds`."""
    begun = time.perf_counter()
    _ask(load, stack, form, 3)
    count = max(3, round(3 * seconds / (time.perf_counter() - begun)))
    measured = asyncio.run(_Measuring.begin(server, partial(cpu_seconds, stack.pid)))
    took = _ask(load, stack, form, count)
    return asyncio.run(measured.end(took))


def _ask(load: Worker, stack: LiveStack, form: Json, count: int) -> list[float]:
    lanes = [
        [{"body": {"input": f"Request {number} of {client}.", **form}} for number in range(count)]
        for client in range(CLIENTS)
    ]
    return [answer["total"] for lane in load.ask({"port": stack.port, "lanes": lanes}) for answer in lane]


@dataclass(frozen=True)
class _Measuring:
    """The counters at the beginning of a measurement.

    Attributes:
        server: the database.
        spent: returns the CPU seconds of the process that saves.
        synced: the log flushes.
        here, there: the CPU seconds of that process, and of the database.
        begun: the time.
    """

    server: Postgres
    spent: Callable[[], float]
    synced: int
    here: float
    there: float
    begun: float

    @classmethod
    async def begin(cls, server: Postgres, spent: Callable[[], float]) -> Self:
        """Return a measurement that starts now, with the server's counts so far."""
        synced = await _synced(server)
        return cls(server, spent, synced, spent(), cpu_seconds(server.pid), time.perf_counter())

    async def end(self, took: Sequence[float]) -> Flushed:
        """Return the result, given the latencies of all responses since the beginning."""
        count, passed = len(took), time.perf_counter() - self.begun
        here, there = self.spent() - self.here, cpu_seconds(self.server.pid) - self.there
        flushes = (await _synced(self.server) - self.synced) / count
        return Flushed(count / passed, took, flushes, here / count, there / count)


async def _synced(server: Postgres) -> int:
    """Return the server's count of log flushes."""
    connection = await asyncpg.connect(server.url)
    try:
        await asyncio.sleep(0.1)  # each backend process reports its counts when it is idle
        return int(await connection.fetchval("SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"))
    finally:
        await connection.close()


def table(found: Mapping[str, tuple[Flushed, Flushed]]) -> list[str]:
    """Return the lines of the table."""
    return [
        f"**PostgreSQL with flushes of {FLUSH_MS} ms, {CLIENTS} clients, one server; "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors**",
        "",
        "| what | stored responses a second | p50 | p95 | flushes each | CPU here | CPU of the database "
        "| bound by CPU here | a second without the wait |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {slow.rate:,.0f} | {median(slow.took) * 1e3:.0f} ms "
            f"| {quantiles(slow.took, n=20, method='inclusive')[-1] * 1e3:.0f} ms | {slow.flushes:.2f} "
            f"| {slow.here * 1e3:.2f} ms | {slow.there * 1e3:.2f} ms | {slow.bound:,.0f} | {fast.rate:,.0f} |"
            for name, (slow, fast) in found.items()
        ),
        "",
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement (default: 15)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flushes-") as folder:
        lines = table(flushes(Path(folder), arguments.seconds))
    sys.stdout.write("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
