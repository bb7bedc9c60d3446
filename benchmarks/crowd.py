"""Many open slow streams on one process: how many are lost, and the memory that each takes.

    .venv/bin/python -m benchmarks.crowd                          # 10,000 streams, about six minutes
    .venv/bin/python -m benchmarks.crowd --streams 1000 --tokens 30
    .venv/bin/python -m benchmarks.crowd --again 2000             # as many follow once all have ended

The streams begin within two minutes, and each gets a token a second. Each takes two files of the server: the client's
connection and that to the model server. A process that may not open so many measures fewer streams. Python's garbage
collections are timed in the server, from the first stream until a while after the last has ended: in CPU time of its
thread, which other programs lengthen little, and by the clock. Linux only.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, Final

from benchmarks.paced import program
from benchmarks.report import markdown_table
from benchmarks.servers import REPOSITORY, Worker, add_auth_option, auth_endpoint, configured
from tests.support.memory import resident_bytes
from tests.support.stack import LiveStack

type Json = dict[str, Any]
type Collection = tuple[int, int, float, float]
"""The generation, the objects visited, and the milliseconds of CPU time and by the clock."""

STREAMS: Final = 10_000
TOKENS: Final = 180
STEP_MS: Final = 1000
BEGIN_SECONDS: Final = 120.0
"""Seconds in which the streams begin, one after another, if there are as many as by default."""
_OTHER_FILES: Final = 200
_WARM: Final = 64
_AFTERWARDS: Final = 25.0
"""Seconds for which collections are timed after the last stream has ended: two looks at old objects."""


def possible(streams: int) -> int:
    """Return how many of these streams the limit on open files allows, which processes inherit and may raise."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return streams if most == resource.RLIM_INFINITY else min(streams, (most - _OTHER_FILES) // 2)


def allow_many(config: Json) -> None:
    """Raise this project's own limits, which are lower for one user."""
    [responses] = config["providers"]["responses"]
    answers = {"streams": 2 * STREAMS, "streams_per_user": 2 * STREAMS}
    responses["config"]["limits"] = {"responses": 2 * STREAMS, "responses_per_user": 2 * STREAMS, "answers": answers}


class Peak:
    """The largest memory of a process, as of now."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.bytes = 0

    def watch(self, until: Thread) -> None:
        """Look four times a second until a thread has ended."""
        while until.is_alive():
            self.bytes = max(self.bytes, resident_bytes(self._pid))
            time.sleep(0.25)


def measure(folder: Path, streams: int, tokens: int, again: int, auth: str | None) -> Json:
    """Return the memory at rest and at most, and the seconds until first tokens; fails if a stream lacks a token.

    `again` is the number of streams that follow; `auth` is as for `configured`.
    """
    config = configured(folder / "crowd.yaml", auth, allow_many)
    with program("benchmarks.engine", STEP_MS) as engine:
        timed = folder / "collections"
        environment = {
            "INFERENCE_URL": f"http://127.0.0.1:{engine.port}/v1",
            "PYTHONPATH": f"{REPOSITORY}:{Path(__file__).parent / 'timed_collections'}",
            "TIMED_COLLECTIONS": str(timed),
        }
        with LiveStack(config, environment, folder / "state") as server, Worker("benchmarks.paced_load") as load:

            def ask(count: int, length: int) -> None:
                body = {"model": f"local/text-{length}", "input": "Hello", "stream": True}
                job = {"port": server.port, "pid": server.pid, "form": "streamed", "body": body}
                found.update(load.ask({**job, "streams": count, "tokens": length, "every": BEGIN_SECONDS / STREAMS}))

            found: Json = {}
            ask(_WARM, 3)
            rest, peak = resident_bytes(server.pid), Peak(server.pid)
            found.clear()
            before = len(collections(timed))
            asking = Thread(target=ask, args=(streams, tokens))
            asking.start()
            peak.watch(asking)
            asking.join()
            time.sleep(_AFTERWARDS)
            first = dict(found)
            if again:
                ask(again, tokens)
                time.sleep(_AFTERWARDS)
            measured = {
                "streams": streams,
                "rest": rest,
                "peak": peak.bytes,
                "late": first["late"],
                "cpu": first["cpu"],
            }
            return measured | {"collections": collections(timed)[before:]}


def collections(timed: Path) -> list[Collection]:
    """Return each collection of a server until now."""
    lines = [line.split() for line in timed.read_text().splitlines()]
    return [(int(generation), int(visited), float(took), float(waited)) for generation, visited, took, waited in lines]


def shown(found: Json) -> str:
    """Return the measurements as sentences, and the garbage collections as a table."""
    each = (found["peak"] - found["rest"]) / found["streams"] / 1e3
    late = f", late by {found['late']['50'] * 1e3:.0f} ms (median)" if found["late"] else ""
    together = f"{found['cpu'] * 1e6:.0f} µs of CPU for a token{late}" if found["cpu"] else "they never all ran"
    return (
        f"{found['streams']} streams, none lost: {each:.0f} kB each, {found['rest'] / 1e6:.0f} MB at rest, "
        f"{found['peak'] / 1e6:.0f} MB at most; {together}.\n\n{passes_table(found['collections'])}"
    )


def passes_table(passes: Sequence[Collection]) -> str:
    """Return the number and the longest of the garbage collections of each generation as a table."""
    head = ["garbage collections", "number", "CPU: all", "median", "longest", "its objects", "longest by the clock"]
    rows = []
    for generation, name in enumerate(("of new objects", "of middle ones", "of all objects")):
        if chosen := [each for each in passes if each[0] == generation]:
            times = [took for _, _, took, _ in chosen]
            _, visited, longest, _ = max(chosen, key=lambda each: each[2])
            cells = [sum(times), median(times), longest, max(waited for *_, waited in chosen)]
            whole, middle, most, by_clock = (f"{each:,.1f} ms" for each in cells)
            rows.append([name, str(len(chosen)), whole, middle, most, f"{visited:,}", by_clock])
    return markdown_table(head, rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"how many (default: {STREAMS})")
    parser.add_argument("--again", type=int, default=0, help="how many follow these (default: none)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of each (default: {TOKENS})")
    add_auth_option(parser)
    options = parser.parse_args()
    if (streams := possible(options.streams)) < options.streams:
        sys.stderr.write(f"the limit on open files allows {streams} streams\n")
    with tempfile.TemporaryDirectory() as folder, auth_endpoint(options) as auth:
        sys.stdout.write(shown(measure(Path(folder), streams, options.tokens, options.again, auth)))


if __name__ == "__main__":
    main()
