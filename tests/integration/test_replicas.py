"""Replicas that share one Valkey, a cluster or one PostgreSQL: each shows, ends and continues the responses of the others."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count, cycle
from pathlib import Path
from threading import Event
from typing import Any, Final, Self
from uuid import uuid4

import httpx
import pytest

from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.jobs.queue import MAX_TRIES
from tests.support.cluster import OneNode
from tests.support.database import DatabaseServer
from tests.support.reader import Reader
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.stores import SERVERS
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import Upstream, UpstreamProcess, error, reasoning, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, final, output_text, roles_and_texts

# Replicas share a store and its notifications, which do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

COUNT = [*reasoning("Hm."), *text("one ", "two ", "three")]
HELD = reply(COUNT, hold=3)
WHOLE = reply(COUNT)
HOPS = 6
HELD_AT_ONCE = 6
LOADERS = 4
FORMS: Final[list[Json]] = [{}, {"stream": True}, {"background": True}]
AWAY = {
    "The response store's server cannot be reached.",
    # For the moment until a node of a cluster that has started serves its slots.
    "The response store's cluster has no primary for these responses.",
}
STACKS: Final[dict[str, list[str]]] = {
    "postgres": ["one", "other", "sleeper"],
    "redis": ["one", "other"],
    "cluster": ["one", "other"],
}
DATABASES: Final = {**SERVERS, "cluster": OneNode}
ON_POSTGRES: Final = [pytest.mark.extended, pytest.mark.day(1)]
"""Their tests share a day, since three more servers have to start."""
IN_CLUSTER: Final = [pytest.mark.extended, pytest.mark.day(3)]


@dataclass(frozen=True)
class Replicas:
    """A database server, and the stacks that share it by name."""

    server: DatabaseServer
    stacks: dict[str, LiveStack]


@pytest.fixture(scope="module")
def replicas(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Replicas]]:
    """Return the replicas of a kind of database server, which start on first use."""
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with ExitStack() as running:

        @cache
        def started(kind: str) -> Replicas:
            server = running.enter_context(DATABASES[kind](tmp_path_factory.mktemp(kind)))
            folder = tmp_path_factory.mktemp(f"stacks-{kind}")
            config = template(kind, folder)
            first, *_ = STACKS[kind]
            # Not all are forked: their hash seeds differ, as those of servers on several machines.
            stacks = {
                name: LiveStack(config, env | server.environment, folder / name, host=host, fork=name != first)
                for name in STACKS[kind]
            }
            # A child process ends with the thread that started it, so these threads must live as long as the stacks.
            starters = running.enter_context(ThreadPoolExecutor(len(stacks)))
            for stack in stacks.values():
                running.callback(stack.stop)
            list(starters.map(LiveStack.start, stacks.values()))
            return Replicas(server, stacks)

        yield started


def template(kind: str, folder: Path) -> Path:
    """Return the template for a kind of database server; of a cluster, it is that of Redis with another type."""
    if kind != "cluster":
        return REPOSITORY / "templates" / kind / "config.yaml"
    config = folder / "config.yaml"
    text = (REPOSITORY / "templates" / "redis" / "config.yaml").read_text()
    assert text.count("type: redis\n") == 1
    config.write_text(text.replace("type: redis\n", "type: cluster\n        partitions: 8\n"))
    return config


@pytest.fixture(
    params=["redis", pytest.param("cluster", marks=IN_CLUSTER), pytest.param("postgres", marks=ON_POSTGRES)]
)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of database server that the stacks share."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def database(kind: str, replicas: Callable[[str], Replicas]) -> DatabaseServer:
    """The database server of the stacks."""
    return replicas(kind).server


@pytest.fixture
def wires(kind: str, replicas: Callable[[str], Replicas], upstream: Upstream) -> Iterator[tuple[Wire, Wire]]:
    """A client of each of two stacks."""
    stacks = replicas(kind).stacks
    with Wire(stacks["one"]) as here, Wire(stacks["other"]) as there:
        yield here, there


def asking(wire: Wire, model: str = "m") -> Reader:
    """Return a reader of a new background response."""
    return Reader.create(wire, model=f"local/{model}", input="Count.", background=True)


def keyed(wire: Wire, key: str, model: str = "m") -> Reader:
    """Return a reader of the response with this Idempotency-Key."""
    request = {"model": f"local/{model}", "input": "Count.", "stream": True}
    return Reader(wire.http.stream("POST", "/responses", json=request, headers={"idempotency-key": key}))


def queue(wire: Wire, model: str = "m", **body: Any) -> str:
    """Request a background response and return its id."""
    answer = wire.post({"model": f"local/{model}", "input": "Count.", "background": True, **body})
    assert answer.status_code == 200, answer.text
    return str(checked(answer)["id"])


def ended(wire: Wire, response_id: str, seconds: float = 90.0) -> Json:
    """Wait until a response has ended, and return it."""
    wait_until(lambda: wire.retrieve(response_id)["status"] not in ("queued", "in_progress"), seconds)
    return wire.retrieve(response_id)


def cancel(wire: Wire, response_id: str) -> Json:
    """Cancel a response and return the answer."""
    answer = wire.http.post(f"/responses/{response_id}/cancel")
    assert answer.status_code == 200, answer.text
    return checked(answer)


def spoken(response: Json) -> list[tuple[str, str]]:
    """Return the status and the text of each message of a response."""
    return [
        (item["status"], output_text({"output": [item]})) for item in response["output"] if item["type"] == "message"
    ]


def test_background_response_is_followed_on_another_replica(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    here, there = wires
    upstream.script("m", HELD)
    with asking(here) as reader, ExitStack() as open_streams:
        reader.read_to("two ")
        response_id = reader.response_id
        others = {after: open_streams.enter_context(Reader.of(there, response_id, after)) for after in range(9)}
        others[0].read_to("two ")
        assert others[0].events == reader.events[1:]
        assert there.retrieve(response_id)["status"] == here.retrieve(response_id)["status"] == "in_progress"
        assert [each["status"] for each in there.listed() if each["id"] == response_id] == ["in_progress"]
        upstream.release("m")
        events = reader.read_to_end()
        for after, other in others.items():
            assert other.read_to_end() == events[after + 1 :]
    response = check_stream(events)
    assert spoken(response) == [("completed", "one two three")]
    for wire in wires:
        assert wire.retrieve(response_id) == response
        assert wire.replay(response_id) == events
    assert len(upstream.requests("m")) == 1


def test_what_a_replica_learns_of_a_model_server_reaches_the_others(
    wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    here, there = wires
    refusals = [error(400, "Unsupported parameter: 'user'"), error(400, "Unsupported parameter: 'prompt_cache_key'")]
    model = f"local/picky-{uuid4().hex[:8]}"
    name, fields = model.partition("/")[2], {"input": "x", "user": "ada", "prompt_cache_key": "k"}
    answer = reply(text("Yes."))
    upstream.script(name, answer)
    there.create(model=model, input="x")  # It has read what is known before the other one learns.
    upstream.script(name, [*refusals, answer])
    here.create(model=model, **fields)
    upstream.script(name, [refusals[0], answer])
    there.create(model=model, **fields)
    bodies = [each.body for each in upstream.requests(name)]
    assert [sorted({"user", "prompt_cache_key"} & each.keys()) for each in bodies[1:]] == [
        ["prompt_cache_key", "user"],
        ["prompt_cache_key"],
        [],
        ["prompt_cache_key", "user"],
        [],  # One refusal has taught it all.
    ]


def test_running_foreground_response_is_in_progress_on_another_replica(
    wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    here, there = wires
    upstream.script("m", HELD)
    with Reader.create(here, model="local/m", input="Count.", metadata={"a": "b"}) as reader:
        reader.read_to("two ")
        created = reader.events[0]["response"]
        assert here.retrieve(created["id"]) == there.retrieve(created["id"]) == created
        request = {"model": "local/m", "input": "And?", "previous_response_id": created["id"]}
        assert error_of(there.post(request), 400)["code"] == "previous_response_not_ready"
        assert error_of(there.get(f"/{created['id']}", stream=True), 400)["code"] == "response_not_ready"
        error_of(there.http.post(f"/responses/{created['id']}/cancel"), 400)
        upstream.release("m")
        response = check_stream(reader.read_to_end())
    assert (response["status"], there.retrieve(created["id"])) == ("completed", response)


def test_chain_continues_across_replicas(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    last: Json = {}
    for turn, (here, there) in zip(range(HOPS), cycle([wires, wires[::-1]]), strict=False):
        before = {"previous_response_id": last["id"]} if last else {}
        response = queue(here, "echo", input=f"turn {turn}", **before)
        last = ended(there, response)
        assert here.retrieve(response) == last
    contents = [content for _, content in roles_and_texts(upstream.requests("echo")[-1].body["messages"])]
    assert contents == [f"turn {turn}" for turn in range(HOPS) for _ in ("asked", "echoed")][:-1]


def test_many_jobs_on_two_replicas_run_once_each(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    with ThreadPoolExecutor(8) as clients:
        responses = list(
            clients.map(lambda number: queue(wires[number % 2], "echo", input=f"number {number}"), range(40))
        )
    for number, response_id in enumerate(responses):
        assert output_text(ended(wires[(number + 1) % 2], response_id)) == f"number {number}"
    assert len(upstream.requests("echo")) == 40


def test_idempotency_key_gives_one_response_on_all_replicas(
    request: pytest.FixtureRequest, wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    key = request.node.name
    upstream.script("m", HELD)
    here, there = wires
    with keyed(here, key) as reader, keyed(there, key) as other:
        for each in (reader, other):
            each.read_to("two ")
        assert other.events == reader.events
        upstream.release("m")
        assert other.read_to_end() == reader.read_to_end()
    assert spoken(check_stream(reader.events)) == [("completed", "one two three")]
    assert len(upstream.requests("m")) == 1

    def send(number: int) -> Json:
        body = {"model": "local/echo", "input": f"number {number // 8}"}
        key_of = {"idempotency-key": f"{key} {number // 8}"}
        return checked(wires[number % 2].http.post("/responses", json=body, headers=key_of))

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(send, range(64)))
    for number, answer in enumerate(answers):
        assert answer == answers[number // 8 * 8]
        assert output_text(answer) == f"number {number // 8}"
    assert len(upstream.requests("echo")) == 8


def test_cancel_on_another_replica_ends_the_generation(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    upstream.script("m", HELD)
    for turn, (here, there) in enumerate([wires, wires[::-1]], 1):
        with asking(here) as reader:
            reader.read_to("two ")
            response = cancel(there, reader.response_id)
            assert upstream.wait_for("m", turn, ended=True)[-1].ended == "client_gone"
            assert check_stream(reader.read_to_end()) == response
        assert (response["status"], spoken(response)) == ("cancelled", [("incomplete", "one two ")])
        for wire in wires:
            assert cancel(wire, response["id"]) == wire.retrieve(response["id"]) == response
            assert wire.replay(response["id"]) == reader.events


def test_cancels_on_two_replicas_racing_with_completion_give_one_outcome(
    wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    """Whichever comes first, both cancels, the stream and the store agree."""
    upstream.script("m", HELD)
    with ThreadPoolExecutor(2) as clients:
        for _ in range(6):
            with asking(wires[0]) as reader:
                reader.read_to("two ")
                answers = [clients.submit(cancel, wire, reader.response_id) for wire in wires]
                upstream.release("m")
                response = check_stream(reader.read_to_end())
            assert response["status"] in ("cancelled", "completed")
            assert [answer.result() for answer in answers] == [response, response]
            assert [wire.retrieve(response["id"]) for wire in wires] == [response, response]


def test_deletion_on_another_replica_ends_the_generation(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    here, there = wires
    upstream.script("m", HELD)
    with asking(here) as reader:
        reader.read_to("two ")
        assert there.http.delete(f"/responses/{reader.response_id}").status_code == 200
        assert upstream.wait_for("m", ended=True)[0].ended == "client_gone"
    for wire in wires:
        error_of(wire.get(f"/{reader.response_id}"), 404)


class Load:
    """Clients that continuously request every kind of response, and record the acknowledged ones.

    Args:
        wires: clients of the replicas, used in turn.
    """

    def __init__(self, wires: tuple[Wire, Wire]) -> None:
        """Prepare the clients without sending requests."""
        self.response_ids: dict[str, str] = {}  # response id -> input
        self._wires = wires
        self._done = Event()
        self._numbers = count()
        self._clients = ThreadPoolExecutor(LOADERS)
        self._asking: list[Future[None]] = []

    def __enter__(self) -> Self:
        """Start the clients."""
        self._asking = [self._clients.submit(self._ask) for _ in range(LOADERS)]
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the clients, and raise the first unexpected result of one."""
        self._done.set()
        self._clients.shutdown()
        for each in self._asking:
            each.result()

    def wait_for(self, more: int) -> None:
        """Wait until `more` further responses are acknowledged."""
        enough = len(self.response_ids) + more
        wait_until(lambda: len(self.response_ids) >= enough or any(each.done() for each in self._asking))

    def _ask(self) -> None:
        while not self._done.is_set():
            number = next(self._numbers)
            request = {"model": "local/echo", "input": f"number {number}", **FORMS[number % len(FORMS)]}
            answer = self._wires[number % 2].post(request)
            if answer.status_code != 200:
                away(answer)
                continue
            events = read_sse(answer.content).events if request.get("stream") else []
            if events and is_unknown(events[-1]):
                continue
            response = final(events) if events else answer.json()
            if response["error"]:
                assert response["error"]["message"] in AWAY
            else:
                self.response_ids[response["id"]] = request["input"]


