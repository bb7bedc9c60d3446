"""Durability: the fate of responses whose servers are killed repeatedly.

    .venv/bin/python -m benchmarks.durability          # 200 responses, a server killed every few seconds
    .venv/bin/python -m benchmarks.durability --ci     # the short run, which is also a test
    .venv/bin/python -m benchmarks.durability --store sqlite --servers 4
    .venv/bin/python -m benchmarks.durability --store cluster --partitions 64
    .venv/bin/python -m benchmarks.durability --store cluster --replicas 2 --unlinked 0.5 --acknowledged 1
    .venv/bin/python -m benchmarks.durability --store cluster --valkey .../valkey-server    # Valkey 9 moves as a whole

Two or more servers run on one real Valkey, on a cluster of three primaries with replicas, or on one file of SQLite as
the processes of one server do, with one scripted model server and a local stand-in for the web. Each response takes
three model rounds: one requests a web search, one calls an unknown tool, one answers. Clients use any server that
responds: two thirds in the background, one third as a stream with an Idempotency-Key. Half of the background responses
are followed, and broken streams are resumed. In the middle of each few responses, one server gets SIGKILL, or several
do at once (`--at-once`), and they are restarted. In a cluster, a primary and a replica of another one are killed at the
same moment; a replica takes over, and then a partition is moved to another primary: key by key, or as a whole
(`--valkey`). Others create responses that are not stored, and one of them may be cut off by each kill. At the end,
every acknowledged response is checked, and usage has to be the sum of what they have used.

What a primary acknowledged and its replicas do not have is lost with it. Two processes on one machine rarely lose
anything so: with `--unlinked 0.5` the replicas of a primary get nothing of the last half second. `node_logs.py` reads
from the files of the nodes which commits were lost, and what that explains is counted apart. With `--acknowledged 1`,
a commit counts once a replica has it. Then it explains something only if a replica had it, and another one took over.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from benchmarks.node_logs import NODE_OPTIONS, EngineLosses
from benchmarks.servers import TEMPLATE
from benchmarks.victims import Nodes, Victims
from tests.support.cluster import ChosenNode, Cluster
from tests.support.forks import Forks
from tests.support.search import searxng
from tests.support.stack import PACKAGES, Host, LiveStack
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import RecordedChat, Upstream, UpstreamProcess, reply, text, tool_call
from tests.support.valkey import Valkey
from tests.support.variants import open_this_machine, responses_config, variant
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
IN_FLIGHT: Final = 150
"""Responses that are made at a time: the next victims wait until there are no more."""
VALIDATED: Final = 1000
"""Responses up to which the types of all events are checked."""
JUDGES: Final = 8
"""Responses that are checked at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run.

    Attributes:
        responses: number of responses.
        kills: number of killed servers and nodes, or some more: those of a moment are killed together.
        every: maximum seconds between the start of some responses and the kills that interrupt them.
        seed: random seed.
        store: `redis`, `cluster` or `sqlite`.
        servers: number of servers.
        at_once: how many of them are killed at the same moment.
        partitions: those of a store in a cluster.
        replicas: how many each primary of the cluster has.
        acknowledged: `replicas_acknowledged` of a store in a cluster.
        unlinked: for so many seconds before its death, a primary acknowledges what its replicas do not get.
        valkey: the path of a Valkey 9, which moves partitions as a whole; empty for the one of the tests.
    """

    responses: int
    kills: int
    every: float
    seed: int
    store: str = "redis"
    servers: int = 2
    at_once: int = 1
    partitions: int = 8
    replicas: int = 1
    acknowledged: int = 0
    unlinked: float = 0.0
    valkey: str = ""


FULL: Final = Plan(responses=200, kills=25, every=4.0, seed=1)
CI: Final = Plan(responses=24, kills=2, every=4.0, seed=1)
CI_SQLITE: Final = replace(CI, store="sqlite", servers=3)
CI_CLUSTER: Final = replace(CI, store="cluster", kills=3)


@dataclass
class ClientObservations:
    """The clients' observations.

    Attributes:
        made: ids of the acknowledged responses by request number; one each, if all is well.
        events: events that readers received up to the end, by response: JSON, packed with zlib.
        torn: the ids of the responses of streams whose repeated beginning differed.
        reconnects: number of resumed streams.
        once: responses that are not stored, and those of them that were acknowledged.
    """

    made: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    events: dict[str, bytes] = field(default_factory=dict)
    torn: list[set[str]] = field(default_factory=list)
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
            time.sleep(0.5)
        return None

    def replay(self, response_id: str) -> list[Json]:
        """Return the events of a completed response."""
        with self._client() as client:
            return read_sse(client.get(f"/responses/{response_id}?stream=true").content).events

    def listed(self) -> set[str]:
        """Return the ids of the stored responses."""
        with self._client() as client:
            pages = [client.get("/responses?limit=100").json()]
            while pages[-1]["has_more"]:
                pages.append(client.get(f"/responses?limit=100&after={pages[-1]['last_id']}").json())
        return {each["id"] for page in pages for each in page["data"]}

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
        """Read a response to its end, unless it is lost; after each break, resume after the last event."""
        events: list[Json] = []
        while not ended(events):
            query = {"stream": "true"} | ({"starting_after": str(events[-1]["sequence_number"])} if events else {})
            try:
                events += self._read("GET", f"/responses/{response_id}", params=query)
            except LookupError:
                return
        self._note(response_id, events)

    def _note(self, response_id: str, events: Sequence[Json]) -> None:
        self.seen.events[response_id] = zlib.compress(json.dumps(events).encode())

    def _read_under_key(self, number: int) -> None:
        """Request a stream with retries until one is complete; each must begin like the ones before."""
        body, headers = request(number) | {"stream": True}, {"idempotency-key": f"{number}"}
        read: list[Json] = []
        while not ended(read):
            again = self._read("POST", "/responses", json=body, headers=headers)
            if not again:
                continue
            self.seen.made[number].add(again[0]["response"]["id"])
            if _together(read, again) == min(len(read), len(again)):
                read = max(read, again, key=len)
            else:
                self.seen.torn.append({each[0]["response"]["id"] for each in (read, again)})
                read = again
        self._note(read[0]["response"]["id"], read)

    def _read(self, method: str, path: str, **options: Any) -> list[Json]:
        """Return the complete events until the stream ends or breaks.

        Raises:
            LookupError: there is no such response.
        """
        raw = b""
        try:
            with self._client() as client, client.stream(method, path, **options) as answer:
                if answer.status_code == 404:
                    raise LookupError(path)
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
    return {"model": "local/work", "input": f"response {number}.", "tools": [{"type": "web_search"}]}


def ended(events: Sequence[Json]) -> bool:
    """Whether the last of these events is terminal."""
    return bool(events) and events[-1]["type"] in ENDS


class Wrong(NamedTuple):
    """How many are wrong.

    Attributes:
        ours: those that nothing explains; must be 0.
        engine: those that are explained by commits that the engine has lost by itself.
    """

    ours: int = 0
    engine: int = 0

    def __str__(self) -> str:
        return f"{self.ours}" + (f" (and {self.engine} by the engine)" if self.engine else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run.

    Attributes:
        kills: number of killed servers, and nodes of the store.
        statuses: number of responses by status; `lost` are those that do not exist or did not end.
        taken_up: responses that another server continued.
        finished_twice: model rounds that completed twice: the server died before it stored the first result.
        reconnects: streams that readers resumed.
        gaps: seconds between the interruption of a round and the start of the next.
        elections: seconds from the death of a primary until another node had its slots.
        lost: responses that do not exist or did not end.
        repeated: responses of which a model round was repeated although a later one had begun.
        twice: responses of requests that have several, and responses that only the list has, or all but the list.
        broken: streams with a gap, a duplicate, or a final response other than the stored one.
        miscounted: how far usage is from what the responses have used, in requests and tokens.
        engine: what the engine has lost; None if the store is in no cluster.
        never_stored: lost responses of which no node has ever written anything.
    """

    kills: int
    statuses: Mapping[str, int]
    taken_up: int
    finished_twice: int
    reconnects: int
    gaps: Sequence[float]
    elections: Sequence[float]
    lost: Wrong
    repeated: Wrong
    twice: Wrong
    broken: Wrong
    miscounted: Wrong
    engine: EngineLosses | None
    never_stored: int

    @property
    def well(self) -> bool:
        """Whether nothing was lost, repeated, broken or miscounted, but for what the engine has lost."""
        wrong = (self.lost, self.repeated, self.twice, self.broken, self.miscounted)
        return not any(each.ours for each in wrong) and not (self.engine and self.engine.unaudited)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table."""
        engine = self.engine
        return [
            ("servers and nodes killed", str(self.kills)),
            *((status, str(count)) for status, count in sorted(self.statuses.items())),
            ("taken up again", str(self.taken_up)),
            ("model rounds that ended twice", str(self.finished_twice)),
            ("streams taken up again by readers", str(self.reconnects)),
            ("time to take over, median and longest", _times(self.gaps)),
            ("time until a replica has been elected, median and longest", _times(self.elections)),
            *((("commits that the engine lost", f"{engine.commits}"),) if engine else ()),
            *((("responses that these are of", f"{len(engine.responses)}"),) if engine else ()),
            *((("times that files of nodes had gaps (must be 0)", f"{engine.unaudited}"),) if engine else ()),
            ("lost (must be 0)", f"{self.lost}" + (f", {self.never_stored} never stored" if self.never_stored else "")),
            ("responses with rounds run again behind a finished one (must be 0)", str(self.repeated)),
            ("requests with two responses (must be 0)", str(self.twice)),
            ("streams with a gap, a duplicate or another end (must be 0)", str(self.broken)),
            ("requests and tokens that usage has too many or too few (must be 0)", str(self.miscounted)),
        ]


def _times(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} s, {max(seconds):.1f} s" if seconds else "-"


def judge(clients: Clients, upstream: Upstream, plan: Plan, victims: Victims) -> Verdict:
    """Check every acknowledged response, and all requests to the model server."""
    seen = clients.seen
    ids = [response_id for ids_of_number in seen.made.values() for response_id in ids_of_number]
    with ThreadPoolExecutor(JUDGES) as pool:
        finals = dict(zip(ids, pool.map(clients.final, ids), strict=True))
        broken = pool.map(lambda each: _is_broken(clients, each, finals[each], plan), ids)
        broken_ids = [each for each, is_broken in zip(ids, broken, strict=True) if is_broken]
    rounds: dict[int, list[RecordedChat]] = defaultdict(list)
    for record in upstream.requests("work"):
        rounds[_number_of(record)].append(record)
    positions = {number: [_position_of(record) for record in records] for number, records in rounds.items()}
    engine, missing = victims.engine_losses, [each for each, final in finals.items() if final is None]
    # What replicas have to acknowledge is lost by the engine only if another replica took over.
    lost_nodes = engine.nodes if engine else {}
    explained = {each for each, nodes in lost_nodes.items() if nodes > plan.acknowledged}
    several = [ids_of_number for ids_of_number in seen.made.values() if len(ids_of_number) > 1]
    wrongly_listed = clients.listed() ^ ({*ids} - {*missing})
    for each in (*missing, *broken_ids):
        rows = engine.rows[each] if engine and each in engine.responses else []
        nodes = f"{lost_nodes.get(each, 0)} nodes"
        sys.stderr.write(f"{each} lost these rows, which {nodes} had: {b' '.join(rows).decode()}\n")
    miscounted = _miscounted(clients, [final for final in finals.values() if final])
    by_engine = bool(engine and engine.usage_nodes > plan.acknowledged)
    return Verdict(
        kills=victims.killed,
        statuses=Counter(final["status"] if final else "lost" for final in finals.values()),
        taken_up=sum(len(set(counts)) < len(counts) for counts in positions.values()),
        finished_twice=sum(_finished_twice(records) for records in rounds.values()),
        reconnects=seen.reconnects,
        gaps=[gap for records in rounds.values() for gap in _gaps(records)],
        elections=victims.elections,
        lost=_wrong(map(_alone, missing), explained),
        repeated=_wrong((seen.made[each] for each, counts in positions.items() if _steps_back(counts)), explained),
        twice=_wrong([*several, *map(_alone, wrongly_listed)], explained),
        broken=_wrong([*seen.torn, *map(_alone, broken_ids)], explained),
        miscounted=Wrong(0, miscounted) if by_engine else Wrong(miscounted),
        engine=engine,
        never_stored=sum(each not in engine.stored for each in missing) if engine else 0,
    )


def _alone(response_id: str) -> set[str]:
    return {response_id}


def _wrong(found: Iterable[Collection[str]], explained: Set[str]) -> Wrong:
    """Count what is wrong, given the ids of the responses of each, and those of which the engine has lost something."""
    unexplained = Counter(explained.isdisjoint(ids) for ids in found)
    return Wrong(unexplained[True], unexplained[False])


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


def _number_of(record: RecordedChat) -> int:
    """Return the number of the response for which a request is."""
    found = re.search(r"response (\d+)\.", json.dumps(record.body["messages"]))
    assert found
    return int(found[1])


def _position_of(record: RecordedChat) -> int:
    """Return the number of tool results in a request."""
    return sum(message["role"] == "tool" for message in record.body["messages"])


def _steps_back(positions: Sequence[int]) -> bool:
    return any(now < most for now, most in zip(positions, accumulate(positions, max), strict=True))


def _finished_twice(records: Sequence[RecordedChat]) -> int:
    finished = Counter(_position_of(record) for record in records if record.ended == "completed")
    return sum(times - 1 for times in finished.values())


def _gaps(records: Sequence[RecordedChat]) -> Iterator[float]:
    for earlier, later in pairwise(records):
        if earlier.ended == "client_gone" and earlier.ended_at is not None:
            yield later.started_at - earlier.ended_at


def _is_broken(clients: Clients, response_id: str, final: Json | None, plan: Plan) -> bool:
    if final is None:
        return False  # counted as lost
    replayed = clients.replay(response_id)
    packed = clients.seen.events.get(response_id)
    read = json.loads(zlib.decompress(packed)) if packed else replayed
    try:
        if check_stream(read, taken_over=True, validate=plan.responses <= VALIDATED) == final and read == replayed:
            return False
        reason = f"differs from what is stored, from event {_together(read, replayed)} of {len(read)} on"
    except AssertionError as error:
        reason = str(error)
    sys.stderr.write(f"{response_id}: {reason}\n")
    return True


def _together(one: Sequence[Json], other: Sequence[Json]) -> int:
    """Return how many events two streams have in common at the beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def script(model: Upstream) -> None:
    """Script the rounds of all responses; a repeated round has the same text."""
    words = text(*(f"word{n} " for n in range(WORDS // 4)))
    search = tool_call(0, "call_search", "web_search", json.dumps({"queries": ["something"]}))
    rounds = [
        reply(words, search, interval=INTERVAL),
        reply(words, tool_call(0, "call_nothing", "nothing_of_that_name", "{}"), interval=INTERVAL),
        reply(text(*(f"word{n} " for n in range(WORDS))), interval=INTERVAL),
    ]
    model.script("work", rounds, by_results=True)
    model.script("once", reply(text("a ", "b ", "c"), interval=INTERVAL))


def find(received: ReceivedRequest) -> Answer:
    """Return SearXNG's answer, after a delay."""
    time.sleep(SEARCH_SECONDS)
    body = searxng(received.query["q"], [("http://127.0.0.1:9/", "A page", "Its text.")])
    return Answer(json.dumps(body).encode(), headers={"content-type": "application/json"})


@contextmanager
def servers_on_one_store(
    plan: Plan, folder: Path, model: Upstream, chance: random.Random
) -> Iterator[tuple[list[LiveStack], Nodes | None]]:
    """Run servers on one store, with a web search; yield them, and the nodes of the store if it is in a cluster."""
    with ExitStack() as running:
        web = running.enter_context(Web())
        web.answers["/searxng/search"] = find
        store: Json = {"type": "sqlite", "path": str(folder / "responses.db")}
        nodes = None
        if plan.store == "cluster":
            ChosenNode.program = plan.valkey
            cluster = Cluster(folder / "cluster", *NODE_OPTIONS, node=ChosenNode, replicas=plan.replicas)
            running.enter_context(cluster)
            store = {"type": "cluster", "url": cluster.url, "partitions": plan.partitions}
            store |= {"replicas_acknowledged": plan.acknowledged}
            atomic = bool(plan.valkey)
            nodes = Nodes(cluster, plan.partitions, plan.replicas, plan.unlinked, chance, atomic=atomic)
        elif plan.store == "redis":
            store = {"type": "redis", "url": running.enter_context(Valkey(folder / "valkey")).url}

        def change(config: Json) -> None:
            responses_config(config)["store"] = store
            responses_config(config)["usage"] = {}
            open_this_machine(config)

        config = variant(TEMPLATE, folder / "config.yaml", change)
        host: Host = "ogx" if find_spec("ogx") else "llama_stack"
        env = {"INFERENCE_URL": model.base_url, "PYTHONPATH": PACKAGES, "SEARXNG_URL": web.url("/searxng")}
        if LiveStack.forks is None:
            LiveStack.forks = running.enter_context(Forks.of_host(host, os.environ | env, folder / "forks.log"))
            running.callback(setattr, LiveStack, "forks", None)
        # They are forked, but for one, so that their hash seeds differ.
        servers = [LiveStack(config, env, folder / f"server{n}", host, fork=n > 0) for n in range(plan.servers)]
        for server in servers:
            running.enter_context(server)
        yield servers, nodes


def run(plan: Plan) -> Verdict:
    """Run once."""
    chance = random.Random(plan.seed)  # noqa: S311 (no secret)
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="durability-")))
        kept = 10 * plan.responses + 1000
        model = running.enter_context(UpstreamProcess(folder / "upstream.log", kept=kept)).client
        script(model)
        servers, nodes = running.enter_context(servers_on_one_store(plan, folder, model, chance))
        starters = running.enter_context(ThreadPoolExecutor(plan.servers))
        victims = Victims(servers, plan.at_once, nodes, chance, starters)
        clients = Clients(servers, chance)
        _load(clients, victims, model, plan, chance)
        return judge(clients, model, plan, victims)


