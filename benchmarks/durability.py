"""What becomes of background responses when the servers that make them are killed again and again.

    .venv/bin/python -m benchmarks.durability                      # 200 responses, about two minutes
    .venv/bin/python -m benchmarks.durability --responses 40       # a short run

Two servers stand on one real Valkey, before one scripted model server. Every few seconds one of them gets SIGKILL and
is started again, while clients queue responses on whichever answers and readers follow half of them, taking up streams
again where they break. At the end every response that was acknowledged is looked at.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.servers import REPOSITORY, TEMPLATE
from tests.support.stack import Host, LiveStack
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.valkey import Valkey
from tests.support.variants import responses_config, variant

type Json = dict[str, Any]

TOKENS: Final = 60
INTERVAL: Final = 0.05
RUNNING: Final = ("queued", "in_progress")
PATIENCE: Final = 120.0
"""Seconds after the last kill in which everything has to be finished."""


@dataclass
class Seen:
    """What clients know: the responses that were acknowledged, and what readers read of them."""

    acknowledged: dict[str, str] = field(default_factory=dict)  # response id -> its input
    events: dict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))
    reconnects: int = 0


class Clients:
    """Queues responses and reads them, through whichever server answers."""

    def __init__(self, servers: Sequence[LiveStack], chance: random.Random) -> None:
        self.seen = Seen()
        self._servers = servers
        self._chance = chance

    def queue(self, number: int) -> str:
        """Queues a response until it is acknowledged; its id."""
        said = f"response {number}"
        while True:
            try:
                with self._client() as client:
                    body = {"model": "local/slow", "input": said, "background": True}
                    answer = client.post("/responses", json=body).raise_for_status().json()
            except httpx.HTTPError:
                time.sleep(0.2)
                continue
            self.seen.acknowledged[answer["id"]] = said
            return str(answer["id"])

    def read(self, response_id: str) -> None:
        """Reads a response to its end, from where it broke off each time."""
        events = self.seen.events[response_id]
        while not (events and events[-1]["type"].removeprefix("response.") in ("completed", "incomplete", "failed")):
            after = events[-1]["sequence_number"] if events else None
            try:
                events += self._read_on(response_id, after)
            except httpx.HTTPError:
                time.sleep(0.2)
            self.seen.reconnects += 1

    def final(self, response_id: str) -> Json | None:
        """The response once it has ended; None if it is not there or does not end."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                with self._client() as client:
                    answer = client.get(f"/responses/{response_id}")
            except httpx.HTTPError:
                time.sleep(0.2)
                continue
            if answer.status_code == 404:
                return None
            if answer.is_success and answer.json()["status"] not in RUNNING:
                response: Json = answer.json()
                return response
            time.sleep(0.2)
        return None

    def replay(self, response_id: str) -> list[Json]:
        """The events of a response that has ended."""
        with self._client() as client:
            return read_sse(client.get(f"/responses/{response_id}?stream=true").content).events

    def _read_on(self, response_id: str, after: int | None) -> list[Json]:
        raw, query = b"", "" if after is None else f"&starting_after={after}"
        try:
            with (
                self._client() as client,
                client.stream("GET", f"/responses/{response_id}?stream=true{query}") as answer,
            ):
                for piece in answer.iter_bytes():
                    raw += piece
        except httpx.HTTPError:
            if b"\n\n" not in raw:
                raise
        whole = raw[: raw.rfind(b"\n\n") + 2].replace(b"data: [DONE]\n\n", b"")
        return read_sse(whole + b"data: [DONE]\n\n").events

    def _client(self) -> httpx.Client:
        server = self._chance.choice([each for each in self._servers if each.port] or list(self._servers))
        return httpx.Client(base_url=f"{server.base_url}/v1", timeout=20, trust_env=False)


