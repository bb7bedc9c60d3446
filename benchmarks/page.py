"""The built-in page in a browser: a list of many responses, a response of 2 MB, a chain of 1,000 turns.

    python -m benchmarks.page [--rows 100000] [--turns 1000] [--runs 3]

It fills a SQLite store, starts a stack on it, and drives Chromium. Each time is the median of the runs in milliseconds,
from the start of the navigation, or from a key, until what is waited for is in the page. The load of the machine stands
next to them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.layout import listing, order_of
from llama_stack_responses.store.list_rows import list_row
from llama_stack_responses.store.records import Put
from llama_stack_responses.store.sqlite import SqliteRecords
from llama_stack_responses.stream.response import new_response
from tests.support.browser import Browser, BrowserPage
from tests.support.seed import seed
from tests.support.stack import PACKAGES, STARTER, LiveStack
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.wire import Wire, final

type Json = dict[str, Any]

PARAGRAPH: Final = "The quick brown fox jumps over the **lazy** dog, and `code` follows.\n\n"
_BLOCK: Final = 1000
_FAILED: Final = 1000  # of so many rows, one failed
_LINE_MS: Final = 400
_LINE_BYTES: Final = 400_000 // 8
_FRAMES: Final = """async () => {
  const view = document.querySelector('.scroller'), times = [];
  let last = performance.now();
  for (let step = 0; step < 120; step += 1) {
    view.scrollTop += 400;
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - last);
    last = performance.now();
  }
  times.sort((a, b) => a - b);
  return [times[60], times[113]];
}"""


async def fill(database: Path, rows: int) -> None:
    """Write rows of the list: what a list reads of as many responses."""
    records = SqliteRecords(database, busy_timeout=60.0)
    of, now = Hasher(ANONYMOUS).owner, int(time.time()) - rows
    for start in range(0, rows, _BLOCK):
        ops = []
        for number in range(start, min(rows, start + _BLOCK)):
            words = f"Question number {number} about order {number % 977}"
            request = parse_create({"model": f"local/model-{number % 5}", "input": words})
            created = new_response(request, id=new_id("resp"), created_at=now + number)
            created |= {"status": "failed" if number % _FAILED == 0 else "completed", "completed_at": now + number + 2}
            key = listing(of, order_of(now + number, now + number), created["id"])
            ops.append(Put(key, list_row(created, words, None)))
        await records.commit(ops)
    await records.close()


def timed(page: BrowserPage, path: str, ready: str) -> float:
    """Open a view; return the milliseconds until an expression holds."""
    page.page.goto(page.root + path, wait_until="commit")
    page.until(f"() => {ready}")
    return float(page.page.evaluate("() => performance.now()"))


def acted(page: BrowserPage, act: Callable[[], None], ready: str) -> float:
    """Return the milliseconds from an action until an expression holds."""
    began = time.perf_counter()
    act()
    page.until(f"() => {ready}")
    return 1000 * (time.perf_counter() - began)


def of_list(page: BrowserPage, created: Json) -> Json:
    """Measure the list."""
    shown = "document.querySelectorAll('.list-row').length >= 10"
    first = timed(page, "/ui", shown)
    middle, slow = page.page.evaluate(_FRAMES)
    found = min(10, created["failed"])
    rare = f"document.querySelectorAll('.list-row .status[data-status=failed]').length >= {found}"
    return {
        "list, first rows": first,
        "list, frame while scrolling, median": middle,
        "list, frame while scrolling, 95 %": slow,
        "list, filter of which 1 in 1,000 matches": timed(page, "/ui?status=failed", rare),
    }


def slow_down(page: BrowserPage) -> None:
    """Let the browser's line have 400 kb/s, and 400 ms to the server and back."""
    session = page.page.context.new_cdp_session(page.page)
    session.send("Network.enable")
    line = {"latency": _LINE_MS, "downloadThroughput": _LINE_BYTES, "uploadThroughput": _LINE_BYTES, "offline": False}
    session.send("Network.emulateNetworkConditions", line)


