"""Durability: the fate of responses whose servers are killed repeatedly.

    .venv/bin/python -m benchmarks.durability          # 200 responses, a server killed every few seconds
    .venv/bin/python -m benchmarks.durability --ci     # the short run, which is also a test
    .venv/bin/python -m benchmarks.durability --store sqlite --servers 4
    .venv/bin/python -m benchmarks.durability --store cluster --partitions 64

Two or more servers run on one real Valkey, on a cluster of three primaries and three replicas, or on one file of SQLite
as the processes of one server do, with one scripted model server and a local stand-in for the web. Each response takes
three model rounds: one requests a web search, one calls an unknown tool, one answers. Clients use any server that
responds: two thirds in the background, one third as a stream with an Idempotency-Key. Half of the background responses
are followed, and broken streams are resumed. In the middle of each few responses, one server gets SIGKILL and is
restarted; in a cluster, every second time it is a primary, and a replica takes over, and then a partition is moved to
another primary. With `--acknowledged 1` a commit counts once a replica has it. Others create responses that are not
stored, and one of them may be cut off by each kill. At the end, every acknowledged response is checked, and usage has
to be the sum of what they have used.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import accumulate, cycle, pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import httpx

from benchmarks.servers import REPOSITORY, TEMPLATE
from tests.support.cluster import Cluster, Node
from tests.support.search import searxng
from tests.support.stack import Host, LiveStack
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import RecordedChat, Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.valkey import Valkey
from tests.support.variants import open_this_machine, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web

type Json = dict[str, Any]

WORDS: Final = 40
INTERVAL: Final = 0.05
SEARCH_SECONDS: Final = 0.5
ONCE: Final = "local/once"
"""The model of responses that are not stored."""
RUNNING: Final = ("queued", "in_progress")
ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
ONCE_TOKENS: Final = 3
"""Output tokens of each of them."""
PATIENCE: Final = 120.0
"""Seconds after the last kill until everything must be finished."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run.

    Attributes:
        responses: number of responses.
        kills: number of kills.
        every: maximum seconds between the start of some responses and the kill that interrupts them.
        seed: random seed.
        store: `redis`, `cluster` or `sqlite`.
        servers: number of servers.
        partitions: those of a store in a cluster.
        acknowledged: `replicas_acknowledged` of a store in a cluster.
    """

    responses: int
    kills: int
    every: float
    seed: int
    store: str = "redis"
    servers: int = 2
    partitions: int = 8
    acknowledged: int = 0


FULL: Final = Plan(responses=200, kills=25, every=4.0, seed=1)
CI: Final = Plan(responses=24, kills=2, every=4.0, seed=1)
CI_SQLITE: Final = replace(CI, store="sqlite", servers=3)
CI_CLUSTER: Final = replace(CI, store="cluster")


@dataclass
class ClientObservations:
    """The clients' observations.

    Attributes:
        made: ids of the acknowledged responses by request number; one each, if all is well.
        events: events that readers received, by response.
        torn: streams whose repeated beginning differed.
        reconnects: number of resumed streams.
        once: responses that are not stored, and those of them that were acknowledged.
    """

    made: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    events: dict[str, list[Json]] = field(default_factory=dict)
    torn: int = 0
    reconnects: int = 0
    once: list[bool] = field(default_factory=list)


class Clients:
    """Clients that create and read responses through any server that responds."""

    def __init__(self, servers: Sequence[LiveStack], chance: random.Random) -> None:
        self.seen = ClientObservations()
        self._servers = servers
        self._chance = chance

    def work(self, number: int) -> None:
        """Create one response and wait for its end."""
        if number % 3 == 0:
            self._read_under_key(number)
            return
        response_id = self._queue(number)
        if number % 2:
            self._follow(response_id)
        else:
            self.final(response_id)

    def ask_once(self) -> None:
        """Create a response that is not stored, without retries."""
        try:
            with self._client() as client:
                answer = client.post("/responses", json={"model": ONCE, "input": "Hi", "store": False})
                self.seen.once.append(answer.is_success)
        except httpx.HTTPError:
            self.seen.once.append(False)

    def usage(self, model: str | None = None) -> tuple[int, int, int]:
        """Return the requests, input tokens and output tokens of all usage of the other models, or of this one."""
        query: Json = {"start_time": int(time.time()) - 86_400, "bucket_width": "1d", "group_by": "model"}
        with self._client() as client:
            buckets = client.get("/organization/usage/completions", params=query).raise_for_status().json()["data"]
        found = [each for bucket in buckets for each in bucket["results"] if (each["model"] == ONCE) == (model == ONCE)]
        names = ("num_model_requests", "input_tokens", "output_tokens")
        requests, inputs, outputs = (sum(each[name] for each in found) for name in names)
        return requests, inputs, outputs

    def final(self, response_id: str) -> Json | None:
        """Return the response once it has ended; None if it does not exist or does not end."""
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
        """Return the events of a completed response."""
        with self._client() as client:
            return read_sse(client.get(f"/responses/{response_id}?stream=true").content).events

    def listed(self) -> int:
        """Count the stored responses."""
        with self._client() as client:
            pages = [client.get("/responses?limit=100").json()]
            while pages[-1]["has_more"]:
                pages.append(client.get(f"/responses?limit=100&after={pages[-1]['last_id']}").json())
        return sum(len(page["data"]) for page in pages)

    def _queue(self, number: int) -> str:
        """Queue a response, with retries until it is acknowledged; return its id."""
        body, headers = request(number) | {"background": True}, {"idempotency-key": f"{number}"}
        while True:
            try:
                with self._client() as client:
                    answer = client.post("/responses", json=body, headers=headers).raise_for_status().json()
            except httpx.HTTPError:
                time.sleep(0.2)
                continue
            self.seen.made[number].add(answer["id"])
            return str(answer["id"])

    def _follow(self, response_id: str) -> None:
        """Read a response to its end; after each break, resume after the last event."""
        events = self.seen.events.setdefault(response_id, [])
        while not ended(events):
            query = {"stream": "true"} | ({"starting_after": str(events[-1]["sequence_number"])} if events else {})
            events += self._read("GET", f"/responses/{response_id}", params=query)

    def _read_under_key(self, number: int) -> None:
        """Request a stream with retries until one is complete; each must begin like the ones before."""
        body, headers = request(number) | {"stream": True}, {"idempotency-key": f"{number}"}
        read: list[Json] = []
        while not ended(read):
            again = self._read("POST", "/responses", json=body, headers=headers)
            together = min(len(read), len(again))
            self.seen.torn += again[:together] != read[:together]
            read = max(read, again, key=len)
            if read:
                response_id = read[0]["response"]["id"]
                self.seen.made[number].add(response_id)
                self.seen.events[response_id] = read

    def _read(self, method: str, path: str, **options: Any) -> list[Json]:
        """Return the complete events until the stream ends or breaks."""
        raw = b""
        try:
            with self._client() as client, client.stream(method, path, **options) as answer:
                answer.raise_for_status()
                for piece in answer.iter_bytes():
                    raw += piece
        except httpx.HTTPError:
            self.seen.reconnects += 1
            time.sleep(0.2)
        whole = raw[: raw.rfind(b"\n\n") + 2].replace(b"data: [DONE]\n\n", b"")
        return read_sse(whole + b"data: [DONE]\n\n").events if whole else []

    def _client(self) -> httpx.Client:
        server = self._chance.choice([each for each in self._servers if each.port] or list(self._servers))
        url = f"{server.base_url}/v1"
        # With `verify`, each client would first load the machine's certificates.
        return httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False)  # noqa: S501 (plain HTTP)


def request(number: int) -> Json:
    """Return the body of a request."""
    return {"model": f"local/work-{number}", "input": f"response {number}", "tools": [{"type": "web_search"}]}


def ended(events: Sequence[Json]) -> bool:
    """Whether the last of these events is terminal."""
    return bool(events) and events[-1]["type"] in ENDS


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run.

    Attributes:
        kills: number of killed servers, and primaries of the store.
        statuses: number of responses by status; `lost` are those that do not exist or did not end.
        taken_up: responses that another server continued.
        finished_twice: model rounds that completed twice: the server died before it stored the first result.
        repeated: model rounds that were repeated although a later one had begun.
        twice: requests with more than one response.
        broken: streams with a gap, a duplicate, or a final response other than the stored one.
        reconnects: streams that readers resumed.
        gaps: seconds between the interruption of a round and the start of the next.
        miscounted: how far usage is from what the responses have used, in requests and tokens.
    """

    kills: int
    statuses: Mapping[str, int]
    taken_up: int
    finished_twice: int
    repeated: int
    twice: int
    broken: int
    reconnects: int
    gaps: Sequence[float]
    miscounted: int

    @property
    def well(self) -> bool:
        """Whether nothing was lost, repeated, broken or miscounted."""
        return not (self.statuses.get("lost") or self.repeated or self.twice or self.broken or self.miscounted)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table."""
        gaps = f"{statistics.median(self.gaps):.1f} s, {max(self.gaps):.1f} s" if self.gaps else "-"
        return [
            ("servers killed", str(self.kills)),
            *((status, str(count)) for status, count in sorted(self.statuses.items())),
            ("taken up again", str(self.taken_up)),
            ("model rounds that ended twice", str(self.finished_twice)),
            ("streams taken up again by readers", str(self.reconnects)),
            ("time to take over, median and longest", gaps),
            ("lost (must be 0)", str(self.statuses.get("lost", 0))),
            ("rounds run again behind a finished one (must be 0)", str(self.repeated)),
            ("requests with two responses (must be 0)", str(self.twice)),
            ("streams with a gap, a duplicate or another end (must be 0)", str(self.broken)),
            ("requests and tokens that usage has too many or too few (must be 0)", str(self.miscounted)),
        ]


def judge(clients: Clients, upstream: Upstream, plan: Plan) -> Verdict:
    """Check every acknowledged response, and all requests to the model server."""
    seen = clients.seen
    ids = [response_id for ids_of_model in seen.made.values() for response_id in ids_of_model]
    finals = {response_id: clients.final(response_id) for response_id in ids}
    rounds: dict[str, list[RecordedChat]] = defaultdict(list)
    for record in upstream.requests():
        rounds[record.body["model"]].append(record)
    positions = {model: [_position_of(record) for record in records] for model, records in rounds.items()}
    return Verdict(
        kills=plan.kills,
        statuses=Counter(final["status"] if final else "lost" for final in finals.values()),
        taken_up=sum(len(set(counts)) < len(counts) for counts in positions.values()),
        finished_twice=sum(_finished_twice(records) for records in rounds.values()),
        repeated=sum(map(_steps_back, positions.values())),
        twice=sum(len(ids_of_model) > 1 for ids_of_model in seen.made.values()) + abs(clients.listed() - len(ids)),
        broken=seen.torn + sum(_is_broken(clients, response_id, final) for response_id, final in finals.items()),
        reconnects=seen.reconnects,
        gaps=[gap for records in rounds.values() for gap in _gaps(records)],
        miscounted=_miscounted(clients, [final for final in finals.values() if final]),
    )


def _miscounted(clients: Clients, finals: Sequence[Json]) -> int:
    """Return by how much usage differs from what all responses have used."""
    used = [final["usage"] or {"input_tokens": 0, "output_tokens": 0} for final in finals]
    sums = (len(finals), sum(each["input_tokens"] for each in used), sum(each["output_tokens"] for each in used))
    wrong = sum(abs(counted - right) for counted, right in zip(clients.usage(), sums, strict=True))
    requests, _, outputs = clients.usage(ONCE)
    once = clients.seen.once
    # A response that is not acknowledged may have ended before its server was killed.
    wrong += max(0, sum(once) - requests) + max(0, requests - len(once))
    return int(wrong) + abs(outputs - requests * ONCE_TOKENS)


def _position_of(record: RecordedChat) -> int:
    """Return the number of tool results in a request."""
    return sum(message["role"] == "tool" for message in record.body["messages"])


def _steps_back(positions: Sequence[int]) -> int:
    return sum(now < most for now, most in zip(positions, accumulate(positions, max), strict=True))


def _finished_twice(records: Sequence[RecordedChat]) -> int:
    finished = Counter(_position_of(record) for record in records if record.ended == "completed")
    return sum(times - 1 for times in finished.values())


def _gaps(records: Sequence[RecordedChat]) -> Iterator[float]:
    for earlier, later in pairwise(records):
        if earlier.ended == "client_gone" and earlier.ended_at is not None:
            yield later.started_at - earlier.ended_at


def _is_broken(clients: Clients, response_id: str, final: Json | None) -> bool:
    if final is None:
        return False  # counted as lost
    replayed = clients.replay(response_id)
    read = clients.seen.events.get(response_id, replayed)
    try:
        return check_stream(read, taken_over=True) != final or read != replayed
    except AssertionError:
        return True


def script(model: Upstream, number: int) -> None:
    """Script the rounds of one response, in order; a repeated round takes the next one."""
    search = json.dumps({"queries": [f"search of {number}"]})
    words = text(*(f"word{n} " for n in range(WORDS // 4)))
    model.script(
        f"work-{number}",
        [
            reply(words, tool_call(0, "call_search", "web_search", search), interval=INTERVAL),
            reply(words, tool_call(0, "call_nothing", "nothing_of_that_name", "{}"), interval=INTERVAL),
            reply(text(*(f"word{n} " for n in range(WORDS))), interval=INTERVAL),
        ],
    )


def find(received: ReceivedRequest) -> Answer:
    """Return SearXNG's answer, after a delay."""
    time.sleep(SEARCH_SECONDS)
    body = searxng(received.query["q"], [("http://127.0.0.1:9/", "A page", "Its text.")])
    return Answer(json.dumps(body).encode(), headers={"content-type": "application/json"})


