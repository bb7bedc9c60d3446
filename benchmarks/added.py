"""What authentication, keys, usage and limits add to a short request and to a stream: servers with and without them.

    .venv/bin/python -m benchmarks.added
    .venv-ogx/bin/python -m benchmarks.added --host ogx

The servers run at once and take turns, so that compared values are measured within a second of each other, and the
order of the turns is reversed from one to the next. Two servers with the same configuration differ by 1 to 2 percent
for as long as they run: they are started anew several times, the last one first every other time, and the rounds of
all starts count. `benchmarks.overhead --auth` measures everything with authentication.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.report import markdown_table, with_half
from benchmarks.servers import TEMPLATE, USERS, Worker, authenticate, cpu_seconds, host_environment
from tests.support.auth import auth_server
from tests.support.stack import Host, LiveStack
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant

type Json = dict[str, Any]
type Change = Callable[[Json], None]

WARM: Final = 20
DELTAS: Final = 128
LOADS: Final[dict[str, Json]] = {
    "short request": {"body": {"model": "local/short", "input": "Hello"}},
    "stream": {"body": {"model": "local/stream", "input": "Hello", "stream": True}, "deltas": DELTAS},
}
LIMITS: Final = [
    {"requests_per_minute": 10**9, "tokens_per_minute": 10**12, "running": 1000},
    {"by": "team", "tokens_per_month": 10**12},
]


def use(config: Json, **settings: Any) -> None:
    """Give the provider these settings."""
    responses_config(config)["usage"] = settings


def variants(endpoint: str) -> Mapping[str, Change]:
    """Return what is compared, by its name in the table; the first is compared with the others."""
    return {
        "without": lambda _: None,
        "the host's `custom` auth": partial(authenticate, endpoint=endpoint),
        "usage is counted": use,
        "usage, and four limits": partial(use, limits=LIMITS),
    }


type Round = dict[str, tuple[float, float]]
"""The median seconds and the CPU seconds of a request, by server."""


def warm(servers: Mapping[str, LiveStack], load: Worker, step: Json) -> None:
    """Let all servers answer some requests that are not measured."""
    for server in servers.values():
        load.ask({"port": server.port, "lanes": [[step] * WARM]})


def measure(servers: Mapping[str, LiveStack], load: Worker, step: Json, requests: int) -> Round:
    """Measure one round of a load on all servers. The work that they do afterwards counts too."""
    took: dict[str, list[float]] = {name: [] for name in servers}
    spent = {name: -cpu_seconds(server.pid) for name, server in servers.items()}
    for number in range(requests // 10):
        for name in list(servers)[:: -1 if number % 2 else 1]:
            [answers] = load.ask({"port": servers[name].port, "lanes": [[step] * 10]})
            took[name] += [answer["total"] for answer in answers]
    for name, server in servers.items():
        spent[name] += cpu_seconds(server.pid)
    return {name: (statistics.median(took[name]), spent[name] / len(took[name])) for name in servers}


def show(load: str, rounds: Sequence[Round]) -> None:
    """Print a table of one load: medians of the rounds, and of their ratios with the middle half of these."""
    rows = []
    [least, *_] = rounds[0]
    for name in rounds[0]:
        ratios = [each[name][1] / each[least][1] for each in rounds]
        took, cpu = (statistics.median(each[name][place] for each in rounds) * 1e3 for place in (0, 1))
        rows.append([name, f"{took:.2f} ms", f"{cpu:.3f} ms", *with_half(ratios)])
    head = [load, "median", "CPU", "CPU, of that without", "half of the rounds"]
    sys.stdout.write(f"\n{markdown_table(head, rows)}\n")
    sys.stdout.flush()


def measured(folder: Path, number: int, inference_url: str, options: argparse.Namespace) -> Mapping[str, list[Round]]:
    """Return the rounds of each load on servers that are started for it; `number` counts the starts."""
    host: Host = options.host or ("ogx" if find_spec("ogx") else "llama_stack")
    found: dict[str, list[Round]] = {}
    with ExitStack() as opened:
        endpoint = opened.enter_context(auth_server(USERS))
        changes = list(variants(endpoint).items())
        chosen = [each for each in changes if each is changes[0] or not options.only or each[0] in options.only]
        servers: dict[str, LiveStack] = {}
        for place, (label, change) in list(enumerate(chosen))[:: -1 if number % 2 else 1]:
            config = variant(TEMPLATE, folder / f"{number}-{place}.yaml", change)
            server = LiveStack(config, host_environment(inference_url), folder / f"{number}-{place}", host)
            servers[label] = opened.enter_context(server)
        servers = {label: servers[label] for label, _ in chosen}
        load = opened.enter_context(Worker("benchmarks.load"))
        for label, step in LOADS.items():
            warm(servers, load, step)
            found[label] = [measure(servers, load, step, options.requests) for _ in range(options.rounds)]
    return found


def main() -> None:
    """Measure, and print a table for each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=4, help="how often the servers are started (default: 4)")
    parser.add_argument("--rounds", type=int, default=4, help="how often each load is measured a start (default: 4)")
    parser.add_argument("--requests", type=int, default=400, help="requests to each server a round (default: 400)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="servers to compare with the first one")
    parser.add_argument("--host", choices=("llama_stack", "ogx"), help="the host (default: the one installed)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, UpstreamProcess(Path(name) / "upstream.log") as upstream:
        model = upstream.client
        model.script("short", reply(text(*["word "] * 8)))
        model.script("stream", reply(text(*["word "] * DELTAS)))
        starts = [measured(Path(name), number, model.base_url, options) for number in range(options.starts)]
    for label in LOADS:
        show(label, [each for rounds in starts for each in rounds[label]])


if __name__ == "__main__":
    main()
