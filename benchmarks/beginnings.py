"""How soon streams that begin at once get their first token, and what CPU that takes, as ratios to a relay.

    .venv/bin/python -m benchmarks.beginnings                       # about two minutes
    .venv/bin/python -m benchmarks.beginnings --rounds 20 --streams 256

The relay passes the model server's bytes on unread; the web framework does the same in a route of FastAPI. All servers
run at once and take turns, in the reverse order every other round, and each ratio is the median of the rounds' ratios:
it depends little on what else the machine does, and the CPU less than the time. "CPU until half" is what the server has
used when half of the streams have their first token: the time without all that others do meanwhile. Linux only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.paced import STEP_MS, WAYS, Way, job_of, places
from benchmarks.report import markdown_table, with_half
from benchmarks.servers import Worker, add_auth_option, auth_endpoint

type Json = dict[str, Any]
type Figures = tuple[float, float, float]
"""The median seconds to the first token; the CPU seconds of the server until then, and those of one whole stream."""

TOKENS: Final = 3
"""Tokens of a stream: few, so that its CPU is that of its beginning and its end."""
STREAMS: Final = (64, 256)
COMPARED: Final = ("relay", "web framework", "the host's chat completions", "text")


def measure(folder: Path, rounds: int, streams: Sequence[int], ways: Sequence[Way], auth: str | None) -> Json:
    """Return the figures of all rounds, by the number of streams and the way; `auth` is as for `places`."""
    found: Json = {str(count): {way.name: [] for way in ways} for count in streams}
    with places(folder, ways, STEP_MS, auth) as servers, Worker("benchmarks.paced_load") as load:
        for way in ways:
            load.ask(job_of(way, servers[way.server], max(streams), TOKENS))
        for number in range(rounds):
            for count in streams:
                for way in ways[:: -1 if number % 2 else 1]:
                    sys.stderr.write(f"round {number + 1} of {rounds}: {way.name}, {count} streams\n")
                    answer = load.ask(job_of(way, servers[way.server], count, TOKENS))
                    figures = median(answer["firsts"]), median(answer["firsts_cpu"]), answer["whole"] * TOKENS
                    found[str(count)][way.name].append(figures)
    return found


def table(found: Json) -> str:
    """Return the medians, and the ratios to the first way, as a table."""
    head = ["", "streams"]
    for name in ("first token: median", "CPU until half", "CPU of a stream"):
        head += [name, "ratio", "half of the rounds"]
    rows = []
    for count, by_way in found.items():
        [floor, *_] = by_way.values()
        for name, rounds in by_way.items():
            scales = ((1e3, "ms"), (1e3, "ms"), (1e6, "µs"))
            cells = [cell for place, scale in enumerate(scales) for cell in _cells(rounds, floor, place, *scale)]
            rows.append([name, count, *cells])
    return markdown_table(head, rows)


def _cells(rounds: Sequence[Figures], floor: Sequence[Figures], place: int, scale: float, unit: str) -> list[str]:
    ratios = [each[place] / least[place] for each, least in zip(rounds, floor, strict=True)]
    return [f"{median(each[place] for each in rounds) * scale:,.0f} {unit}", *with_half(ratios, "{:.1f}")]


def main() -> None:
    """Measure, print, and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="how often each is measured (default: 8)")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS, help="numbers of streams (default: 64 256)")
    add_auth_option(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    ways = [way for way in WAYS if way.name in COMPARED]
    with tempfile.TemporaryDirectory() as folder, auth_endpoint(options) as auth:
        found = measure(Path(folder), options.rounds, options.streams, ways, auth)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write(table(found))


if __name__ == "__main__":
    main()
