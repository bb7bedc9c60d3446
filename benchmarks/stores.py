"""Calls per second of each store, the latencies of saving and loading responses, and the size of a conversation.

    .venv/bin/python -m benchmarks.stores                      # about three minutes
    .venv/bin/python -m benchmarks.stores --seconds 0.5        # the order of magnitude
    .venv/bin/python -m benchmarks.stores --markdown FILE      # write the tables to FILE too

First, one process calls the archive of responses, on real stores that keep acknowledged writes (SQLite with WAL, Valkey
with `appendfsync always`, PostgreSQL with its defaults); the stores take turns in every round. Then a server answers
short requests on Valkey and on PostgreSQL. Last, 32 clients store responses on a PostgreSQL with 20 ms per log flush.
The tables go to stdout, progress to stderr. Linux only: CPU time is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import asyncpg
from redis.asyncio import Redis

from benchmarks.flushes import flushes
from benchmarks.flushes import table as flushes_table
from benchmarks.overhead import INSTRUCTIONS
from benchmarks.servers import cpu_seconds, stored_bytes
from benchmarks.shares import shares
from benchmarks.shares import table as shares_table
from benchmarks.texts import texts, tools
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from tests.contract.backends import BACKENDS, Backend, BackendLocation, Clock
from tests.contract.conversations import CREATED, assistant, response, user
from tests.support.cluster import OneNode
from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.valkey import Valkey

type Json = dict[str, Any]

CLIENTS: Final = (1, 32)
CHARACTERS: Final = 1024  # of the input, and the same of the answer
FIELDS: Final[Json] = {"instructions": INSTRUCTIONS[:1000], "tools": tools(3, 500)}
OWNER: Final = Owner("alice")
SIZED: Final = ("sqlite", "redis", "postgres")
BASE: Final = "sqlite"
"""The default store, with which the others are compared."""


@dataclass
class Measured:
    """The measurements of one kind of call to one store.

    Attributes:
        rates: calls per second, by round.
        took: latencies, in seconds.
        here: CPU seconds per call of the calling process, by round.
        there: CPU seconds per call of the store's server; empty for a store without one.
    """

    rates: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    here: list[float] = field(default_factory=list)
    there: list[float] = field(default_factory=list)


class Client:
    """One client, which holds a conversation and reads it back."""

    def __init__(self, archive: Archive, messages: Sequence[str]) -> None:
        self._archive = archive
        self._messages = messages
        self._base: str | None = None
        self._ids: list[str] = []

    async def save(self) -> None:
        """Save one more turn."""
        turn = len(self._ids)
        question, answered = (self._messages[(2 * turn + side) % len(self._messages)] for side in (0, 1))
        created = response(assistant(answered), previous_response_id=self._ids[-1] if self._ids else None, **FIELDS)
        items = [user(f"{turn} {question}")]
        await self._archive.save(created, owner=OWNER, base=self._base, input_items=items)
        self._ids.append(created["id"])
        self._base = Hasher(OWNER).histories(self._base, [*items, *created["output"]])[-1]

    async def load(self) -> None:
        """Load a response, as a retrieval does."""
        stored = await self._archive.load(self._ids[-1])
        assert stored is not None
        assert stored.history == self._base


async def measure(
    calls: Sequence[Callable[[], Any]], seconds: float, server: DatabaseServer | None, into: Measured
) -> None:
    """Repeat each of `calls` for `seconds`, all concurrently."""
    took: list[float] = []

    async def go_on(call: Callable[[], Any], until: float) -> None:
        while (begun := time.perf_counter()) < until:
            await call()
            took.append(time.perf_counter() - begun)

    here, there = time.process_time(), cpu_seconds(server.pid) if server else 0.0
    begun = time.perf_counter()
    await asyncio.gather(*(go_on(call, begun + seconds) for call in calls))
    into.rates.append(len(took) / (time.perf_counter() - begun))
    into.took += took
    into.here.append((time.process_time() - here) / len(took))
    if server:
        into.there.append((cpu_seconds(server.pid) - there) / len(took))


async def size_of(name: str, place: BackendLocation) -> int:
    """Return the size of a store, in bytes."""
    if name == "sqlite":
        return stored_bytes(place.folder)
    if name == "redis":
        async with Redis.from_url(place.url_of(name)) as client:
            return int((await client.info("memory"))["used_memory"])
    connection = await asyncpg.connect(place.url_of(name))
    try:
        return int(await connection.fetchval("SELECT pg_database_size(current_database())"))
    finally:
        await connection.close()


async def grow(backend: Backend, place: BackendLocation, turns: int) -> int:
    """Return the growth of a store for a conversation of `turns` turns."""
    place = place.fresh()
    records = backend.open(place, Clock(CREATED))
    client = Client(Archive(records, clock=Clock(CREATED)), texts(64, CHARACTERS))
    await client.save()
    before = await size_of(backend.name, place)
    for _ in range(turns):
        await client.save()
    await records.close()
    return await size_of(backend.name, place) - before


async def run(
    place: BackendLocation, servers: Mapping[str, DatabaseServer], rounds: int, seconds: float
) -> dict[Any, Measured]:
    """Measure the calls, by store, call and number of clients."""
    found: dict[Any, Measured] = defaultdict(Measured)
    messages = texts(64, CHARACTERS)
    for number in range(rounds):
        for backend in BACKENDS if number % 2 == 0 else BACKENDS[::-1]:
            sys.stderr.write(f"round {number + 1} of {rounds}: {backend.name}\n")
            server = servers.get(backend.name)
            for count in CLIENTS:
                records = backend.open(place.fresh(), Clock(CREATED))
                archive = Archive(records, clock=Clock(CREATED))
                clients = [Client(archive, messages[index:] + messages[:index]) for index in range(count)]
                for client in clients:
                    await client.save()
                for name in ("save", "load"):
                    calls = [getattr(client, name) for client in clients]
                    await measure(calls, seconds, server, found[backend.name, name, count])
                await records.close()
    return found


def table(found: Mapping[Any, Measured]) -> list[str]:
    """Return the lines of the tables: one for each call and number of clients."""
    lines: list[str] = []
    for name in ("save", "load"):
        for count in CLIENTS:
            rows = {backend.name: found[backend.name, name, count] for backend in BACKENDS}
            base = median(rows[BASE].rates)
            lines += [
                f"**{name}, {count} client{'s' if count > 1 else ''}**",
                "",
                f"| store | a second | of `{BASE}` | p50 | p95 | CPU here | CPU of the store's server |",
                "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
                *(_row(store, measured, base) for store, measured in rows.items()),
                "",
            ]
    return lines


def _row(store: str, measured: Measured, base: float) -> str:
    p95 = quantiles(measured.took, n=20, method="inclusive")[-1]
    there = f"{median(measured.there) * 1e6:.0f} µs" if measured.there else ""
    rate = median(measured.rates)
    return (
        f"| {store} | {rate:,.0f} | {rate / base:.2f} | {median(measured.took) * 1e3:.1f} ms | {p95 * 1e3:.1f} ms "
        f"| {median(measured.here) * 1e6:.0f} µs | {there} |"
    )


def sizes(grown: Mapping[str, int], turns: int) -> list[str]:
    """Return the lines of the table of conversation sizes."""
    content = turns * 2 * CHARACTERS
    return [
        f"**a conversation of {turns:,} turns, {content:,} bytes of text**",
        "",
        "| store | bytes | of the text |",
        "| --- | ---: | ---: |",
        *(f"| {store} | {size:,} | {size / content:.2f} |" for store, size in grown.items()),
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each store has its turn (default: 3)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement (default: 1.5)")
    parser.add_argument("--turns", type=int, default=1000, help="of the long conversation (default: 1000)")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    arguments = parser.parse_args()
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="stores-")))
        servers: dict[str, DatabaseServer] = {
            "redis": Valkey(folder / "valkey"),
            "cluster": OneNode(folder / "cluster"),
            "postgres": Postgres(folder / "postgres"),
            "host-redis": Valkey(folder / "host-valkey"),
        }
        for server in servers.values():
            running.enter_context(server)
        place = BackendLocation(folder, lambda kind: servers[kind].url)
        found = asyncio.run(run(place, servers, arguments.rounds, arguments.seconds))
        grown = {
            backend.name: asyncio.run(grow(backend, place, arguments.turns))
            for backend in BACKENDS
            if backend.name in SIZED
        }
        shared = {
            kind: shares(servers[kind], kind, servers[kind].environment, folder) for kind in ("redis", "postgres")
        }
        flushed = flushes(folder, 3 * arguments.seconds)
    text = (
        "\n".join([*table(found), *shares_table(shared), *flushes_table(flushed), *sizes(grown, arguments.turns)])
        + "\n"
    )
    sys.stdout.write(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
