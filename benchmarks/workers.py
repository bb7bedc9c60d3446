"""Requests and tokens a second of a server with one process and with two.

    .venv/bin/python -m benchmarks.workers                # three minutes

Requests are short, stored and not streamed; tokens are those of streams that are as fast as the server. The server, and
the model server with the client (the load), are pinned to processors of their own where there are enough. With two
processors, the load shares them: the program prints the CPU time of a request on both sides, from which the rate of two
processes on two processors of their own follows if nothing else limits it. Linux only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.paced import Place, program
from benchmarks.paced_load import cpu_nanoseconds
from benchmarks.report import markdown_table
from benchmarks.servers import (
    Worker,
    add_auth_option,
    auth_endpoint,
    configured,
    cpu_seconds,
    group_killed_with_parent,
)
from tests.support.stack import LiveStack
from tests.support.waiting import wait_until

type Json = dict[str, Any]

LANES: Final = 32
STEPS: Final = 20
STREAMS: Final = 256
TOKENS: Final = 200
SHORT_TOKENS: Final = 4
COUNTS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement.

    Attributes:
        seconds: how long it took.
        server, load: CPU seconds of both sides.
    """

    seconds: float
    server: float
    load: float


class Processes(LiveStack):
    """A server with several processes, by uvicorn's command: the host's has no time limit for a busy machine."""

    count = 1

    def _command(self) -> list[str]:
        app = f"{self._host}.core.server.server:create_app"
        options = ["--factory", "--port", str(self.port), "--workers", str(self.count)]
        limit = ["--timeout-worker-healthcheck", "120"]
        config = f"{self._host.upper()}_CONFIG={self._config}"
        return ["env", config, str(self._python), "-m", "uvicorn", app, *options, *limit]

    def _health(self) -> bool | None:
        started = self._log_since_start().count("Application startup complete.")
        return super()._health() if started >= self.count else None


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def pin(pid: int, processors: Collection[int]) -> None:
    """Let a process and its descendants run on these processors only."""
    for each in family(pid):
        for thread in Path(f"/proc/{each}/task").iterdir():
            os.sched_setaffinity(int(thread.name), processors)


def split(processors: list[int]) -> tuple[list[int], list[int]]:
    """Return the processors of the server, and those of the load."""
    return (processors[:2], processors[2:]) if len(processors) > 3 else (processors, processors)


class Bench:
    """The engine, the client and a server of each number of processes."""

    def __init__(self, engine: Place, client: Worker, servers: dict[int, LiveStack]) -> None:
        self._engine, self._client, self._servers = engine, client, servers

    def measured(self, count: int, job: Json) -> Measured:
        """Run a job on the server with so many processes."""
        server = self._servers[count]
        before = self._cpu(server)
        began = time.perf_counter()
        self._client.ask({**job, "port": server.port, "pid": server.pid})
        seconds = time.perf_counter() - began
        after = self._cpu(server)
        return Measured(seconds, after[0] - before[0], after[1] - before[1])

    def _cpu(self, server: LiveStack) -> tuple[float, float]:
        return cpu_seconds(server.pid), sum(map(cpu_nanoseconds, [self._engine.pid, self._client.pid])) / 1e9


@contextmanager
def bench(folder: Path, module: str, auth: str | None) -> Iterator[Bench]:
    """Run everything; `module` is the client, and `auth` is as for `configured`."""
    own, others = split(sorted(os.sched_getaffinity(0)))
    with ExitStack() as running:
        os.sched_setaffinity(0, others)
        engine = running.enter_context(program("benchmarks.engine", 1))
        client = running.enter_context(Worker(module))
        env = {"INFERENCE_URL": f"http://127.0.0.1:{engine.port}/v1"}
        servers: dict[int, LiveStack] = {}
        config = configured(folder / f"{module}.yaml", auth)
        for count in COUNTS:
            server = Processes(config, env, folder / f"{module}-{count}", fork=False)
            server.count = count
            servers[count] = running.enter_context(server)
            running.enter_context(group_killed_with_parent(server.pid))
            wait_until(server.is_ready)
            pin(server.pid, own)
        yield Bench(engine, client, servers)


def requests_job() -> Json:
    """Return a job of short requests for `benchmarks.load`."""
    body = {"model": f"local/text-{SHORT_TOKENS}", "input": "Hello"}
    return {"lanes": [[{"body": body}] * STEPS] * LANES}


def tokens_job() -> Json:
    """Return a job of streams for `benchmarks.paced_load`."""
    body = {"model": f"local/text-{TOKENS}", "input": "Hello", "stream": True}
    return {"form": "streamed", "body": body, "streams": STREAMS, "tokens": TOKENS}


JOBS: Final = (
    ("requests", "benchmarks.load", requests_job, LANES * STEPS),
    ("tokens", "benchmarks.paced_load", tokens_job, STREAMS * TOKENS),
)


def rows(folder: Path, rounds: int, auth: str | None) -> Iterator[list[str]]:
    """Yield the rows of the table; `auth` is as for `configured`."""
    for name, module, job, amount in JOBS:
        found: dict[int, list[Measured]] = {count: [] for count in COUNTS}
        with bench(folder, module, auth) as running:
            for number in range(-1, rounds):
                for count in COUNTS:
                    each = running.measured(count, job())
                    if number >= 0:
                        sys.stderr.write(f"round {number + 1} of {rounds}: {name}, {count}: {each}\n")
                        found[count].append(each)
        for count, measured in found.items():
            seconds, server, load = (median(getattr(each, of) for each in measured) for of in Measured.__slots__)
            cpu = [f"{part / amount * 1e6:.0f} µs" for part in (server, load)]
            yield [name, str(count), f"{amount / seconds:.0f}", *cpu, f"{count * amount / server:.0f}"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    add_auth_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, auth_endpoint(options) as auth:
        head = [
            "",
            "processes",
            "a second",
            "CPU of the server",
            "CPU of the load",
            "a second, a core for each process",
        ]
        sys.stdout.write(markdown_table(head, list(rows(Path(name), options.rounds, auth))))


if __name__ == "__main__":
    main()
