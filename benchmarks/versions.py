"""Two checkouts of this project in one run: CPU time, memory, stored bytes and start, as ratios.

    .venv/bin/python -m benchmarks.versions ../before .               # each checkout after `make install`
    .venv/bin/python -m benchmarks.versions ../before . --rounds 20

Both servers run at once with one scripted model server and take turns. Each figure is the median of its rounds, and the
ratio is the median of the rounds' ratios, which depends less on what else the machine does. Linux only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.overhead import PACE, SETTLE, TOOLS, Bench, Load, say
from benchmarks.report import markdown_table, with_half
from benchmarks.servers import Worker, allow_many_in_background, cpu_seconds, stored_bytes
from benchmarks.texts import pieces, texts
from tests.support.memory import resident_bytes
from tests.support.stack import LiveStack
from tests.support.upstream import UpstreamProcess, reply, text, tool_call
from tests.support.variants import variant

type Figures = dict[str, list[tuple[float, float]]]

TURNS: Final = 100
STARTS: Final = 5
LOADS: Final = (
    Load("text delta, 16 streams at full speed (µs)", "long", 16, 2, 512),
    Load("text delta, 64 streams at full speed (µs)", "long", 64, 1, 512),
    Load("text delta, 16 streams in lock-step (µs)", "paced", 16, 1, 128),
    Load("text delta, 64 streams in lock-step (µs)", "paced", 64, 1, 128),
    Load("argument delta, 16 streams (µs)", "calls", 16, 1, 512, event="response.function_call_arguments.delta"),
    Load("short stored request, 16 at once (µs)", "short", 16, 12, 32, stream=False),
    Load("short stored request, one at a time (µs)", "short", 1, 100, 32, stream=False),
)


def server(checkout: Path, upstream: str, folder: Path) -> LiveStack:
    """Return a stack of one checkout, in its own environment."""
    template = checkout / "templates" / "starter" / "config.yaml"
    config = variant(template, folder / "config.yaml", allow_many_in_background)
    environment = {"INFERENCE_URL": upstream, "PYTHONPATH": str(checkout)}
    return LiveStack(config, environment, folder / "state", python=checkout / ".venv/bin/python", fork=False)


def script_words(bench: Bench) -> None:
    """Let the models answer with words that differ: a text that repeats its beginning is read with more care."""
    [words] = (pieces(each) for each in texts(1, 8 * 512, seed=2))
    bench.upstream.script("long", reply(text(*words[:512])))
    bench.upstream.script("short", reply(text(*words[:32])))
    bench.upstream.script("paced", reply(text(*words[:128]), interval=PACE))
    [tool] = TOOLS[:1]
    bench.upstream.script("calls", reply(tool_call(0, "call_1", tool["name"], '{"query": "', *words[:510], '"}')))


def alternating(pair: tuple[LiveStack, LiveStack], number: int) -> list[tuple[int, LiveStack]]:
    """Return both servers with their places, each other round in reverse order."""
    return list(enumerate(pair))[:: -1 if number % 2 else 1]


def measure_load(bench: Bench, pair: tuple[LiveStack, LiveStack], load: Load, number: int) -> tuple[float, float]:
    """Return the CPU time in µs for each unit of a load on both servers."""
    spent = [0.0, 0.0]
    for place, stack in alternating(pair, number):
        before = cpu_seconds(stack.pid)
        bench.load.ask(load.job(stack.port))
        time.sleep(SETTLE)
        spent[place] = (cpu_seconds(stack.pid) - before) / load.units * 1e6
    return spent[0], spent[1]


def measure_loads(bench: Bench, pair: tuple[LiveStack, LiveStack], rounds: int, found: Figures) -> None:
    """Run every load on both servers in turn."""
    for load in LOADS:
        measure_load(bench, pair, load, 0)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for load in LOADS:
            found[load.name].append(measure_load(bench, pair, load, number))


def measure_chain(bench: Bench, pair: tuple[LiveStack, LiveStack], found: Figures) -> None:
    """Measure the bytes and the CPU time of one conversation of many turns."""
    figures = []
    for stack in pair:
        steps = [{"body": {"model": "local/short", "input": words}, "follows": True} for words in texts(TURNS, 1024)]
        stored, spent = stored_bytes(stack.state_dir), cpu_seconds(stack.pid)
        bench.load.ask({"port": stack.port, "lanes": [steps], "previous": None})
        cost = (cpu_seconds(stack.pid) - spent) / TURNS * 1e6
        figures.append((stored_bytes(stack.state_dir) - stored, cost))
    found[f"bytes of a chain of {TURNS}"].append((figures[0][0], figures[1][0]))
    found["turn of the chain (µs)"].append((figures[0][1], figures[1][1]))


def measure_crowd(bench: Bench, pair: tuple[LiveStack, LiveStack], streams: int, found: Figures) -> None:
    """Measure the memory of slow streams that are open at once."""
    figures = [float(bench.crowd(stack, streams)["bytes"]) / 1000 for stack in pair]
    found[f"memory of one of {streams} slow streams (kB)"].append((figures[0], figures[1]))


def measure_starts(checkouts: tuple[Path, Path], upstream: str, folder: Path, found: Figures) -> None:
    """Measure the CPU time and the memory of starts with an empty store."""
    for number in range(STARTS):
        spent, resident = [0.0, 0.0], [0.0, 0.0]
        for place in (1, 0) if number % 2 else (0, 1):
            with server(checkouts[place], upstream, folder / f"start-{number}-{place}") as stack:
                spent[place], resident[place] = cpu_seconds(stack.pid), resident_bytes(stack.pid) / 1e6
        found["start (s of CPU)"].append((spent[0], spent[1]))
        found["memory after the start (MB)"].append((resident[0], resident[1]))


def measure(checkouts: tuple[Path, Path], rounds: int, streams: int, folder: Path) -> Figures:
    """Measure both checkouts; each figure has the values of the first and the second in each round."""
    found: Figures = defaultdict(list)
    with (
        UpstreamProcess(folder / "upstream.log") as upstream,
        Worker("benchmarks.load") as load,
        Worker("benchmarks.decoding") as decoding,
    ):
        bench = Bench(upstream.client, load, decoding)
        bench.script(1)
        script_words(bench)
        measure_starts(checkouts, upstream.client.base_url, folder, found)
        with ExitStack() as stacks:
            first, second = (
                stacks.enter_context(server(checkout, upstream.client.base_url, folder / str(place)))
                for place, checkout in enumerate(checkouts)
            )
            bench.warm_up({"first": first, "second": second})
            measure_chain(bench, (first, second), found)
            measure_crowd(bench, (first, second), streams, found)
            measure_loads(bench, (first, second), rounds, found)
    return found


def table(found: Figures) -> str:
    """Return the medians and the median ratio of each figure, with the quartiles of the ratios."""
    rows = []
    for name, values in found.items():
        ratio, spread = with_half([after / before for before, after in values if before])
        before, after = (median(each) for each in zip(*values, strict=True))
        rows.append([name, f"{before:,.1f}", f"{after:,.1f}", ratio, spread, str(len(values))])
    return markdown_table(["", "first", "second", "ratio", "half of the ratios", "rounds"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="a checkout, with its .venv")
    parser.add_argument("second", type=Path, help="the other one")
    parser.add_argument("--rounds", type=int, default=10, help="how often each load is measured (default: 10)")
    parser.add_argument("--streams", type=int, default=500, help="slow streams at once, for the memory of a stream")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkouts = (options.first.resolve(), options.second.resolve())
        sys.stdout.write(table(measure(checkouts, options.rounds, options.streams, Path(folder))) + "\n")


if __name__ == "__main__":
    main()
