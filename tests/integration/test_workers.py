"""Two uvicorn workers of one server, on each store that they can share: a killed one loses only its own streams."""

import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count, cycle
from operator import itemgetter
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.database import DatabaseServer
from tests.support.process import free_port
from tests.support.reader import Reader
from tests.support.socket_client import SocketClient
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.stores import SERVERS
from tests.support.strict import check_stream
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, final, output_text, roles_and_texts
from tests.support.workers import Workers, WorkersStack, listener, worker_behind

# On one day of five: the servers import the host ten times.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(4)]

TEMPLATES = ["starter"] if find_spec("ogx") else ["starter", "redis", "postgres"]
"""One store is tested on both hosts, and the rest on one, because stores do not depend on the host."""
HELD = reply(text("one ", "two ", "three"), hold=2)
WHOLE = reply(text("one ", "two ", "three"))
READY = {"status": "ready", "store": "ok", "worker": "ok", "model_server": "ok"}
CLIENTS = 16
TURNS = 6
HOPS = 12


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DatabaseServer]]:
    """A database server for each template that needs one."""
    with ExitStack() as running:
        wanted = {kind: make for kind, make in SERVERS.items() if kind in TEMPLATES}
        yield {kind: running.enter_context(make(tmp_path_factory.mktemp(kind))) for kind, make in wanted.items()}


@pytest.fixture(scope="module")
def metrics_port() -> int:
    """The port for metrics of the server of the template without a database."""
    return free_port()


def scraped_processes(port: int, name: str) -> dict[str, float]:
    """Scrape, and return the sum of the values of this name by process."""
    text = httpx.get(f"http://localhost:{port}/metrics", timeout=60, trust_env=False).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = defaultdict[str, float](float)
    for sample in samples:
        if sample.name == name:
            found[sample.labels["process"]] += sample.value
    return dict(found)


def scraped_of_both(port: int, name: str) -> dict[str, float]:
    """Return what `scraped_processes` does, once both processes have answered. One may have no sample of this name."""
    found: list[dict[str, float]] = []

    def is_whole() -> bool:
        if len(scraped_processes(port, "python_info")) < 2:
            return False
        found.append(scraped_processes(port, name))
        return len(scraped_processes(port, "python_info")) == 2

    wait_until(is_whole)
    return found[-1]


def shown(server: LiveStack, view: str) -> tuple[int, Json]:
    """Return the worker that answers, and the first event of a stream of the page."""
    with Wire(server) as wire, wire.http.stream("GET", f"/ui/{view}") as answer:
        pid = worker_behind(answer, server)
        data = next(line for line in answer.iter_lines() if line.startswith("data: "))
    found: Json = json.loads(data.removeprefix("data: "))
    return pid, found


def shown_by_each(server: LiveStack, view: str, choose: Callable[[Json], object], expected: object) -> None:
    """Wait until each worker shows these values. What another reader has seen within the last second is repeated."""
    agree: dict[int, bool] = {}

    def is_so() -> bool:
        pid, found = shown(server, view)
        agree[pid] = choose(found) == expected
        return len(agree) == 2 and all(agree.values())

    wait_until(is_so)


@pytest.fixture(scope="module")
def servers(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    databases: dict[str, DatabaseServer],
    tmp_path_factory: pytest.TempPathFactory,
    metrics_port: int,
) -> Iterator[dict[str, LiveStack]]:
    """A server with two workers for each template. They start one after the other, because each uses all cores."""
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    scraped = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(metrics_port)}
    folder = tmp_path_factory.mktemp("workers")
    stacks: dict[str, LiveStack] = {}
    with ExitStack() as running:
        for template in TEMPLATES:
            config = REPOSITORY / "templates" / template / "config.yaml"
            where = env | (databases[template].environment if template in databases else scraped)
            stacks[template] = running.enter_context(WorkersStack(config, where, folder / template, host=host))
        yield stacks


@pytest.fixture
def server(servers: dict[str, LiveStack]) -> LiveStack:
    """The server of the template without a database."""
    return servers["starter"]


@pytest.fixture(params=TEMPLATES)
def workers(request: pytest.FixtureRequest, servers: dict[str, LiveStack]) -> Iterator[Workers]:
    """Clients of each worker of the parametrized server."""
    with Workers(servers[request.param]) as workers:
        yield workers


