"""What the host's authentication adds to a short request: servers without it, and with its `custom` provider.

    .venv/bin/python -m benchmarks.authentication
    .venv-ogx/bin/python -m benchmarks.authentication --host ogx

The servers take turns, so that compared values are measured within a second of each other. `benchmarks.overhead --auth`
measures everything with authentication.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.servers import OURS, USERS, Worker, cpu_seconds, stack
from tests.support.auth import auth_server
from tests.support.stack import Host, LiveStack
from tests.support.upstream import UpstreamProcess, reply, text

type Json = dict[str, Any]

WARM: Final = 20
STEP: Final[Json] = {"body": {"model": "local/short", "input": "Hello"}}


def measure(servers: Mapping[str, LiveStack], load: Worker, requests: int) -> dict[str, tuple[float, float]]:
    """Return the median seconds and the CPU seconds of a request, by server."""
    took: dict[str, list[float]] = {name: [] for name in servers}
    for server in servers.values():
        load.ask({"port": server.port, "lanes": [[STEP] * WARM]})
    spent = {name: -cpu_seconds(server.pid) for name, server in servers.items()}
    for _ in range(requests // 10):
        for name, server in servers.items():
            [answers] = load.ask({"port": server.port, "lanes": [[STEP] * 10]})
            took[name] += [answer["total"] for answer in answers]
    for name, server in servers.items():
        spent[name] += cpu_seconds(server.pid)
    return {name: (statistics.median(took[name]), spent[name] / len(took[name])) for name in servers}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="requests to each server (default: 400)")
    parser.add_argument("--host", choices=("llama_stack", "ogx"), help="the host (default: the one installed)")
    options = parser.parse_args()
    host: Host = options.host or ("ogx" if find_spec("ogx") else "llama_stack")
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        model = opened.enter_context(UpstreamProcess(folder / "upstream.log")).client
        model.script("short", reply(text(*["word "] * 8)))
        endpoint = opened.enter_context(auth_server(USERS))
        servers = {
            label: opened.enter_context(stack(OURS, host, model.base_url, folder / label, auth))
            for label, auth in (("without", None), ("with", endpoint))
        }
        load = opened.enter_context(Worker("benchmarks.load"))
        found = measure(servers, load, options.requests)
    sys.stdout.write("| authentication | median | CPU |\n| --- | ---: | ---: |\n")
    for label, (median, cpu) in found.items():
        sys.stdout.write(f"| {label} | {median * 1e3:.2f} ms | {cpu * 1e3:.2f} ms |\n")


if __name__ == "__main__":
    main()
