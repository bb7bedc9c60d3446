"""The time from a server's start to its first answer, and its memory at rest and with 64 streams, next to the builtin.

    .venv/bin/python -m benchmarks.footprint              # about two minutes

The servers run one after another. Linux only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, Final

from benchmarks.crowd import Peak
from benchmarks.paced import STEP_MS, TOKENS, Place, Way, job_of, program
from benchmarks.report import markdown_table
from benchmarks.servers import BUILTIN, OURS, Worker, add_auth_option, auth_endpoint, stack
from tests.support.memory import resident_bytes

type Json = dict[str, Any]

STREAMS: Final = 64
_ROWS: Final = (("from start to first answer", "s", 1.0), ("memory at rest", "MB", 1e6), ("memory at most", "MB", 1e6))


def measure(kind: str, folder: Path, auth: str | None) -> list[float]:
    """Return the seconds until the first answer, and the bytes at rest and at most; `auth` is as for `stack`."""
    way = Way("text", kind)
    with program("benchmarks.engine", STEP_MS) as engine, Worker("benchmarks.paced_load") as load:
        server = stack(kind, "llama_stack", f"http://127.0.0.1:{engine.port}/v1", folder, auth)
        began = time.perf_counter()
        with server:
            place = Place(server.port, server.pid)
            load.ask(job_of(way, place, 1, 20))
            answered = time.perf_counter() - began
            load.ask(job_of(way, place, STREAMS, 20))
            rest, peak = resident_bytes(server.pid), Peak(server.pid)
            asking = Thread(target=load.ask, args=(job_of(way, place, STREAMS, TOKENS),))
            asking.start()
            peak.watch(asking)
            return [answered, rest, peak.bytes]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    add_auth_option(parser)
    options = parser.parse_args()
    found: dict[str, list[list[float]]] = {OURS: [], BUILTIN: []}
    for number in range(options.rounds):
        for kind, rounds in found.items():
            sys.stderr.write(f"round {number + 1} of {options.rounds}: {kind}\n")
            with tempfile.TemporaryDirectory() as folder, auth_endpoint(options) as auth:
                rounds.append(measure(kind, Path(folder), auth))
    ours, builtin = ([median(each) for each in zip(*rounds, strict=True)] for rounds in found.values())
    rows = [
        [name, *(f"{each / scale:.1f} {unit}" for each in values), f"{values[0] / values[1]:.2f}"]
        for (name, unit, scale), *values in zip(_ROWS, ours, builtin, strict=True)
    ]
    sys.stdout.write(markdown_table(["", *found, "ratio"], rows))


if __name__ == "__main__":
    main()