def test_chain_continues_across_workers(workers: Workers, upstream: Upstream) -> None:
    """After the terminal event, a client can continue at once with any worker."""
    last: str | None = None
    for turn, (here, there) in zip(range(HOPS), cycle(both_ways(workers)), strict=False):
        question = {"model": "local/echo", "input": f"turn {turn}", "previous_response_id": last}
        response = final(here.stream(**question)) if turn % 4 < 2 else here.create(**question)
        last = response["id"]
        assert there.retrieve(last) == response
        assert final(there.replay(last)) == response
    contents = [content for _, content in roles_and_texts(upstream.requests("echo")[-1].body["messages"])]
    assert contents == [f"turn {turn}" for turn in range(HOPS) for _ in ("asked", "echoed")][:-1]
    workers.check()


def test_response_deleted_by_one_worker_is_404_on_the_other(workers: Workers, upstream: Upstream) -> None:
    for here, there in both_ways(workers):
        response = here.create(model="local/echo", input="soon gone")
        assert there.retrieve(response["id"]) == response
        assert here.http.delete(f"/responses/{response['id']}").status_code == 200
        error_of(there.get(f"/{response['id']}"), 404)
    workers.check()


def test_chains_on_two_workers_under_load_lose_no_responses(server: LiveStack, upstream: Upstream) -> None:
    """One client is connected to each worker, the others to either."""

    def converse(client: int, wire: Wire) -> list[Json]:
        created: list[Json] = []
        for turn in range(TURNS):
            before = created[-1]["id"] if created else None
            question = {"model": "local/echo", "input": f"{client}/{turn}", "previous_response_id": before}
            created.append(final(wire.stream(**question)) if (client + turn) % 2 else wire.create(**question))
        return created

    with Workers(server) as workers, ExitStack() as open_all, ThreadPoolExecutor(CLIENTS) as clients:
        wires = list(workers.wires.values())
        wires += [open_all.enter_context(Wire(server)) for _ in range(CLIENTS - len(wires))]
        created = [response for each in clients.map(converse, count(), wires) for response in each]
        workers.check()
        assert [output_text(each) for each in created] == [
            f"{each}/{turn}" for each in range(CLIENTS) for turn in range(TURNS)
        ]
        for wire in workers.wires.values():
            for response in created:
                assert wire.retrieve(response["id"]) == response
    assert max(len(request.body["messages"]) for request in upstream.requests("echo")) == 2 * TURNS - 1


def test_one_scrape_has_the_counters_of_each_worker(server: LiveStack, metrics_port: int, upstream: Upstream) -> None:
    counter = "gen_ai_server_request_duration_seconds_count"
    with Workers(server) as workers:
        # One that is busy for seconds is missing from a scrape.
        before = scraped_of_both(metrics_port, counter)
        for asked, wire in enumerate(workers.wires.values(), 1):
            for _ in range(asked):
                wire.create(model="local/echo", input="counted")
        after = scraped_of_both(metrics_port, counter)
        workers.check()
    assert sorted(after[each] - before.get(each, 0) for each in after) == [1, 2]


def test_each_worker_reports_for_both(server: LiveStack, upstream: Upstream) -> None:
    """Also a response that is not stored, which the store cannot tell the other worker of."""
    upstream.script("held", HELD)
    with Wire(server) as wire, Reader.create(wire, model="local/held", input="Count.", store=False) as reader:
        reader.read_to("two ")
        shown_by_each(
            server,
            "live",
            lambda state: (state["servers"], [(one["id"], one["this_server"]) for one in state["responses"]]),
            (1, [(reader.response_id, True)]),
        )
        _, counts = shown(server, "stats")
        assert counts["running"] == 1
        names = ("server", "requests", "running", "completed")
        shown_by_each(server, "stats", itemgetter(*names), itemgetter(*names)(counts))
        upstream.release("held")
        reader.read_to_end()
    with Workers(server) as workers:
        for each in workers.wires.values():
            wait_until(lambda each=each: each.http.get("/ready").json() == READY)  # type: ignore[misc]
        workers.check()
    log = server.log.read_text()
    assert all(f"server_process={number}" in log for number in (0, 1))


def test_background_response_is_followed_and_cancelled_on_the_other_worker(
    workers: Workers, upstream: Upstream
) -> None:
    for turn, (here, there) in enumerate(both_ways(workers), 1):
        upstream.script("held", HELD)
        with Reader.create(here, model="local/held", input="Count.", background=True) as reader:
            reader.read_to("two ")
            with Reader.of(there, reader.response_id) as other:
                other.read_to("two ")
                response = checked(there.http.post(f"/responses/{reader.response_id}/cancel"))
                assert upstream.wait_for("held", turn, ended=True)[-1].ended == "client_gone"
                assert reader.read_to_end() == other.read_to_end()
        assert (response["status"], output_text(response)) == ("cancelled", "one two ")
        assert (
            check_stream(reader.events) == here.retrieve(response["id"]) == there.retrieve(response["id"]) == response
        )