def verdict(clients: Clients, upstream: Upstream, kills: int) -> tuple[list[tuple[str, str]], bool]:
    """The table's rows, and whether all that must be 0 is."""
    seen = clients.seen
    ended = {response_id: clients.final(response_id) for response_id in seen.acknowledged}
    statuses = Counter(final["status"] if final else "lost" for final in ended.values())
    tries: dict[str, list[Any]] = defaultdict(list)
    for record in upstream.requests("slow"):
        tries[record.body["messages"][-1]["content"]].append(record)
    finished_twice = sum(sum(each.ended == "completed" for each in records) > 1 for records in tries.values())
    gaps = [
        later.started_at - earlier.ended_at
        for records in tries.values()
        for earlier, later in pairwise(records)
        if earlier.ended_at is not None
    ]
    broken = sum(_is_broken(clients, response_id, ended[response_id]) for response_id in seen.acknowledged)
    rows = [
        ("servers killed", str(kills)),
        ("responses acknowledged", str(len(seen.acknowledged))),
        *((status, str(count)) for status, count in sorted(statuses.items())),
        ("taken up again", str(sum(len(records) > 1 for records in tries.values()))),
        ("model rounds finished twice", str(finished_twice)),
        ("lost (must be 0)", str(statuses["lost"])),
        ("streams taken up again by readers", str(seen.reconnects)),
        ("streams with a gap, a duplicate or another end (must be 0)", str(broken)),
        ("time to take over, median and longest", _seconds(gaps)),
    ]
    return rows, statuses["lost"] == 0 and broken == 0


def _is_broken(clients: Clients, response_id: str, final: Json | None) -> bool:
    if final is None:
        return True
    replayed = clients.replay(response_id)
    read = clients.seen.events.get(response_id, replayed)
    try:
        return check_stream(read) != final or read != replayed
    except AssertionError:
        return True


def _seconds(gaps: Sequence[float]) -> str:
    return f"{statistics.median(gaps):.1f} s, {max(gaps):.1f} s" if gaps else "-"


def run(responses: int, every: float, seed: int) -> bool:
    """One run; whether nothing was lost and nothing broken."""
    host: Host = "ogx" if find_spec("ogx") else "llama_stack"
    chance = random.Random(seed)  # noqa: S311 (no secret)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="durability-")))
        valkey = running.enter_context(Valkey(folder / "valkey"))
        model = running.enter_context(UpstreamProcess(folder / "upstream.log"))
        model.client.script("slow", reply(text(*(f"word{n} " for n in range(TOKENS))), interval=INTERVAL))

        def on_valkey(config: Json) -> None:
            responses_config(config)["store"] = {"type": "redis", "url": valkey.url}

        config = variant(TEMPLATE, folder / "config.yaml", on_valkey)
        env = {"INFERENCE_URL": model.client.base_url, "PYTHONPATH": str(REPOSITORY)}
        servers = [LiveStack(config, env, folder / f"server{n}", host) for n in range(2)]
        for server in servers:
            running.enter_context(server)
        clients = Clients(servers, chance)
        kills = _load(clients, servers, responses, every, chance)
        rows, well = verdict(clients, model.client, kills)
    width = max(len(name) for name, _ in rows)
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in rows)
    return well


def _load(clients: Clients, servers: Sequence[LiveStack], responses: int, every: float, chance: random.Random) -> int:
    """Queues and reads while servers are killed; how many were. This thread starts them: they end with it."""
    kills = 0
    with ThreadPoolExecutor(responses + 8) as pool:

        def work(number: int) -> None:
            time.sleep(number * every / 12)
            response_id = clients.queue(number)
            if number % 2:
                clients.read(response_id)
            else:
                clients.final(response_id)

        tasks = [pool.submit(work, number) for number in range(responses)]
        while wait(tasks, every * chance.uniform(0.7, 1.3)).not_done:
            if kills < responses // 8:
                victim = servers[kills % 2]
                victim.kill()
                kills += 1
                victim.start()
            finished = sum(task.done() for task in tasks)
            sys.stderr.write(f"{finished} of {responses} done, {kills} servers killed\n")
        for task in tasks:
            task.result()
    return kills


def main() -> int:
    """0 when nothing was lost and no stream was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=200, help="how many responses (default: 200)")
    parser.add_argument("--every", type=float, default=6.0, help="seconds between two kills, about (default: 6)")
    parser.add_argument("--seed", type=int, default=1, help="of the chances (default: 1)")
    arguments = parser.parse_args()
    return 0 if run(arguments.responses, arguments.every, arguments.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