def of_slow_line(page: BrowserPage, _: Json) -> Json:
    """Measure the frame, and then the first rows in a browser that has the files of the page, on a slow line."""
    slow_down(page)
    shown = "document.querySelectorAll('.list-row').length >= 10"
    frame = "document.querySelectorAll('#nav a').length >= 4"
    return {
        "400 kb/s and 400 ms: frame": timed(page, "/ui", frame),
        "400 kb/s and 400 ms: first rows, known files": timed(page, "/ui", shown),
    }


def of_slow_first(page: BrowserPage, _: Json) -> Json:
    """Measure the first rows on a slow line in a browser that has no files of the page."""
    slow_down(page)
    return {
        "400 kb/s and 400 ms: first rows": timed(page, "/ui", "document.querySelectorAll('.list-row').length >= 10")
    }


def of_large(page: BrowserPage, response: Json) -> Json:
    """Measure a response of 2 MB and its replay."""
    view = "document.querySelector('.message[data-role=assistant]')?.textContent.length > 100000"
    found = {"2 MB, opened": timed(page, f"/ui/responses/{response['large']}", view)}
    events = "document.querySelector('.event')"
    found["2 MB, replay opened"] = timed(page, f"/ui/responses/{response['large']}/replay", events)
    # The end of a replay shows the rendered response, which a page cuts off after 1,000,000 characters.
    range_ = "document.querySelector('.player input')"
    ended = f"{range_}.value === {range_}.max && document.querySelector('.growing')?.textContent.length > 100000"
    found["2 MB, replay to its end"] = acted(page, lambda: page.press("End"), ended)
    position = f"Number({range_}.value)"
    last = page.page.evaluate(f"() => {position}")
    found["2 MB, step back"] = acted(page, lambda: page.press("ArrowLeft"), f"{position} === {last - 1}")
    found["2 MB, step forward"] = acted(page, lambda: page.press("ArrowRight"), f"{position} === {last}")
    return found


def of_chain(page: BrowserPage, response: Json) -> Json:
    """Measure a long chain: its last turns, and all of them."""
    turns = "document.querySelectorAll('.turn').length"
    found = {
        "chain, last turns": timed(page, f"/ui/chain/{response['chain']}", f"{turns} >= {min(10, response['turns'])}")
    }

    def up() -> None:
        page.page.evaluate("() => { window.up = setInterval(() => window.scrollTo(0, 0), 20) }")

    found["chain, all turns read"] = acted(page, up, f"{turns} >= {response['turns']}")
    return found


def made_of(stack: LiveStack, upstream: UpstreamProcess, database: Path, turns: int) -> Json:
    """Make the large response and the chain."""
    chain = seed(database, [(f"Question {number}?", f"Answer {number}. {PARAGRAPH * 5}") for number in range(turns)])
    pieces = [PARAGRAPH * 8] * (2_000_000 // len(PARAGRAPH * 8))
    upstream.client.script("large", reply(text(*pieces)))
    with Wire(stack) as wire:
        large = final(wire.stream(model="local/large", input="Write a book."))["id"]
    return {"large": large, "chain": chain[-1]["id"], "turns": turns}


def measured(rows: int, turns: int, runs: int) -> dict[str, list[float]]:
    """Return the times of all runs by their names."""
    found: dict[str, list[float]] = {}
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        (folder / "state").mkdir()
        database = folder / "state" / "responses.db"
        asyncio.run(fill(database, rows))
        upstream = opened.enter_context(UpstreamProcess(folder / "upstream.log"))
        env = {"PYTHONPATH": PACKAGES, "INFERENCE_URL": upstream.client.base_url}
        stack = opened.enter_context(LiveStack(STARTER, env, folder / "state"))
        created = made_of(stack, upstream, database, turns) | {"failed": len(range(0, rows, _FAILED))}
        browser = opened.enter_context(Browser())
        for _ in range(runs):
            for measure in (of_list, of_slow_first, of_slow_line, of_large, of_chain):
                with browser.page(stack.base_url) as page:
                    for name, value in measure(page, created).items():
                        found.setdefault(name, []).append(value)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    before = os.getloadavg()[0]
    found = measured(given.rows, given.turns, given.runs)
    sys.stdout.write(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores\n")
    sys.stdout.write("| what | ms |\n|---|--:|\n")
    for name, values in found.items():
        sys.stdout.write(f"| {name} | {median(values):,.0f} |\n")


if __name__ == "__main__":
    main()