class StackWithKilledWorker:
    """A server with one worker killed while each worker streams a response."""

    def __init__(
        self, kind: str, server: LiveStack, upstream: Upstream, open_all: ExitStack, doomed_pid: int | None
    ) -> None:
        """Start the streams, and a background response requested from the worker that is killed."""
        self._server = server
        self._upstream = upstream
        self._streamed, self._queued = f"{kind}-streamed", f"{kind}-queued"
        upstream.script(self._streamed, HELD)
        upstream.script(self._queued, [HELD, WHOLE])
        workers = open_all.enter_context(Workers(server))
        (self._dead, doomed), (_, self._other) = sorted(workers.wires.items(), key=lambda each: each[0] != doomed_pid)
        self._kept = [wire.create(model="local/echo", input="kept") for wire in (doomed, self._other)]
        body = {"model": f"local/{self._queued}", "input": "Count.", "background": True}
        self._response_id = checked(doomed.post(body))["id"]
        upstream.wait_for(self._queued, chunks=2)
        workers.check()
        self._cut, self._whole = (
            open_all.enter_context(Reader.create(wire, model=f"local/{self._streamed}", input="Count."))
            for wire in (doomed, self._other)
        )
        self._cut.read_to("two ")
        self._whole.read_to("two ")

    def strike(self) -> None:
        """Kill the worker."""
        os.kill(self._dead, signal.SIGKILL)
        self._cut.read_to_death()
        for model in (self._streamed, self._queued):
            self._upstream.release(model)

    def check(self) -> None:
        """Check that the other worker continued, that the lease expired, and that the worker was replaced."""
        self._kept.append(check_stream(self._whole.read_to_end()))
        self._kept.append(
            self._other.create(model="local/echo", input="go on", previous_response_id=self._kept[0]["id"])
        )
        wait_until(lambda: self._other.get(f"/{self._cut.response_id}").is_success, every=0.25)
        wait_until(lambda: self._other.retrieve(self._response_id)["status"] == "completed", every=0.25)
        self._kept.append(self._other.retrieve(self._response_id))
        with Workers(self._server) as healed:
            assert self._dead not in healed.wires
            for wire in healed.wires.values():
                assert [wire.retrieve(each["id"]) for each in self._kept] == self._kept
                failed = wire.retrieve(self._cut.response_id)
                assert (failed["status"], failed["output"]) == ("failed", [])
                assert failed["error"]["message"] == "The server ended while it generated this response."
            check_hop(healed, self._kept[3])
        assert [output_text(each) for each in self._kept] == ["kept", "kept", "one two three", "go on", "one two three"]


def test_killed_worker_loses_only_its_own_streams(
    servers: dict[str, LiveStack], metrics_port: int, upstream: Upstream
) -> None:
    """One worker of each server is killed at the same time, because leases take a while to expire.

    On the server of the template without a database, it is the one that serves the metrics.
    """
    scraped = servers["starter"]
    wait_until(lambda: len(scraped_processes(metrics_port, "python_info")) == 2)
    victim = listener(scraped, metrics_port)
    with ExitStack() as open_all:
        struck = [StackWithKilledWorker(kind, server, upstream, open_all, victim) for kind, server in servers.items()]
        for each in struck:
            each.strike()
        wait_until(scraped.is_ready)
        for each in struck:
            each.check()
    wait_until(lambda: len(scraped_processes(metrics_port, "python_info")) == 2)
    assert listener(scraped, metrics_port) != victim


def check_hop(workers: Workers, last: Json) -> None:
    """Check that the new worker continues responses of the old ones, and the reverse."""
    for here, there in both_ways(workers):
        last = here.create(model="local/echo", input="still here", previous_response_id=last["id"])
        assert there.retrieve(last["id"]) == last


def both_ways(workers: Workers) -> list[tuple[Wire, Wire]]:
    """Return the clients of both workers, in both orders."""
    one, other = workers.wires.values()
    return [(one, other), (other, one)]


def test_stalled_clients_do_not_delay_the_shutdown_of_workers(server: LiveStack, upstream: Upstream) -> None:
    """This test must be last, because it stops the server."""
    upstream.script("flood", reply(text(*["word " * 1000] * 8000)))
    flood: dict[str, object] = {"model": "local/flood", "input": "x", "stream": True}
    with ExitStack() as open_all:
        with Workers(server) as workers:
            pids = list(workers.wires)
        for _ in range(8):  # practically certain to reach both workers
            client = open_all.enter_context(SocketClient(server, flood, buffer=32_768))
            client.read_until(b"event: response.output_text.delta")
        assert server.stop() != -signal.SIGKILL
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
