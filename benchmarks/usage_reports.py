"""What a report of usage over a month takes, on each store: of all users, by model, and of one user.

    .venv/bin/python -m benchmarks.usage_reports                       # 100 users with two models on each day
    .venv/bin/python -m benchmarks.usage_reports --users 1000 --stores sqlite

It writes the tables of 31 days, and as many responses as end between two changes of the tables, and asks as the page
does, with the garbage collection of a server. Each time is the median of the runs in milliseconds, with the CPU time of
this process in parentheses. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import Request

from benchmarks.report import markdown_table
from benchmarks.search import STORES, opened_store
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.counted import Counts, Dimensions
from llama_stack_responses.features.usage.prices import Prices
from llama_stack_responses.features.usage.queries import asked, page_of
from llama_stack_responses.features.usage.reading import Reading
from llama_stack_responses.features.usage.reports import REPORTS, WIDTHS
from llama_stack_responses.features.usage.rows import (
    DAYS,
    Table,
    encode_pending,
    part_of,
    pending_key,
    stored_table,
)
from llama_stack_responses.features.usage.settings import Price
from llama_stack_responses.features.usage.sums import DaySums
from llama_stack_responses.features.usage.visibility import Seen
from llama_stack_responses.lifecycle.garbage import THRESHOLDS
from llama_stack_responses.store import codec
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.records import Put, Records
from llama_stack_responses.wire.request_handling import Query

MODELS: Final = ("local/large", "local/small")
MONTH: Final = 31
PENDING: Final = 1500
"""Responses that are not in the tables yet: those of half a minute with 50 a second."""
COUNTS: Final[Counts] = {
    "requests": 120,
    "status.completed": 118,
    "status.failed": 2,
    "errors.server_error": 2,
    "input_tokens": 250_000,
    "output_tokens": 40_000,
    "cached_tokens": 90_000,
    "tools.function_call": 31,
    **{f"first_token_ms.{number}": 10 for number in range(30, 42)},
    **{f"duration_ms.{number}": 10 for number in range(44, 56)},
}
ASKED: Final[dict[str, tuple[dict[str, str], Owner | None]]] = {
    "of all users": ({}, None),
    "of all users, by model": ({"group_by": "model"}, None),
    "of all users, by user": ({"group_by": "user_id"}, None),
    "of one user": ({}, Owner("user7")),
}


def of(user: int, model: str) -> Dimensions:
    """Return whose usage it is."""
    return Dimensions("", f"user{user}", f"team{user % 20}", "", model, "")


async def fill(records: Records, users: int) -> None:
    """Write the tables of a month, and the responses of the last half a minute."""
    today = int(time.time() // DAYS.seconds)
    for day in range(today - MONTH + 1, today + 1):
        tables: dict[str, Table] = {}
        for user in range(users):
            for model in MODELS:
                tables.setdefault(part_of("", f"user{user}", 0), {})[of(user, model)] = COUNTS
        puts = [Put(DAYS.key(day, part), codec.encode(stored_table(table))) for part, table in tables.items()]
        await records.commit(puts)
    now = time.time()
    rows = [(f"resp_{number:024x}", of(number % users, MODELS[number % 2])) for number in range(PENDING)]
    for start in range(0, PENDING, 500):
        some = rows[start : start + 500]
        await records.commit([Put(pending_key(now, name, 0), encode_pending(whose, COUNTS)) for name, whose in some])


async def report(reading: Reading, query: dict[str, str], user: Owner | None) -> tuple[float, float, int]:
    """Return the milliseconds of a report, those of CPU, and its number of results."""
    start = (int(time.time() // DAYS.seconds) - MONTH + 1) * DAYS.seconds
    text = urlencode({"start_time": start, "bucket_width": "1d", "limit": MONTH, **query})
    request = Query(Request({"type": "http", "query_string": text.encode(), "headers": []}))
    kind = next(each for each in REPORTS if each.path == "/usage/responses")
    prices = Prices([Price(input=1.0, output=3.0)], "usd")
    began, used = time.perf_counter(), time.process_time()
    question = asked(request, WIDTHS, kind.groups)

    def results(table: Table, group_by: Any) -> Any:
        return kind.results(table, group_by, prices=prices)

    seen = Seen(user, lambda whose: not user or whose.user == user.principal, ())
    page = await page_of(question, reading, seen, results)
    took = 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - used)
    return *took, sum(len(bucket["results"]) for bucket in page["data"])


async def measured(records: Records, users: int, runs: int, *, sums: bool) -> dict[str, str]:
    """Return the times of the reports."""
    await fill(records, users)
    reading, found = Reading(records, Decoder(2**26)), {}
    if sums:
        await DaySums(records, Decoder(2**26), None).update(time.time())
    for name, (query, user) in ASKED.items():
        times = [await report(reading, query, user) for _ in range(runs)]
        assert all(count for *_, count in times), f"nothing was found {name}"
        took, cpu = (median(each) for each in list(zip(*times, strict=True))[:2])
        found[name] = f"{took:,.0f} ({cpu:,.0f})"
    await records.close()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--no-sums", action="store_true", help="read all tables, as before days were summed")
    given = parser.parse_args()
    gc.set_threshold(*THRESHOLDS)
    before = os.getloadavg()[0]
    found = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        for name in given.stores:
            store = opened_store(opened, Path(folder), name)()
            found[name] = asyncio.run(measured(store, given.users, given.runs, sums=not given.no_sums))
    sys.stdout.write(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores\n\n")
    rows = [[name, *(times[name] for times in found.values())] for name in ASKED]
    sys.stdout.write(f"{markdown_table(['a month of usage, ms', *found], rows)}\n")


if __name__ == "__main__":
    main()