class Victim(Protocol):
    """What is killed and started again."""

    def kill(self) -> None:
        """Kill it."""

    def start(self) -> None:
        """Start it, and wait until it works."""


class PrimaryOfStore:
    """A primary that has a partition of the store, which comes back as the replica of the one that took over.

    Each time it is that of another partition. Once it is back, a partition is moved to another primary.

    Args:
        partitions: their number.
    """

    def __init__(self, cluster: Cluster, partitions: int, chance: random.Random) -> None:
        self._cluster, self._partitions, self._chance = cluster, partitions, chance
        self._place = ""
        self._node: Node | None = None

    def kill(self) -> None:
        """Kill it."""
        self._place = self._any_place()
        self._node = self._cluster.owner(self._place)
        self._node.kill()

    def start(self) -> None:
        """Start it once a replica has taken over, and wait until it could take over itself."""
        dead = self._node
        assert dead is not None
        wait_until(lambda: self._cluster.owner(self._place) is not dead)
        dead.start()
        wait_until(lambda: dead.follows)
        self._cluster.move(self._any_place())

    def _any_place(self) -> str:
        """Return what all keys of some partition begin with."""
        return f"{{responses:{self._chance.randrange(self._partitions)}}}:"


@contextmanager
def servers_on_one_store(
    plan: Plan, folder: Path, model: Upstream, chance: random.Random
) -> Iterator[tuple[list[LiveStack], PrimaryOfStore | None]]:
    """Run servers on one store, with a web search; yield them, and a primary of the store if it is in a cluster."""
    with ExitStack() as running:
        web = running.enter_context(Web())
        web.answers["/searxng/search"] = find
        store: Json = {"type": "sqlite", "path": str(folder / "responses.db")}
        primary = None
        if plan.store == "cluster":
            cluster = running.enter_context(Cluster(folder / "cluster"))
            store = {"type": "cluster", "url": cluster.url, "partitions": plan.partitions}
            store |= {"replicas_acknowledged": plan.acknowledged}
            primary = PrimaryOfStore(cluster, plan.partitions, chance)
        elif plan.store == "redis":
            store = {"type": "redis", "url": running.enter_context(Valkey(folder / "valkey")).url}

        def change(config: Json) -> None:
            responses_config(config)["store"] = store
            responses_config(config)["usage"] = {}
            open_this_machine(config)

        config = variant(TEMPLATE, folder / "config.yaml", change)
        host: Host = "ogx" if find_spec("ogx") else "llama_stack"
        packages = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "providers" / "openai_chat")))
        env = {"INFERENCE_URL": model.base_url, "PYTHONPATH": packages, "SEARXNG_URL": web.url("/searxng")}
        servers = [LiveStack(config, env, folder / f"server{n}", host) for n in range(plan.servers)]
        for server in servers:
            running.enter_context(server)
        yield servers, primary


