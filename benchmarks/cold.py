"""The bytes that a store holds with and without an object store for idle responses, if few chains are read again.

    .venv/bin/python -m benchmarks.cold                                # 100,000 chains in SQLite and in Valkey
    .venv/bin/python -m benchmarks.cold --chains 5000 --stores redis --turns 1
    .venv/bin/python -m benchmarks.cold --chains 5000 --conversations    # conversations of as many turns

It fills each store with chains of turns with their own texts, tools and instructions in common, and counts its bytes:
Valkey's memory without what it takes when empty, and the pages of SQLite's file that are in use. Then all is packed
into a folder, a share of the chains is read, and it counts again. The time to read a packed response is the median of
these reads, with that of reading them once more.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

import redis

from benchmarks.report import markdown_table
from benchmarks.texts import texts, tools
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.types import Json
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.records import Records
from llama_stack_responses.store.redis import RedisRecords
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.conversations import CREATED, assistant, response, user
from tests.support.cold import AFTER, ColdStore, in_folder
from tests.support.valkey import Valkey

STORES: Final = ("sqlite", "redis")
_USERS: Final = 100
_texts = cache(texts)
_AT_ONCE: Final = 16
_FORGOTTEN_SECONDS: Final = 90.0
_SHOWN_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Filling:
    """What is stored: chains or conversations, turns of each, characters of a question and of an answer."""

    chains: int
    turns: int
    question: int
    answer: int
    conversations: bool = False

    def turn(self, number: int, turn: int) -> tuple[Json, Json]:
        """Return the question and the answer of a turn. No two answers are the same: they are parts of two texts."""
        given, answers = _texts(256, self.question, 5), _texts(256, self.answer, 6)
        cut = number % self.answer
        text = answers[(number + turn) % 256][:cut] + answers[number // 256 % 256][cut:] + str(number * 100 + turn)
        return user(f"{given[(number * 7 + turn) % 256]} {number} {turn}"), assistant(text)


async def fill(archive: Archive, filling: Filling) -> list[str]:
    """Store chains or conversations; return the id of the last response of each, or of the conversation."""
    declared = tools(4, 400)
    last = [""] * filling.chains

    async def converse(number: int) -> None:
        made = Conversation(new_id("conv"), Owner(f"user {number % _USERS}"), CREATED, {}, used_at=CREATED)
        items = [item for turn in range(filling.turns) for item in filling.turn(number, turn)]
        await archive.conversations.create(made, items)
        last[number] = made.id

    async def one(number: int) -> None:
        base: str | None = None
        previous: str | None = None
        owner = Owner(f"user {number % _USERS}")
        for turn in range(filling.turns):
            asked, answer = filling.turn(number, turn)
            made = response(answer, tools=declared, previous_response_id=previous, created_at=CREATED + turn)
            await archive.save(made, owner=owner, base=base, input_items=[asked])
            entry = await archive.entry(made["id"])
            assert entry
            base, previous = entry.whole, made["id"]
        last[number] = previous or ""

    store = converse if filling.conversations else one
    shown = _AT_ONCE * max(64, filling.chains // 20 // _AT_ONCE)
    for start in range(0, filling.chains, _AT_ONCE):
        if start % shown == 0:
            sys.stderr.write(f"{start:,} of {filling.chains:,} stored\n")
        await asyncio.gather(*map(store, range(start, min(start + _AT_ONCE, filling.chains))))
    return last


async def pack(packing: Packing, cold: ColdStore) -> None:
    """Pack all that is idle, and say at times how many bytes are packed."""

    async def show() -> None:
        while True:
            await asyncio.sleep(_SHOWN_SECONDS)
            sys.stderr.write(f"{sum((await cold.stored()).values()):,} bytes packed\n")

    showing = asyncio.create_task(show())
    try:
        for _ in range(2):
            await packing.work()
    finally:
        showing.cancel()


async def timed(archive: Archive, ids: Sequence[str]) -> float:
    """Read responses with their histories, or conversations; return the median of the milliseconds."""
    taken = []
    for each in ids:
        began = time.perf_counter()
        if each.startswith("conv_"):
            conversation = await archive.conversations.load(each)
            assert conversation
            assert await archive.conversations.items(each, conversation.end)
        else:
            stored = await archive.load(each)
            assert stored
            await archive.history(stored.history)
        taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


async def measure(records: Records, size: Callable[[], int], folder: Path, filling: Filling, share: float) -> Json:
    """Return bytes in the store and in the folder, and times of reads."""
    # The responses are older than two days for the store, and not expired.
    cold = ColdStore(records, in_folder(folder), lambda: CREATED)
    empty = size()
    last = await fill(cold.archive, filling)
    hot = size() - empty
    began, worked = time.perf_counter(), time.process_time()
    packing = Packing(records, cold.objects, AFTER, keep_seconds=0)
    await pack(packing, cold)
    seconds = {"seconds": time.perf_counter() - began, "processor": time.process_time() - worked}
    packed = size() - empty
    read = last[:: max(1, int(1 / share))]
    back = await timed(cold.archive, read)
    found: Json = {"hot": hot, "packed": packed, "touched": size() - empty, "objects": await cold.stored()}
    found |= {"back": back, "again": await timed(cold.archive, read), **seconds}
    await records.close()
    return found


@contextmanager
def opened(store: str, folder: Path) -> Iterator[tuple[Records, Callable[[], int]]]:
    """Open a store, and what returns its bytes."""
    if store == "sqlite":
        path = folder / "responses.db"
        yield SqliteRecords(path), lambda: _sqlite_bytes(path)
        return
    with Valkey(folder, "--appendonly", "no") as server, redis.Redis.from_url(server.url) as client:
        yield RedisRecords(server.url, timeout=60), lambda: _redis_bytes(client)


def _redis_bytes(client: redis.Redis) -> int:
    """Return the memory of a server, once it has forgotten which commits were made in the last half minute."""
    until = time.monotonic() + _FORGOTTEN_SECONDS
    while time.monotonic() < until and any(client.scan_iter("*:c:*", count=1000)):
        time.sleep(1)
    return int(client.info("memory")["used_memory"])


def _sqlite_bytes(path: Path) -> int:
    """Return the bytes of the pages of a file that hold something, without what was deleted."""
    if not path.exists():
        return 0
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [pages], [unused] = (database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
        [size] = database.execute("PRAGMA page_size").fetchone()
    return int((pages - unused) * size)


def row_of(store: str, filling: Filling, found: Json) -> list[str]:
    """Return a row of the table."""
    sizes = [f"{found[name] / filling.chains:,.0f}" for name in ("hot", "packed", "touched")]
    there = sum(found["objects"].values()) / filling.chains
    share = f"{found['touched'] / found['hot']:.1%}"
    return [store, *sizes, share, f"{there:,.0f}", f"{found['back']:.1f}", f"{found['again']:.1f}"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--question", type=int, default=400, help="characters of a question")
    parser.add_argument("--answer", type=int, default=2_000, help="characters of an answer")
    parser.add_argument("--conversations", action="store_true", help="store conversations in place of chains")
    parser.add_argument("--share", type=float, default=0.02, help="the share of the chains that is read again")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    options = parser.parse_args()
    filling = Filling(options.chains, options.turns, options.question, options.answer, options.conversations)
    rows = []
    for store in options.stores:
        with tempfile.TemporaryDirectory() as folder, opened(store, Path(folder)) as (records, size):
            found = asyncio.run(measure(records, size, Path(folder), filling, options.share))
        sys.stderr.write(
            f"{store}: packed in {found['seconds']:.0f} s, {found['processor']:.1f} s of a processor, "
            f"{len(found['objects'])} objects\n"
        )
        rows.append(row_of(store, filling, found))
    heads = ["bytes of a chain", "without", "packed", f"and {options.share:.0%} read", "share", "in the object store"]
    sys.stdout.write(markdown_table([*heads, "ms to read a packed one", "ms once more"], rows))


if __name__ == "__main__":
    main()