def _load(clients: Clients, victims: Victims, model: Upstream, plan: Plan, chance: random.Random) -> None:
    """Create responses while servers and nodes are killed."""
    with ThreadPoolExecutor(4 * IN_FLIGHT) as pool:
        tasks: list[Future[None]] = []
        begun = 0
        while begun < plan.responses:
            share = plan.responses * min(victims.killed + victims.at_a_time, plan.kills) // plan.kills
            numbers, begun = range(begun, share), share
            tasks += [pool.submit(clients.work, number) for number in numbers]
            tasks += [pool.submit(clients.ask_once) for _ in numbers]
            time.sleep(plan.every * chance.uniform(0.1, 1.0))
            # On a busy machine, no round may have begun yet.
            while not model.requests("work", ended="streaming") and _unfinished(tasks):
                time.sleep(0.02)
            sys.stderr.write(f"{begun} responses begun, {len(_unfinished(tasks))} run; {victims.killed} killed\n")
            victims.kill_and_restart()
            while len(tasks := _unfinished(tasks)) > IN_FLIGHT:
                time.sleep(0.1)
        for task in tasks:
            task.result()


def _unfinished(tasks: Iterable[Future[None]]) -> list[Future[None]]:
    """Return the tasks that have not ended; raise the error of one that failed."""
    return [task for task in tasks if not (task.done() and task.result() is None)]


