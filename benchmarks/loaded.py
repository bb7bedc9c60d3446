"""Latencies at a fixed load, next to the builtin and to a relay.

    .venv/bin/python -m benchmarks.loaded                         # about four minutes
    .venv/bin/python -m benchmarks.loaded --seconds 5 --rounds 1

Streams begin at a fixed rate, however fast a server answers, and each has 100 tokens, one every 20 ms. The loads are
about half of what a core carries: 16 streams at a time with the builtin, 128 without it. Linux only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.paced import RELAY, WAYS, Place, Way, job_of, places
from benchmarks.report import markdown_table
from benchmarks.servers import Worker, add_auth_option, auth_endpoint

type Json = dict[str, Any]

TOKENS: Final = 100
STEP_MS: Final = 20
LOADS: Final = (16, 128)
"""Streams that run at a time."""
BUILTIN_MOST: Final = 16
_NAMES: Final = (RELAY, "text", "text, builtin")
_PERCENT: Final = (50, 95, 99)


def load_of(way: Way, place: Place, at_a_time: int, seconds: float) -> Json:
    """Return a job in which about so many streams run at a time."""
    every = TOKENS * STEP_MS / 1000 / at_a_time
    return job_of(way, place, max(2, round(seconds / every)), TOKENS) | {"every": every}


def latencies(folder: Path, rounds: int, seconds: float, auth: str | None) -> dict[tuple[int, str], list[Json]]:
    """Return the measurements by load and server; `auth` is as for `stack`."""
    ways = [way for way in WAYS if way.name in _NAMES]
    found: dict[tuple[int, str], list[Json]] = {}
    with places(folder, ways, STEP_MS, auth) as servers, Worker("benchmarks.paced_load") as load:
        for way in ways:
            load.ask(job_of(way, servers[way.server], 8, 20))
        for number in range(rounds):
            for at_a_time in LOADS:
                for way in ways[:: -1 if number % 2 else 1]:
                    if way.name != "text, builtin" or at_a_time <= BUILTIN_MOST:
                        sys.stderr.write(f"round {number + 1} of {rounds}: {way.name}, {at_a_time} at a time\n")
                        each = load.ask(load_of(way, servers[way.server], at_a_time, seconds))
                        found.setdefault((at_a_time, way.name), []).append(each)
    return found


def percentiles(rounds: Sequence[Json]) -> list[str]:
    """Return the percentiles of first tokens of all rounds, and the medians of those of gaps."""
    cuts = quantiles([each for one in rounds for each in one["firsts"]], n=100)
    firsts = [cuts[percent - 1] for percent in _PERCENT]
    gaps = [median(one["gaps"][str(percent)] for one in rounds) for percent in _PERCENT]
    return [f"{each * 1e3:.1f} ms" for each in (*firsts, *gaps)]


def table(found: dict[tuple[int, str], list[Json]]) -> str:
    """Return the latencies as a table."""
    head = ["", "at a time", *(f"{what}: {percent}%" for what in ("first token", "gap") for percent in _PERCENT)]
    return markdown_table(head, [[name, str(load), *percentiles(each)] for (load, name), each in sorted(found.items())])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each lasts (default: 20)")
    add_auth_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, auth_endpoint(options) as auth:
        sys.stdout.write(table(latencies(Path(name) / "latencies", options.rounds, options.seconds, auth)))


if __name__ == "__main__":
    main()
