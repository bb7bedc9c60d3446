"""The search of the built-in page: the first rows of a list of many responses, and what indexing a response costs.

    .venv/bin/python -m benchmarks.search                      # 100,000 responses in each store
    .venv/bin/python -m benchmarks.search --rows 5000 --stores sqlite

It fills each store with seeded texts of 150 words out of a thousand, and asks for the first 50 rows. Each time is the
median of the runs in milliseconds, with what it takes to read the responses that are shown, and to make snippets: these
are stored whole, and of all others there are the row of the list and the words. Redis has no index: there, first words
are searched. Then responses are saved with and without an index. The tables go to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.features.page.lists import Lists, restricted_to
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.search.box import searched
from llama_stack_responses.features.page.search.demand import Demand
from llama_stack_responses.features.page.search.finding import Search
from llama_stack_responses.features.page.search.indexer import Indexer
from llama_stack_responses.features.page.search.texts import Texts
from llama_stack_responses.jobs.background import BackgroundJobs
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.ends import OnEnd
from llama_stack_responses.store.layout import listing, order_of
from llama_stack_responses.store.list_rows import list_row
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.records import Put, Records
from llama_stack_responses.store.redis import RedisRecords
from llama_stack_responses.store.search_index import Document, SearchIndex, index_of, indexed_words
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.conversations import assistant, response, user
from tests.support.postgres import Postgres
from tests.support.valkey import Valkey

type Json = dict[str, Any]

STORES: Final = ("sqlite", "postgres", "redis")
SEED: Final = 38
SEARCHES: Final[Mapping[str, str]] = {
    "nothing is searched": "",
    "a word of every response": "common",
    "a word of 1 in 1,000": "thousandth",
    "a word of one, the oldest": "needle",
    "two words, each of half": "even odd",
    "every response, and a filter of 1 in 1,000": "common status:failed",
    "no response": "absent",
}
_BLOCK: Final = 500
_SHOWN: Final = 60
"""The newest responses, which are stored whole."""
_SAVES: Final = 500


class NoJobs:
    """No response waits in a queue."""

    async def find_many(self, _: Sequence[str]) -> Json:
        """Return nothing."""
        return {}


def seeded(rows: int) -> Iterator[tuple[int, str, str, bool]]:
    """Yield the seconds of creation, the status and the texts of responses, oldest first, and which may be shown."""
    chosen = random.Random(SEED)  # noqa: S311 - no secret
    words = [f"word{number}" for number in range(1000)]
    began = int(time.time()) - rows
    for number in range(rows):
        marks = ["common", "odd" if number % 2 else "even"]
        marks += ["thousandth"] * (number % 1000 == 0) + ["needle"] * (number == 0)
        text = " ".join([*chosen.choices(words, k=150), f"rare{number}", *marks])
        is_marked = number % 1000 == 0
        yield began + number, "failed" if is_marked else "completed", text, is_marked or number >= rows - _SHOWN


async def fill(records: Records, index: SearchIndex | None, rows: int) -> None:
    """Write the rows, and index their texts."""
    while index and not await index.prepare():
        pass
    of, block, ops = Hasher(ANONYMOUS).owner, dict[str, str](), list[Put]()
    for number, (created, status, text, is_shown) in enumerate(seeded(rows), 1):
        made = response(assistant("An answer."), created_at=created, status=status)
        key = listing(of, order_of(created, created), made["id"])
        if is_shown:
            archive = Archive(records, clock=partial(float, created))
            await archive.save(made, owner=ANONYMOUS, base=None, input_items=[user(text)])
        else:
            ops.append(Put(key, list_row(made, " ".join(reversed(text.split()))[:120], None)))
        block[key] = text
        if len(block) == _BLOCK or number == rows:
            await records.commit(ops)
            while index and (noted := await index.claim(_BLOCK)):
                await index.put([Document(each, indexed_words(block[each.key])) for each in noted])
            block, ops = {}, []


async def first_rows(lists: Lists, text: str) -> tuple[float, int]:
    """Return the milliseconds until the page has rows to show, or has looked at all, and how many they are."""
    began, found, after = time.perf_counter(), 0, None
    while True:
        page = await lists.page(ANONYMOUS, restricted_to(searched(text)), after, 50, "desc")
        found, after = found + len(page["data"]), page["next"]
        if found or after is None:
            return 1000 * (time.perf_counter() - began), found


async def searches(open_store: Callable[[], Records], rows: int, runs: int) -> dict[str, float]:
    """Return the milliseconds of each search."""
    records = open_store()
    index = index_of(records)
    try:
        await fill(records, index, rows)
        search = Search(index, Demand(records), Texts(records), index.progress) if index else None
        lists = Lists(Archive(records), cast("BackgroundJobs", NoJobs()), RefusedRequests(records), search)
        times = {name: [await first_rows(lists, text) for _ in range(runs)] for name, text in SEARCHES.items()}
    finally:
        await records.close()
    return {name: median(each for each, _ in found) for name, found in times.items()}


async def saves(records: Records, *, indexed: bool) -> tuple[float, float, float]:
    """Return the CPU milliseconds of saving a response, and of indexing it afterwards, and the bytes that it takes."""
    index, ends = index_of(records) if indexed else None, list[OnEnd]()
    demand = Demand(records)
    indexer = Indexer(index, demand, Texts(records)) if index else None
    if indexer:
        await demand.ask()
        await indexer.work()
        ends.append(indexer.ended)
    archive, chosen = Archive(records, on_end=ends), random.Random(SEED)  # noqa: S311 - no secret
    words = [f"word{number}" for number in range(1000)]
    began, size = time.process_time(), await records.size() or 0
    for _ in range(_SAVES):
        made = response(assistant(" ".join(chosen.choices(words, k=75))))
        question = [user(" ".join(chosen.choices(words, k=75)))]
        await archive.save(made, owner=ANONYMOUS, base=None, input_items=question)
    saved = time.process_time()
    if indexer:
        await demand.ask()
        await indexer.work()
    ended = time.process_time()
    grown = (await records.size() or 0) - size
    await records.close()
    return 1000 * (saved - began) / _SAVES, 1000 * (ended - saved) / _SAVES, grown / _SAVES


async def measured(folder: Path, names: Sequence[str], rows: int, runs: int) -> tuple[Json, list[tuple[str, float]]]:
    """Return the times of the searches of each store, and the costs of responses on SQLite."""
    found: Json = {}
    with ExitStack() as opened:
        for name in names:
            sys.stderr.write(f"{name}: {rows} rows\n")
            found[name] = await searches(opened_store(opened, folder, name), rows, runs)
    costs: list[tuple[str, float]] = []
    without, _, plain = await saves(SqliteRecords(folder / "without.db"), indexed=False)
    saved, indexing, grown = await saves(SqliteRecords(folder / "with.db"), indexed=True)
    costs += [("saving a response without an index, CPU ms", without), ("saving a response with an index", saved)]
    costs += [("indexing it afterwards, outside of requests", indexing)]
    return found, [*costs, ("bytes of a response without an index", plain), ("bytes with an index", grown)]


def opened_store(opened: ExitStack, folder: Path, name: str) -> Callable[[], Records]:
    """Return what opens a store of this kind, whose server runs until `opened` is closed."""
    if name == "sqlite":
        return lambda: SqliteRecords(folder / "search.db")
    if name == "postgres":
        url = opened.enter_context(Postgres(folder / "postgres")).url
        return lambda: PostgresRecords(url, timeout=60)
    url = opened.enter_context(Valkey(folder / "valkey", "--appendfsync", "no")).url
    return lambda: RedisRecords(url, timeout=60)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    given = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        found, costs = asyncio.run(measured(Path(folder), given.stores, given.rows, given.runs))
    sys.stdout.write(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores\n\n")
    sys.stdout.write(f"| first rows, ms | {' | '.join(found)} |\n|---|{'--:|' * len(found)}\n")
    for name in SEARCHES:
        sys.stdout.write(f"| {name} | {' | '.join(f'{times[name]:,.0f}' for times in found.values())} |\n")
    sys.stdout.write("\n| on SQLite | |\n|---|--:|\n")
    for name, cost in costs:
        sys.stdout.write(f"| {name} | {cost:.2f} |\n")


if __name__ == "__main__":
    main()
