"""Servers are stopped and started again, one after the other, while clients send requests through nginx.

    .venv/bin/python -m benchmarks.replacement          # 20 restarts by SIGTERM and 10 by SIGKILL, on each store
    .venv/bin/python -m benchmarks.replacement --ci     # the short run, which is also a test

Two servers run behind the nginx of the template `scale-out`, with one store and one model server. Clients keep their
connections and send requests without a pause, whole answers and streams. None may fail because a server was stopped.
A server that is killed fails what it was working on, and what was on its way to it; the two are counted apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.servers import REPOSITORY
from tests.support.nginx import Nginx
from tests.support.stack import Host, LiveStack
from tests.support.stores import serving
from tests.support.upstream import UpstreamProcess, reply, text

type Json = dict[str, Any]

TEMPLATES: Final[Mapping[str, str]] = {"redis": "scale-out", "postgres": "postgres"}
BEHIND: Final = ("127.0.0.1:8321", "127.0.0.1:8322")
WORDS: Final = 10
INTERVAL: Final = 0.02
CLIENTS: Final = 8
GRACE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of restarts by SIGTERM, and by SIGKILL."""

    stops: int
    kills: int


FULL: Final = Plan(stops=20, kills=10)
CI: Final = Plan(stops=2, kills=0)


@dataclass
class Verdict:
    """What the clients have seen.

    Attributes:
        sent: number of requests.
        failed: the failures while servers were stopped, with their number.
        begun: failures of requests that a killed server had begun to work on.
        not_begun: failures of others while servers were killed, with their number.
        twice: requests that reached the model server twice.
        longest: the longest time of a request in seconds, while servers were stopped.
    """

    sent: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    not_begun: Counter[str] = field(default_factory=Counter)
    twice: int = 0
    longest: float = 0.0

    @property
    def well(self) -> bool:
        """Whether no request failed that a stopped server could have left to the other one, and none ran twice."""
        return not self.failed and not self.twice


class Clients:
    """Clients of one address, each in a thread; every request has its own text.

    Args:
        address: the URL of the nginx.
        name: begins the text of each request.

    Attributes:
        failures: what went wrong: the request's text, whether anything of the answer had come, and the reason.
    """

    def __init__(self, address: str, name: str) -> None:
        self.failures: list[tuple[str, bool, str]] = []
        self.sent = 0
        self.longest = 0.0
        self._address = address
        self._name = name
        self._numbers = count()
        self._ended = threading.Event()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Send requests during the block."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            working = [pool.submit(self._work, number) for number in range(CLIENTS)]
            try:
                yield
            finally:
                self._ended.set()
        for each in working:
            each.result()

    def _work(self, client: int) -> None:
        url = f"{self._address}/v1"
        with httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False) as http:  # noqa: S501 (plain HTTP)
            while not self._ended.is_set():
                number = next(self._numbers)
                name, begun = f"{self._name} {number}", time.monotonic()
                self._ask(http, name, stream=(client + number) % 2 == 0)
                self.longest = max(self.longest, time.monotonic() - begun)
                self.sent += 1

    def _ask(self, http: httpx.Client, name: str, *, stream: bool) -> None:
        received = b""
        try:
            body = {"model": "local/short", "input": name, "stream": stream}
            with http.stream("POST", "/responses", json=body) as answer:
                for piece in answer.iter_bytes():
                    received += piece
            whole = b'"response.completed"' in received if stream else b'"status":"completed"' in received
            if answer.status_code != 200 or not whole:
                self.failures.append((name, answer.status_code == 200, f"{answer.status_code} {_reason(received)}"))
        except httpx.HTTPError as error:
            self.failures.append((name, bool(received), type(error).__name__))


def _reason(received: bytes) -> str:
    return received[-300:].decode(errors="replace").replace("\n", " ")


@contextmanager
def servers(store: str, host: Host, folder: Path) -> Iterator[tuple[Sequence[LiveStack], UpstreamProcess]]:
    """Run two servers with this store."""
    (folder / "store").mkdir(parents=True)
    with UpstreamProcess(folder / "upstream.log") as model, serving(store, folder / "store") as database:
        assert database
        model.client.script("short", reply(text(*["word "] * WORDS), interval=INTERVAL))
        env = {
            "INFERENCE_URL": model.client.base_url,
            "FINISH_SECONDS": "30",
            "PYTHONPATH": str(REPOSITORY),
            **database.environment,
        }
        config = REPOSITORY / "templates" / TEMPLATES[store] / "config.yaml"
        both = [LiveStack(config, env, folder / f"server-{n}", host, fork=False) for n in (1, 2)]
        try:
            with ThreadPoolExecutor(2) as starting:
                list(starting.map(LiveStack.start, both))
                yield both, model
        finally:
            for each in both:
                each.stop()


def run(plan: Plan, store: str, host: Host, folder: Path) -> Verdict:
    """Restart the servers under load; return what the clients have seen."""
    verdict = Verdict()
    template = (REPOSITORY / "templates" / "scale-out" / "nginx.conf").read_text()
    with servers(store, host, folder) as (both, model):
        behind = {name: f"127.0.0.1:{server.port}" for name, server in zip(BEHIND, both, strict=True)}
        with Nginx(template, folder, "127.0.0.1:8320", behind) as nginx:
            stopped = Clients(nginx.base_url, "stopped")
            with stopped.working():
                for number in range(plan.stops):
                    _restart(both[number % 2], lambda server: server.stop(GRACE))
            killed = Clients(nginx.base_url, "killed")
            if plan.kills:
                with killed.working():
                    for number in range(plan.kills):
                        _restart(both[number % 2], LiveStack.kill)
        asked = Counter(str(each.body["messages"][-1]["content"]) for each in model.client.requests("short"))
    verdict.sent = stopped.sent + killed.sent
    verdict.longest = stopped.longest
    verdict.failed = Counter(reason for _, _, reason in stopped.failures)
    verdict.twice = sum(times > 1 for times in asked.values())
    for name, received, reason in killed.failures:
        if received or asked[name]:
            verdict.begun += 1
        else:
            verdict.not_begun[reason] += 1
    return verdict


def _restart(server: LiveStack, stop: Any) -> None:
    time.sleep(1)
    port = server.port
    stop(server)
    time.sleep(1)
    server.start(port)
    while not server.is_ready():
        time.sleep(0.1)


def main() -> None:
    """Restart servers on each store, and print what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="two restarts on each store")
    parser.add_argument("--store", choices=sorted(TEMPLATES), help="one store (default: each)")
    parser.add_argument("--host", choices=("llama_stack", "ogx"), default="llama_stack")
    options = parser.parse_args()
    well = True
    for store in [options.store] if options.store else TEMPLATES:
        with tempfile.TemporaryDirectory() as folder:
            verdict = run(CI if options.ci else FULL, store, options.host, Path(folder))
        well = well and verdict.well
        sys.stdout.write(f"{store}: {verdict}\n")
    sys.exit(not well)


if __name__ == "__main__":
    main()