def away(answer: httpx.Response) -> None:
    """Check that an answer reports the store's outage with a Retry-After, or an unknown outcome."""
    error = error_of(answer, 503)
    assert error["type"] == "server_error"
    if not is_unknown(error):
        assert error["message"] in AWAY
        assert answer.headers["retry-after"] == "1"


def is_unknown(error: Json) -> bool:
    """Return whether the outage left the outcome of a write unknown."""
    return error.get("code") == "outcome_unknown"


@pytest.mark.extended
def test_store_killed_under_load_keeps_acknowledged_responses(
    database: DatabaseServer, wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    # In a long outage, the worker loses its lease and drops the job, which then runs a second time.
    upstream.script("m", [HELD, WHOLE])
    work = queue(wires[0])
    upstream.wait_for("m", chunks=3)
    longest = 0.0
    with Load(wires) as load:
        for _ in range(2):
            load.wait_for(12)
            killed_at = time.monotonic()
            database.kill()
            database.start()
            load.wait_for(1)
            longest = max(longest, time.monotonic() - killed_at)
        load.wait_for(12)
    upstream.release("m")
    assert spoken(ended(wires[1], work)) == [("completed", "one two three")]
    for here, there in (wires, wires[::-1]):
        for response_id, request in load.response_ids.items():
            response = ended(here, response_id)
            assert (response["status"], output_text(response)) == ("completed", request)
            assert final(there.replay(response_id, taken_over=True)) == response
    assert len(upstream.requests("m")) == 1 or longest > DEFAULT.lease_seconds / 3


def test_store_outage_is_503_and_ends_when_the_store_is_back(
    database: DatabaseServer, wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    # After a long outage, the job may run again; its last reply is not held.
    upstream.script("m", [HELD, HELD, WHOLE])
    kept = [wire.create(model="local/echo", input="kept") for wire in wires]
    work = queue(wires[0])
    body = {"model": "local/echo", "input": "too early"}
    with ExitStack() as open_all:
        clients = open_all.enter_context(ThreadPoolExecutor(8))
        followers = [open_all.enter_context(Reader.of(wire, work)) for wire in wires]
        reader = open_all.enter_context(Reader.create(wires[0], model="local/m", input="Count."))
        for each in (reader, *followers):
            each.read_to("two ")
        upstream.wait_for("m", 2, chunks=3)
        database.kill()
        upstream.release("m")
        answers = [clients.submit(wire.post, body | {"stream": stream}) for wire in wires for stream in (False, True)]
        answers += [clients.submit(wire.get, f"/{each['id']}") for wire, each in zip(wires, kept, strict=True)]
        for answer in answers:
            away(answer.result())
        reader.read_to_cut()
        last = reader.events[-1]
        if not is_unknown(last):
            failed = check_stream(reader.events)
            assert failed["status"] == "failed"
            assert failed["error"]["message"] in AWAY
        database.start()
        streams = [check_stream(each.read_to_end(), taken_over=True) for each in followers]
    for here, there in (wires, wires[::-1]):
        after = here.create(model="local/echo", input="after", previous_response_id=kept[0]["id"])
        assert there.retrieve(after["id"]) == after
        assert [there.retrieve(each["id"]) for each in kept] == kept
    assert spoken(ended(wires[1], work))[-1] == ("completed", "one two three")
    assert streams == [wire.retrieve(work) for wire in wires]
    record = ended(wires[1], reader.response_id)
    assert record["status"] == "failed"
    if not is_unknown(last):
        assert record["error"] == failed["error"]


@pytest.mark.extended
@pytest.mark.day(1)
def test_job_completes_after_repeated_store_outages_in_one_round(
    replicas: Callable[[str], Replicas], upstream: Upstream
) -> None:
    upstream.script("m", [*[HELD] * MAX_TRIES, WHOLE])
    shared = replicas("postgres")
    with Wire(shared.stacks["one"]) as here:
        work = queue(here)
        for outage in range(1, MAX_TRIES + 1):
            upstream.wait_for("m", outage, chunks=3)
            shared.server.kill()
            # By now, all leases have expired, and the worker has dropped the job.
            time.sleep(DEFAULT.lease_seconds + 1)
            shared.server.start()
        response = ended(here, work)
    assert (response["status"], spoken(response)[-1]) == ("completed", ("completed", "one two three"))


@contextmanager
def suspended(stacks: Iterable[LiveStack]) -> Iterator[None]:
    """Suspend the processes of stacks during the block."""
    with ExitStack() as waking:
        for each in stacks:
            waking.callback(os.kill, each.pid, signal.SIGCONT)
            os.kill(each.pid, signal.SIGSTOP)
        yield


class DyingStack:
    """A stack that is killed or frozen while it runs responses, with readers on the stack that survives."""

    def __init__(
        self, victim: LiveStack, others: Iterable[LiveStack], survivor: Wire, upstream: Upstream, open_all: ExitStack
    ) -> None:
        """Start several responses that are held in their middle, one of them without a reader.

        The other stacks of the store are suspended meanwhile: each could run some, and one that is under load all.
        """
        self.victim = victim
        self.survivor = survivor
        self._upstream = upstream
        wire = open_all.enter_context(Wire(victim))
        self.models = [f"{victim.port}-{number}" for number in range(HELD_AT_ONCE)]
        for model in self.models:
            upstream.script(model, [HELD, WHOLE])
        with suspended(others):
            self.response_ids = [queue(wire, model) for model in self.models]
            for model in self.models:
                upstream.wait_for(model, chunks=3)
        self.left = open_all.enter_context(Reader.of(wire, self.response_ids[0]))
        self.left.read_to("two ")
        self.readers = [open_all.enter_context(Reader.of(survivor, each)) for each in self.response_ids[:-1]]
        self.key = f"{victim.port}-keyed"
        upstream.script(self.key, [HELD, WHOLE])
        self.waits = open_all.enter_context(keyed(wire, self.key, self.key))
        self.waits.read_to("two ")
        for reader in self.readers:
            reader.read_to("two ")

    def kill(self) -> None:
        """Kill the stack, as by a loss of power."""
        self.victim.kill()
        self.left.read_to_death()
        self.waits.read_to_death()

    def freeze(self) -> None:
        """Suspend the stack's process."""
        os.kill(self.victim.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Resume the stack's process."""
        os.kill(self.victim.pid, signal.SIGCONT)

    def go_on(self) -> None:
        """Cancel one of the responses before it is taken over, and release the rest of the model's replies."""
        assert cancel(self.survivor, self.response_ids[1])["status"] == "cancelled"
        for model in self.models:
            self._upstream.release(model)
        self._upstream.release(self.key)

    def check(self) -> None:
        """Check that each response was taken over once, continued its stored output, and ended once."""
        for reader in self.readers:
            self._check_reader(reader)
        with Reader.of(self.survivor, self.response_ids[0], self.left.last) as again:
            assert self.left.events + again.read_to_end() == self.readers[0].events
        # What the lost attempt has said is in the events, and not in the output of a response that was taken over. The
        # cancelled one is not continued.
        expected = {self.response_ids[1]: [("incomplete", "one two ")]}
        responses = [ended(self.survivor, response_id) for response_id in self.response_ids]
        begun = [len(self._upstream.requests(model)) for model in self.models]
        for response, model, times in zip(responses, self.models, begun, strict=True):
            response_id = response["id"]
            assert final(self.survivor.replay(response_id, taken_over=True)) == response
            assert spoken(response) == expected.get(response_id, [("completed", "one two three")])
            assert times == (1 if response_id in expected else 2)
            assert [each["id"] for each in self.survivor.listed(model=f"local/{model}")] == [response_id]
        self._check_key()

    def _check_key(self) -> None:
        """Check that a repeated key returns the response that was continued meanwhile."""
        with keyed(self.survivor, self.key, self.key) as again:
            response = check_stream(again.read_to_end(), taken_over=True)
        assert again.events[: len(self.waits.events)] == self.waits.events
        assert spoken(response) == [("completed", "one two three")]
        assert len(self._upstream.requests(self.key)) == 2

    def check_comes_back(self) -> None:
        """Check that the resumed stack does not change the jobs that it lost, and shows their new events."""
        assert self.left.read_to_end() == self.readers[0].events
        assert self.survivor.replay(self.waits.response_id, taken_over=True) == self.waits.read_to_end()
        before = [self.survivor.retrieve(response_id) for response_id in self.response_ids]
        counts = [len(self._upstream.requests(model)) for model in self.models]
        with Wire(self.victim) as wire:
            assert ended(wire, queue(wire, "echo"))["status"] == "completed"
            assert [wire.retrieve(response_id) for response_id in self.response_ids] == before
            for reader in self.readers:
                assert wire.replay(reader.response_id, taken_over=True) == reader.events
        assert [len(self._upstream.requests(model)) for model in self.models] == counts

    def _check_reader(self, reader: Reader) -> None:
        """Check that the events after the takeover follow those before it without a gap."""
        seen = list(reader.events)
        response = check_stream(reader.read_to_end(), taken_over=True)
        assert reader.events[: len(seen)] == seen
        assert response == self.survivor.retrieve(reader.response_id)
        assert self.survivor.replay(reader.response_id, taken_over=True) == reader.events
        with Reader.of(self.survivor, reader.response_id, seen[-1]["sequence_number"]) as again:
            assert seen + again.read_to_end() == reader.events


@pytest.mark.extended
@pytest.mark.day(1)
def test_jobs_of_killed_and_frozen_servers_are_taken_over(
    replicas: Callable[[str], Replicas], upstream: Upstream
) -> None:
    """Two servers are killed and one is frozen, all at the same time, because their leases take a while to expire."""
    with ExitStack() as open_all:
        doomed: dict[str, DyingStack] = {}
        for kind in STACKS:
            stacks = replicas(kind).stacks
            survivor = open_all.enter_context(Wire(stacks["other"]))
            for name in stacks.keys() - {"other"}:
                others = [stack for each, stack in stacks.items() if each != name]
                doomed[f"{kind}-{name}"] = DyingStack(stacks[name], others, survivor, upstream, open_all)
        sleeper = doomed["postgres-sleeper"]
        for each in doomed.values():
            if each is sleeper:
                each.freeze()
            else:
                each.kill()
        # Only after all were killed or frozen, because one of them may run the jobs of another.
        for each in doomed.values():
            each.go_on()
        for each in doomed.values():
            each.check()
        sleeper.wake()
        sleeper.check_comes_back()
