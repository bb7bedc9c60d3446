"""The first rows of lists of many responses on each store: of one owner, and of all owners as operators read them.

    .venv/bin/python -m benchmarks.lists                       # 100,000 responses of 100 owners in each store
    .venv/bin/python -m benchmarks.lists --rows 5000 --stores sqlite

One owner has half of the responses. Each time is the median of the runs in milliseconds until the page has rows to
show, or has looked at all, with the CPU time of this process in parentheses. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, cast

from benchmarks.report import markdown_table
from benchmarks.search import STORES, NoJobs, opened_store
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page.lists import Lists, restricted_to
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.search.box import searched
from llama_stack_responses.jobs.background import BackgroundJobs
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.layout import bucket, listing, order_of
from llama_stack_responses.store.list_rows import list_row
from llama_stack_responses.store.records import Op, Put, Records
from tests.contract.conversations import assistant, response, user

OWNERS: Final = 100
RARE: Final = 1000
"""One response in so many has another status and another model."""
ASKED: Final = {
    "newest": "",
    "of a model, 1 in 1,000": "model:local/rare",
    "of a status, 1 in 1,000": "status:failed",
    "a word of 1 in 1,000": "thousandth",
    "no response": "model:local/absent",
}
_BLOCK: Final = 500


async def fill(records: Records, rows: int) -> None:
    """Write responses, one in each two seconds: whole those that are rare or among the last, of the others a row."""
    began, ops, known = int(time.time()) - 2 * rows, list[Op](), set[str]()
    for number in range(rows):
        owner = Owner(f"user {number % OWNERS if number % 2 else 0}")
        created, is_rare = began + 2 * number, number % RARE < OWNERS and number // RARE % OWNERS == number % RARE
        words = f"question {number} {'thousandth' if is_rare else 'common'} " + "word " * 20
        status, model = ("failed", "local/rare") if is_rare else ("completed", "local/m")
        made = response(assistant("An answer."), created_at=created, status=status) | {"model": model}
        if is_rare or number >= rows - OWNERS or number < 2 * OWNERS:
            await Archive(records, clock=lambda at=created: float(at)).save(  # type: ignore[misc]
                made, owner=owner, base=None, input_items=[user(words)]
            )
            continue
        of, order = Hasher(owner).owner, order_of(created, created)
        ops.append(Put(listing(of, order, made["id"]), list_row(made, words[:120], None)))
        if (key := bucket(of, order)) not in known:
            known.add(key)
            ops.append(Put(key, b""))
        if len(ops) >= _BLOCK:
            await records.commit(ops)
            ops = []
    await records.commit(ops)


async def first_rows(lists: Lists, owner: Owner | None, text: str) -> tuple[float, float, int]:
    """Return the milliseconds until there are rows, those of CPU, and how many rows they are; no owner means all."""
    began, used, found, after = time.perf_counter(), time.process_time(), 0, None
    wanted = restricted_to(searched(text))
    while True:
        page = await (
            lists.page(owner, wanted, after, 50, "desc") if owner else lists.page_of_all("", wanted, after, 50)
        )
        found, after = found + len(page["data"]), page["next"]
        if found or after is None:
            return 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - used), found


async def measured(records: Records, rows: int, runs: int) -> dict[str, str]:
    """Return the times of the lists of a store."""
    await fill(records, rows)
    lists, found = Lists(Archive(records), cast("BackgroundJobs", NoJobs()), RefusedRequests(records)), {}
    for whose, owner in (("of an owner", Owner("user 0")), ("of all owners", None)):
        for name, text in ASKED.items():
            times = [await first_rows(lists, owner, text) for _ in range(runs)]
            took, cpu, _ = (median(each) for each in zip(*times, strict=True))
            found[f"{whose}: {name}"] = f"{took:,.0f} ({cpu:,.0f}), {times[0][2]} rows"
            sys.stderr.write(f"{whose}: {name}: {found[f'{whose}: {name}']}\n")
    await records.close()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    given = parser.parse_args()
    before, found = os.getloadavg()[0], {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        for name in given.stores:
            store = opened_store(opened, Path(folder), name)()
            found[name] = asyncio.run(measured(store, given.rows, given.runs))
    sys.stdout.write(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores\n\n")
    rows = [[name, *(times[name] for times in found.values())] for name in next(iter(found.values()))]
    sys.stdout.write(f"{markdown_table(['first rows, ms', *found], rows)}\n")


if __name__ == "__main__":
    main()
