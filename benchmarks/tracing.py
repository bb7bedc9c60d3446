"""What spans cost: the CPU time of a request without any, with the server's own, and under `opentelemetry-instrument`.

    .venv/bin/python -m benchmarks.tracing                     # three minutes
    .venv/bin/python -m benchmarks.tracing --store postgres --libraries FOLDER

The requests are short, stored and not streamed, sixteen at a time. Spans go to a program that accepts all in the
protocol of OTLP. `--libraries` names a folder with instrumentations that the environment lacks, made by
`pip install --target FOLDER opentelemetry-instrumentation-asyncpg opentelemetry-instrumentation-httpx ...`. Linux only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.paced import program
from benchmarks.report import markdown_table
from benchmarks.servers import REPOSITORY, Worker, cpu_seconds, host_environment
from tests.support.otlp import Collector
from tests.support.stack import LiveStack
from tests.support.stores import serving

type Json = dict[str, Any]

LANES: Final = 16
STEPS: Final = 20
TOKENS: Final = 4
NONE: Final = "without spans"
OWN: Final = "own spans"
INSTRUMENTED: Final = "opentelemetry-instrument"
WAYS: Final = (NONE, OWN, INSTRUMENTED)


class InstrumentedStack(LiveStack):
    """A server that `opentelemetry-instrument` starts."""

    def _command(self) -> list[str]:
        return [str(self._python.parent / "opentelemetry-instrument"), *super()._command()]


@contextmanager
def servers(folder: Path, store: str, libraries: Path | None) -> Iterator[dict[str, LiveStack]]:
    """Run a server of each kind, all in front of one engine."""
    with ExitStack() as running:
        engine = running.enter_context(program("benchmarks.engine", 1))
        collector = running.enter_context(Collector())
        template = REPOSITORY / "templates" / ("starter" if store == "sqlite" else store) / "config.yaml"
        found = {}
        for way in WAYS:
            database = running.enter_context(serving(store, folder / f"{WAYS.index(way)}-database"))
            env = host_environment(f"http://127.0.0.1:{engine.port}/v1")
            env |= database.environment if database else {}
            if way != NONE:
                # With the address of all signals, the host would export metrics too.
                env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{collector.env['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces"
                env |= {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_METRICS_EXPORTER": "none"}
                env |= {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "none"}
            if way == INSTRUMENTED and libraries:
                env["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(libraries)])
            kind = InstrumentedStack if way == INSTRUMENTED else LiveStack
            found[way] = running.enter_context(kind(template, env, folder / f"{WAYS.index(way)}-state", fork=False))
        yield found


def job(port: int, steps: int) -> Json:
    """Return a job for `benchmarks.load`."""
    body = {"model": f"local/text-{TOKENS}", "input": "Hello"}
    return {"port": port, "lanes": [[{"body": body}] * steps] * LANES}


def measure(folder: Path, store: str, libraries: Path | None, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of a request, by kind of server."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with servers(folder, store, libraries) as running, Worker("benchmarks.load") as load:
        for server in running.values():
            load.ask(job(server.port, 3))
        for number in range(rounds):
            for way in WAYS[:: -1 if number % 2 else 1]:
                before = cpu_seconds(running[way].pid)
                load.ask(job(running[way].port, STEPS))
                found[way].append((cpu_seconds(running[way].pid) - before) / (LANES * STEPS))
                sys.stderr.write(f"round {number + 1} of {rounds}: {way}: {found[way][-1] * 1e3:.2f} ms\n")
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "redis", "postgres"), default="sqlite")
    parser.add_argument("--libraries", type=Path, help="a folder with more instrumentations")
    parser.add_argument("--rounds", type=int, default=6, help="how often each is measured (default: 6)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), options.store, options.libraries, options.rounds)
    least = median(found[NONE])
    rows = [
        [way, f"{median(each) * 1e3:.2f} ms", f"{(median(each) - least) * 1e3:.2f} ms"] for way, each in found.items()
    ]
    sys.stdout.write(markdown_table([f"on {options.store}", "CPU of a request", "more"], rows))


if __name__ == "__main__":
    main()
