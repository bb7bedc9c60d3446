"""What the counters of usage add to a short request: counting switched on and off within one server, and its parts.

    .venv/bin/python -m benchmarks.counters
    .venv-ogx/bin/python -m benchmarks.counters --host ogx

Two servers with the same configuration differ by up to 3%, so one server counts every other turn of 20 requests. The
rows that it has counted are added up while it runs, for either kind of turn: that part of the cost is measured by
itself, as are the others, which are medians of many calls.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.added import LOADS, use
from benchmarks.paced_load import cpu_nanoseconds
from benchmarks.report import markdown_table, with_half
from benchmarks.servers import TEMPLATE, Worker, host_environment
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.counting import count
from llama_stack_responses.features.usage.naming import Bounds
from llama_stack_responses.features.usage.settings import Usage
from llama_stack_responses.features.usage.tables import Tables
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.placement import ONE_PARTITION
from llama_stack_responses.store.records import Condition, Ensure, Op, Put, VersionIs
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.support.stack import Host, LiveStack
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.variants import variant

TURN: Final = 20
"""Requests of a turn."""
WARM: Final = 300
ADDED: Final = 500
"""Rows that are added up in one commit."""


def ended(number: int) -> Ended:
    """Return the end of a short response, as a server counts it."""
    usage: dict[str, Any] = {"input_tokens": 5 + number % 50, "output_tokens": 8 + number % 90}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    response = {"id": f"resp_{secrets.token_hex(24)}", "status": "completed", "model": "local/short", "usage": usage}
    timing = {"rounds": [[0, 3.0 + number % 40, 9 + number % 80]], "total_ms": 9.5 + number % 80}
    output = [{"type": "message"}]
    return Ended(response | {"output": output, "metadata": {}}, Owner("someone"), timing, time.time() - 100)


def stored(end: Ended) -> tuple[list[Op], list[Condition]]:
    """Return the rest of the commit of a short response's end: rows of the sizes that a server writes."""
    name, history, ids = end.response["id"], f"n/{secrets.token_urlsafe(16)}", secrets.token_urlsafe(16)
    puts = {
        f"r/{name}": 470,
        history: 126,
        f"f/question/{name}": 0,
        f"f{history[1:]}/{name}": 0,
        f"l/someone/{name}": 80,
    }
    ensured = [f"i/{ids}/0", f"i/{ids}/1"]
    ops: list[Op] = [Put(key, bytes(size)) for key, size in puts.items()]
    ops += [Ensure(key, bytes(26)) for key in ensured]
    return ops, [VersionIs(key, None) for key in (f"r/{name}", history, *ensured)]


async def parts(folder: Path, times: int) -> dict[str, float]:
    """Return the CPU seconds that each part of counting takes for one response."""
    records, settings = SqliteRecords(folder / "parts.db"), Usage()
    bounds = Bounds(settings.users, settings.values_per_user)
    tables = Tables(records, Decoder(10**8), bounds, settings.retention_days)
    found: dict[str, list[float]] = {"making its row": [], "without": [], "with": [], "adding it up": []}

    for _ in range(times):
        for number in range(ADDED):
            end, other = ended(number), ended(number)
            began = time.process_time()
            row = count(None, ONE_PARTITION, end)
            found["making its row"].append(time.process_time() - began)
            for name, (ops, conditions), extra in (("with", stored(end), row), ("without", stored(other), ())):
                began = time.process_time()
                await records.commit([*extra, *ops], conditions)
                found[name].append(time.process_time() - began)
        await asyncio.sleep(0.1)  # the threads of the store rest
        began = time.process_time()
        await tables.add_some(time.time())
        found["adding it up"].append((time.process_time() - began) / ADDED)
    await records.close()
    middle = {name: statistics.median(each) for name, each in found.items()}
    return {
        "making its row": middle["making its row"],
        "the row in its commit": middle["with"] - middle["without"],
        "adding the row up": middle["adding it up"],
    }


def switched(server: LiveStack, load: Worker, switch: Path, pairs: int) -> list[tuple[float, float]]:
    """Return the CPU seconds of a request without and with counting, for each pair of turns."""
    step = LOADS["short request"]

    def turn(counts: int) -> float:
        with switch.open("r+b") as file:  # not made anew: the server has it mapped
            file.write(bytes([counts]))
        began = cpu_nanoseconds(server.pid)
        load.ask({"port": server.port, "lanes": [[step] * TURN]})
        return (cpu_nanoseconds(server.pid) - began) / 1e9 / TURN

    load.ask({"port": server.port, "lanes": [[step] * WARM]})
    found = []
    for number in range(pairs):
        first = number % 2
        took = {first: turn(first), 1 - first: turn(1 - first)}
        found.append((took[0], took[1]))
    return found


def show(pairs: Sequence[tuple[float, float]], alone: dict[str, float]) -> None:
    """Print what was measured."""
    without = statistics.median(each for each, _ in pairs)
    sums = sum(each for _, each in pairs) / sum(each for each, _ in pairs)
    rows = [["within one server", f"{without * 1e3:.3f} ms", *with_half([b / a for a, b in pairs]), f"{sums:.3f}"]]
    head = ["", "CPU without", "with, of that without", "half of the pairs", "of the sums"]
    sys.stdout.write(f"{markdown_table(head, rows)}\n\n")
    whole = alone | {"together": sum(alone.values())}
    parted = [[name, f"{each * 1e6:.1f} µs", f"{each / without:.2%}"] for name, each in whole.items()]
    sys.stdout.write(f"{markdown_table(['part', 'CPU', 'of a request'], parted)}\n")


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400, help="pairs of turns of 20 requests (default: 400)")
    parser.add_argument("--times", type=int, default=10, help="how often 500 rows are added up (default: 10)")
    parser.add_argument("--host", choices=("llama_stack", "ogx"), help="the host (default: the one installed)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, UpstreamProcess(Path(name) / "upstream.log") as upstream:
        folder = Path(name)
        host: Host = options.host or ("ogx" if find_spec("ogx") else "llama_stack")
        upstream.client.script("short", reply(text(*["word "] * 8)))
        switch = folder / "switch"
        switch.write_bytes(b"\1")
        environment = host_environment(upstream.client.base_url)
        environment["PYTHONPATH"] += f":{Path(__file__).parent / 'switched_counting'}"
        environment["SWITCHED_COUNTING"] = str(switch)
        config = variant(TEMPLATE, folder / "config.yaml", use)
        with LiveStack(config, environment, folder / "state", host) as server, Worker("benchmarks.load") as load:
            pairs = switched(server, load, switch, options.pairs)
            alone = asyncio.run(parts(folder, options.times))
    show(pairs, alone)


if __name__ == "__main__":
    main()