def main() -> int:
    """Run the benchmark; return 0 if nothing was lost, repeated or broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the short run")
    parser.add_argument("--responses", type=int, help="how many responses")
    parser.add_argument("--kills", type=int, help="how many servers and nodes are killed")
    parser.add_argument("--every", type=float, help="seconds until the next are killed, at most")
    parser.add_argument("--seed", type=int, help="of the chances")
    parser.add_argument("--store", choices=("redis", "cluster", "sqlite"), help="the store (default: redis)")
    parser.add_argument("--servers", type=int, help="how many servers (default: 2)")
    parser.add_argument("--at-once", type=int, help="how many servers are killed together (default: 1)")
    parser.add_argument("--partitions", type=int, help="how many partitions a store in a cluster has (default: 8)")
    parser.add_argument("--replicas", type=int, help="how many each primary of a cluster has (default: 1)")
    parser.add_argument("--acknowledged", type=int, help="replicas that must have a commit of a cluster (default: 0)")
    parser.add_argument("--unlinked", type=float, help="seconds before its death for which a primary has no replica")
    parser.add_argument("--valkey", help="path of a Valkey 9 for a cluster, in which partitions move as a whole")
    arguments = vars(parser.parse_args())
    plan = CI if arguments.pop("ci") else FULL
    begun = time.monotonic()
    verdict = run(replace(plan, **{name: value for name, value in arguments.items() if value is not None}))
    sys.stderr.write(f"{time.monotonic() - begun:.0f} s\n")
    width = max(len(name) for name, _ in verdict.rows())
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in verdict.rows())
    return 0 if verdict.well else 1


if __name__ == "__main__":
    sys.exit(main())