def run(plan: Plan) -> Verdict:
    """Run once."""
    chance = random.Random(plan.seed)  # noqa: S311 (no secret)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="durability-")))
        model = running.enter_context(UpstreamProcess(folder / "upstream.log")).client
        for number in range(plan.responses):
            script(model, number)
        model.script("once", reply(text("a ", "b ", "c"), interval=INTERVAL))
        servers, primary = running.enter_context(servers_on_one_store(plan, folder, model, chance))
        clients = Clients(servers, chance)
        kinds: Iterator[Sequence[Victim]] = cycle([servers, [primary]] if primary else [servers])
        _load(clients, lambda: chance.choice(next(kinds)), model, plan, chance)
        return judge(clients, model, plan)


def _load(clients: Clients, choose: Callable[[], Victim], model: Upstream, plan: Plan, chance: random.Random) -> None:
    """Create responses while servers are killed. This thread starts the servers, since they end with it."""
    with ThreadPoolExecutor(2 * plan.responses) as pool:
        tasks: list[Future[None]] = []
        for kill in range(plan.kills):
            numbers = range(plan.responses * kill // plan.kills, plan.responses * (kill + 1) // plan.kills)
            tasks += [pool.submit(clients.work, number) for number in numbers]
            tasks += [pool.submit(clients.ask_once) for _ in numbers]
            time.sleep(plan.every * chance.uniform(0.1, 1.0))
            # On a busy machine, no round may have begun yet.
            while not _in_a_round(model) and not all(task.done() for task in tasks):
                time.sleep(0.02)
            sys.stderr.write(f"{sum(task.done() for task in tasks)} of {len(tasks)} done, a server is killed\n")
            victim = choose()
            victim.kill()
            victim.start()
        wait(tasks)
        for task in tasks:
            task.result()


def _in_a_round(model: Upstream) -> bool:
    return any(record.ended == "streaming" for record in model.requests())


def main() -> int:
    """Run the benchmark; return 0 if nothing was lost, repeated or broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the short run")
    parser.add_argument("--responses", type=int, help="how many responses")
    parser.add_argument("--kills", type=int, help="how often a server is killed")
    parser.add_argument("--every", type=float, help="seconds until a server is killed, at most")
    parser.add_argument("--seed", type=int, help="of the chances")
    parser.add_argument("--store", choices=("redis", "cluster", "sqlite"), help="the store (default: redis)")
    parser.add_argument("--servers", type=int, help="how many servers (default: 2)")
    parser.add_argument("--partitions", type=int, help="how many partitions a store in a cluster has (default: 8)")
    parser.add_argument("--acknowledged", type=int, help="replicas that must have a commit of a cluster (default: 0)")
    arguments = vars(parser.parse_args())
    plan = CI if arguments.pop("ci") else FULL
    verdict = run(replace(plan, **{name: value for name, value in arguments.items() if value is not None}))
    width = max(len(name) for name, _ in verdict.rows())
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in verdict.rows())
    return 0 if verdict.well else 1


if __name__ == "__main__":
    sys.exit(main())
