"""Batches: what a line costs beside a background response, and what queued lines cost an interactive request.

    .venv/bin/python -m benchmarks.batches              # 2,000 lines, and 50,000 lines that wait
    .venv/bin/python -m benchmarks.batches --short      # a small round
    .venv/bin/python -m benchmarks.batches --peers      # only the comparison with other servers

One server with the starter template, and a scripted model server on the same machine. The same requests run as
background responses, as a batch of responses and as a batch of chat completions. The store's growth is that of the
file of SQLite, with the responses that the lines leave. The first token of a streamed request is measured on the idle
server, and beside a batch whose lines wait for a model that is slow. A batch with a file near the maximum size is
uploaded, checked, begun and cancelled; its memory is the largest growth of the server's own meanwhile. Then come the
batches of other servers (`benchmarks.batch_peers`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import openai
from openai.types import BatchRequestCounts

from benchmarks import batch_peers
from benchmarks.batch_peers import CHAT, PATIENCE, RESPONSES, begun, body_of, run_batch
from tests.support.memory import PeakOwnMemory
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until

type Json = dict[str, Any]

ECHO: Final = "local/echo"
SLOW: Final = "local/slow"
SLOW_SECONDS: Final = 1.0
CLIENTS: Final = 8
CHARACTERS: Final = 3_850
"""Additional length of each line of the large file: 50,000 such lines are about the largest input file, 200 MB."""
NO_COUNTS: Final = BatchRequestCounts(completed=0, failed=0, total=0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run.

    Attributes:
        lines: lines of a batch, and background responses.
        waiting: lines that wait beside an interactive request.
        requests: interactive requests.
    """

    lines: int
    waiting: int
    requests: int


FULL: Final = Plan(lines=2_000, waiting=50_000, requests=100)
SHORT: Final = Plan(lines=60, waiting=200, requests=10)


def run_background(client: openai.OpenAI, count: int) -> None:
    """Run background responses to their ends, from several clients."""

    def one(number: int) -> None:
        response = client.responses.create(**body_of(RESPONSES, ECHO, number), background=True)
        wait_until(lambda: client.responses.retrieve(response.id).status == "completed", PATIENCE, 0.1)

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(one, range(count)))


def first_token(client: openai.OpenAI, requests: int) -> float:
    """Return the median seconds until the first token of streamed requests."""
    seconds = []
    for number in range(requests):
        began = time.perf_counter()
        with client.responses.create(**body_of(RESPONSES, ECHO, number), stream=True) as stream:
            next(event for event in stream if event.type == "response.output_text.delta")
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def status_of(client: openai.OpenAI, batch_id: str) -> str:
    """Return the status of a batch."""
    return client.batches.retrieve(batch_id).status


def cancelled_after(client: openai.OpenAI, batch_id: str) -> float:
    """Cancel a batch, and return the seconds until it is cancelled and its files are written."""
    began = time.perf_counter()
    client.batches.cancel(batch_id)
    wait_until(lambda: status_of(client, batch_id) == "cancelled", PATIENCE, 0.02)
    return time.perf_counter() - began


def large_file(client: openai.OpenAI, pid: int, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a large file takes."""
    with PeakOwnMemory(pid) as memory:
        batch = begun(client, RESPONSES, SLOW, plan.waiting, CHARACTERS)
        began = time.perf_counter()
        wait_until(lambda: status_of(client, batch) == "in_progress", PATIENCE, 0.05)
        checked = time.perf_counter() - began
        wait_until(lambda: bool((client.batches.retrieve(batch).request_counts or NO_COUNTS).completed), PATIENCE)
        seconds = cancelled_after(client, batch)
    megabytes = client.files.retrieve(client.batches.retrieve(batch).input_file_id).bytes / 1e6
    yield f"a file of {megabytes:.0f} MB with {plan.waiting} lines is checked after", f"{checked:.1f} s"
    yield "its batch is cancelled after", f"{seconds:.1f} s"
    yield "memory of the server for it", f"{memory.grown_bytes / 1e6:.0f} MB"


@contextmanager
def served(folder: Path, host: Host, model: str, settings: Json) -> Iterator[tuple[openai.OpenAI, Path, int]]:
    """Run a server with these settings; yield a client, the file of its store and the id of its process."""
    folder.mkdir()

    def change(config: Json) -> None:
        responses_config(config).update(settings)
        responses_config(config)["store"] = {"type": "sqlite", "path": str(folder / "responses.db")}

    config = variant(STARTER, folder / "config.yaml", change)
    with (
        LiveStack(config, {"INFERENCE_URL": model}, folder / "state", host) as stack,
        openai.OpenAI(base_url=f"{stack.base_url}/v1", api_key="none", timeout=600) as client,
    ):
        yield client, folder / "responses.db", stack.pid


def timed(work: Callable[[], None], count: int) -> str:
    """Return the milliseconds of each of `count` pieces of work."""
    began = time.perf_counter()
    work()
    return f"{(time.perf_counter() - began) / count * 1000:.1f} ms"


def size_of(store: Path) -> int:
    """Return the bytes of a store of SQLite, with its log."""
    return sum(each.stat().st_size for each in store.parent.glob(f"{store.name}*"))


def run(plan: Plan, host: Host) -> Iterator[tuple[str, str]]:
    """Yield the rows of the result."""
    with tempfile.TemporaryDirectory(prefix="batches-") as name:
        folder = Path(name)
        with UpstreamProcess(folder / "upstream.log") as process:
            model = process.client
            model.script("slow", reply(text("Done"), delay=SLOW_SECONDS))
            with served(folder / "ours", host, model.base_url, {"batches": {}}) as (client, store, pid):
                run_background(client, CLIENTS)
                yield "a background response", timed(lambda: run_background(client, plan.lines), plan.lines)
                before = size_of(store)
                yield (
                    "a line of a batch of responses",
                    timed(lambda: run_batch(client, RESPONSES, ECHO, plan.lines), plan.lines),
                )
                yield "growth of the store for it", f"{(size_of(store) - before) / plan.lines:.0f} bytes"
                yield (
                    "a line of a batch of chat completions",
                    timed(lambda: run_batch(client, CHAT, ECHO, plan.lines), plan.lines),
                )
                idle = first_token(client, plan.requests)
                yield "first token, idle", f"{idle * 1000:.1f} ms"
                waiting = begun(client, RESPONSES, SLOW, plan.waiting)
                wait_until(lambda: status_of(client, waiting) == "in_progress", PATIENCE)
                beside = first_token(client, plan.requests)
                yield f"first token, beside {plan.waiting} lines", f"{beside * 1000:.1f} ms ({beside / idle:.2f} times)"
                yield f"{plan.waiting} lines are cancelled after", f"{cancelled_after(client, waiting):.1f} s"
                few = begun(client, RESPONSES, SLOW, plan.lines)
                wait_until(lambda: status_of(client, few) == "in_progress", PATIENCE)
                yield f"{plan.lines} lines are cancelled after", f"{cancelled_after(client, few):.1f} s"
                yield from large_file(client, pid, plan)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a small round")
    parser.add_argument("--peers", action="store_true", help="only the comparison with other servers")
    options = parser.parse_args()
    if not options.peers:
        for name, value in run(SHORT if options.short else FULL, "ogx" if find_spec("ogx") else "llama_stack"):
            sys.stdout.write(f"{name:<52}  {value}\n")
            sys.stdout.flush()
    sys.stdout.write(batch_peers.compare(batch_peers.SHORT if options.short else batch_peers.FULL))


if __name__ == "__main__":
    main()
