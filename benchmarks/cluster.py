"""A store in a cluster next to one on a single Valkey: latencies of a short request, and calls of idle servers.

    .venv/bin/python -m benchmarks.cluster                      # about five minutes
    .venv/bin/python -m benchmarks.cluster --idle 1 64 1024     # only the calls of idle servers, with these partitions
    .venv/bin/python -m benchmarks.cluster --requests 400       # only the latencies

All Valkeys write every acknowledged write to the disk. The cluster has three primaries with a replica each. For the
latencies, a server on either store answers short requests, each time one on each, half of them streamed. For the calls,
two servers share the cluster, and its primaries count the calls of half a minute.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from benchmarks.servers import TEMPLATE
from tests.support.cluster import Cluster
from tests.support.stack import LiveStack
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.valkey import Valkey
from tests.support.variants import responses_config, variant

type Json = dict[str, Any]

PARTITIONS: Final = 256
REQUESTS: Final = 300
IDLE: Final = (1, 64, 256, 1024)
IDLE_SECONDS: Final = 30.0
SETTLED_SECONDS: Final = 30.0
"""Seconds after which new servers know each other and have looked at all partitions."""
COMMANDS: Final = ("evalsha", "get", "set", "exists", "info")
"""What servers call."""


@contextmanager
def server(store: Json, model_url: str, folder: Path) -> Iterator[LiveStack]:
    """Run a server on a store."""
    folder.mkdir()

    def change(config: Json) -> None:
        responses_config(config)["store"] = store

    config = variant(TEMPLATE, folder / "config.yaml", change)
    with LiveStack(config, {"INFERENCE_URL": model_url}, folder / "state") as running:
        yield running


def latencies(count: int, folder: Path) -> dict[str, list[float]]:
    """Return the seconds of requests to a server on each store, which take turns."""
    took = defaultdict[str, list[float]](list)
    with ExitStack() as running:
        model = running.enter_context(UpstreamProcess(folder / "upstream.log")).client
        model.script("m", reply(text("a ", "b ", "c")))
        single = running.enter_context(Valkey(folder / "valkey"))
        cluster = running.enter_context(Cluster(folder / "nodes"))
        stores: dict[str, Json] = {
            "one Valkey": {"type": "redis", "url": single.url},
            "cluster": {"type": "cluster", "url": cluster.url, "partitions": PARTITIONS},
        }
        clients = {
            name: running.enter_context(client(running.enter_context(server(store, model.base_url, folder / name))))
            for name, store in stores.items()
        }
        for number in range(-20, count):
            body = {"model": "local/m", "input": f"Question {number}", "stream": bool(number % 2)}
            for name, asked in clients.items() if number % 4 < 2 else reversed(clients.items()):
                begun = time.perf_counter()
                asked.post("/responses", json=body).raise_for_status()
                if number >= 0:
                    took[name].append(time.perf_counter() - begun)
    return took


@contextmanager
def client(running: LiveStack) -> Iterator[httpx.Client]:
    """Yield a client of a server."""
    url = f"{running.base_url}/v1"
    with httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False) as opened:  # noqa: S501 (plain HTTP)
        yield opened


def idle_calls(partitions: int, folder: Path) -> float:
    """Return how many calls a second two idle servers make to a cluster."""
    with ExitStack() as running:
        model = running.enter_context(UpstreamProcess(folder / "upstream.log")).client
        cluster = running.enter_context(Cluster(folder / "nodes"))
        store = {"type": "cluster", "url": cluster.url, "partitions": partitions}
        for name in ("one", "other"):
            running.enter_context(server(store, model.base_url, folder / name))
        time.sleep(SETTLED_SECONDS)
        before, begun = calls_of(cluster), time.monotonic()
        time.sleep(IDLE_SECONDS)
        return (calls_of(cluster) - before) / (time.monotonic() - begun)


def calls_of(cluster: Cluster) -> int:
    """Return how many calls of servers the primaries have had."""
    found = 0
    for node in cluster.nodes:
        if node.is_primary:
            counted = node.info("commandstats")
            found += sum(counted.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in COMMANDS)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, help="measure latencies with so many requests to each")
    parser.add_argument("--idle", type=int, nargs="+", help="count the calls of idle servers with so many partitions")
    options = parser.parse_args(arguments)
    everything = options.requests is None and options.idle is None
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        if requests := options.requests or (REQUESTS if everything else 0):
            took = latencies(requests, Path(folder))
            middle = {name: median(each) for name, each in took.items()}
            for name, each in middle.items():
                sys.stdout.write(f"{name}: median {1000 * each:.1f} ms of {requests} requests\n")
            sys.stdout.write(f"ratio: {middle['cluster'] / middle['one Valkey']:.2f}\n")
        for partitions in options.idle or (IDLE if everything else ()):
            (own := Path(folder) / f"idle-{partitions}").mkdir()
            sys.stdout.write(f"{partitions} partitions: {idle_calls(partitions, own):.1f} calls a second\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
