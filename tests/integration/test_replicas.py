"""Servers on one Valkey, and servers on one PostgreSQL: whatever one begins, the others show, end and go on with."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count, cycle
from pathlib import Path
from threading import Event
from typing import Any, Final, Self

import httpx
import pytest

from llama_stack_responses.jobs.queue import LEASE, TRIES
from tests.support.postgres import Postgres
from tests.support.reader import Reader
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.strict import check_stream, read_sse
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, final, output_text, said

pytestmark = pytest.mark.live

type Server = Valkey | Postgres

SERVERS: Final[dict[str, Callable[[Path], Server]]] = {"redis": Valkey, "postgres": Postgres}
COUNT = [*reasoning("Hm."), *text("one ", "two ", "three")]
HELD = reply(COUNT, hold=3)
WHOLE = reply(COUNT)
HOPS = 6
HELD_AT_ONCE = 6
LOADERS = 4
FORMS: Final[list[Json]] = [{}, {"stream": True}, {"background": True}]
AWAY = "The response store's server cannot be reached."
STACKS: Final[dict[str, list[str]]] = {"postgres": ["one", "other", "sleeper"]} | (
    {} if find_spec("ogx") else {"redis": ["one", "other"]}
)
"""Each on one host, one on both: stores know nothing of the host."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """One server of each kind."""
    with ExitStack() as running:
        made = {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in SERVERS.items() if kind in STACKS}
        for server in made.values():
            running.enter_context(server)
        yield made


@pytest.fixture(scope="module")
def replicas(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    servers: dict[str, Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, dict[str, LiveStack]]]:
    """Stacks of each template, by the kind of their server and their names, all started at the same time."""
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with ExitStack() as running:
        made: dict[str, dict[str, LiveStack]] = {}
        for kind, names in STACKS.items():
            folder = tmp_path_factory.mktemp(f"stacks-{kind}")
            config = REPOSITORY / "templates" / kind / "config.yaml"
            where = env | servers[kind].environment
            made[kind] = {name: LiveStack(config, where, folder / name, host=host) for name in names}
        stacks = [stack for each in made.values() for stack in each.values()]
        # A child ends with the thread that started it: these last as long as the stacks.
        starters = running.enter_context(ThreadPoolExecutor(len(stacks)))
        for stack in stacks:
            running.callback(stack.stop)
        list(starters.map(LiveStack.start, stacks))
        yield made


@pytest.fixture(params=STACKS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of server that the stacks share."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def wires(kind: str, replicas: dict[str, dict[str, LiveStack]], upstream: Upstream) -> Iterator[tuple[Wire, Wire]]:
    """A client of each of two stacks."""
    stacks = replicas[kind]
    with Wire(stacks["one"]) as here, Wire(stacks["other"]) as there:
        yield here, there


def asking(wire: Wire, model: str = "m") -> Reader:
    """A reader of a new background response."""
    return Reader.asking(wire, model=f"local/{model}", input="Count.", background=True)


def keyed(wire: Wire, key: str, model: str = "m") -> Reader:
    """A reader of the response that is made, or was, under a key."""
    asked = {"model": f"local/{model}", "input": "Count.", "stream": True}
    return Reader(wire.http.stream("POST", "/responses", json=asked, headers={"idempotency-key": key}))


def queue(wire: Wire, model: str = "m", **body: Any) -> str:
    """The id of a new background response."""
    answer = wire.post({"model": f"local/{model}", "input": "Count.", "background": True, **body})
    assert answer.status_code == 200, answer.text
    return str(checked(answer)["id"])


def ended(wire: Wire, response_id: str, seconds: float = 90.0) -> Json:
    """A response once it has ended."""
    wait_until(lambda: wire.retrieve(response_id)["status"] not in ("queued", "in_progress"), seconds)
    return wire.retrieve(response_id)


def cancel(wire: Wire, response_id: str) -> Json:
    """The answer to a cancel."""
    answer = wire.http.post(f"/responses/{response_id}/cancel")
    assert answer.status_code == 200, answer.text
    return checked(answer)


def spoken(response: Json) -> list[tuple[str, str]]:
    """The messages of a response: status, and what they say."""
    return [
        (item["status"], output_text({"output": [item]})) for item in response["output"] if item["type"] == "message"
    ]


def test_what_is_begun_on_one_is_followed_on_the_other(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
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


def test_streamed_response_under_way_is_in_progress_on_the_other(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    here, there = wires
    upstream.script("m", HELD)
    with Reader.asking(here, model="local/m", input="Count.", metadata={"a": "b"}) as reader:
        reader.read_to("two ")
        created = reader.events[0]["response"]
        assert here.retrieve(created["id"]) == there.retrieve(created["id"]) == created
        asked = {"model": "local/m", "input": "And?", "previous_response_id": created["id"]}
        assert error_of(there.post(asked), 400)["code"] == "previous_response_not_ready"
        assert error_of(there.get(f"/{created['id']}", stream=True), 400)["code"] == "response_not_ready"
        error_of(there.http.post(f"/responses/{created['id']}/cancel"), 400)
        upstream.release("m")
        response = check_stream(reader.read_to_end())
    assert (response["status"], there.retrieve(created["id"])) == ("completed", response)


def test_a_chain_hops_between_them(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    last: Json = {}
    for turn, (here, there) in zip(range(HOPS), cycle([wires, wires[::-1]]), strict=False):
        before = {"previous_response_id": last["id"]} if last else {}
        made = queue(here, "echo", input=f"turn {turn}", **before)
        last = ended(there, made)
        assert here.retrieve(made) == last
    contents = [content for _, content in said(upstream.requests("echo")[-1].body["messages"])]
    assert contents == [f"turn {turn}" for turn in range(HOPS) for _ in ("asked", "echoed")][:-1]


def test_many_at_once_are_each_made_once(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    with ThreadPoolExecutor(8) as clients:
        made = list(clients.map(lambda number: queue(wires[number % 2], "echo", input=f"number {number}"), range(40)))
    for number, response_id in enumerate(made):
        assert output_text(ended(wires[(number + 1) % 2], response_id)) == f"number {number}"
    assert len(upstream.requests("echo")) == 40


def test_a_key_is_one_response_wherever_it_is_sent(
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
        asked = {"model": "local/echo", "input": f"number {number // 8}"}
        key_of = {"idempotency-key": f"{key} {number // 8}"}
        return checked(wires[number % 2].http.post("/responses", json=asked, headers=key_of))

    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(send, range(64)))
    for number, answer in enumerate(answers):
        assert answer == answers[number // 8 * 8]
        assert output_text(answer) == f"number {number // 8}"
    assert len(upstream.requests("echo")) == 8


def test_a_cancel_on_one_ends_what_the_other_makes(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
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


def test_a_cancel_wins_or_loses_cleanly(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    """Against another on the other server and against the end: whoever wins, all are told the same."""
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


def test_what_one_deletes_the_other_makes_no_further(wires: tuple[Wire, Wire], upstream: Upstream) -> None:
    here, there = wires
    upstream.script("m", HELD)
    with asking(here) as reader:
        reader.read_to("two ")
        assert there.http.delete(f"/responses/{reader.response_id}").status_code == 200
        assert upstream.wait_for("m", ended=True)[0].ended == "client_gone"
    for wire in wires:
        error_of(wire.get(f"/{reader.response_id}"), 404)


class Load:
    """Clients that ask without pause, of every kind of response, and keep what they were told.

    Args:
        wires: of whom they ask in turn.
    """

    def __init__(self, wires: tuple[Wire, Wire]) -> None:
        """Nothing is asked yet."""
        self.made: dict[str, str] = {}  # response id -> what was asked
        self._wires = wires
        self._done = Event()
        self._numbers = count()
        self._clients = ThreadPoolExecutor(LOADERS)
        self._asking: list[Future[None]] = []

    def __enter__(self) -> Self:
        """Begin."""
        self._asking = [self._clients.submit(self._ask) for _ in range(LOADERS)]
        return self

    def __exit__(self, *_: object) -> None:
        """End; whatever a client did not expect is raised here."""
        self._done.set()
        self._clients.shutdown()
        for each in self._asking:
            each.result()

    def wait_for(self, more: int) -> None:
        """Wait until so many more were acknowledged."""
        enough = len(self.made) + more
        wait_until(lambda: len(self.made) >= enough or any(each.done() for each in self._asking), seconds=90)

    def _ask(self) -> None:
        while not self._done.is_set():
            number = next(self._numbers)
            asked = {"model": "local/echo", "input": f"number {number}", **FORMS[number % len(FORMS)]}
            answer = self._wires[number % 2].post(asked)
            if answer.status_code != 200:
                away(answer)
                continue
            events = read_sse(answer.content).events if asked.get("stream") else []
            if events and is_unknown(events[-1]):
                continue
            response = final(events) if events else answer.json()
            if response["error"]:
                assert response["error"]["message"] == AWAY
            else:
                self.made[response["id"]] = asked["input"]


def away(answer: httpx.Response) -> None:
    """The store's server is away, and the client hears when to ask again."""
    error = error_of(answer, 503)
    assert error["type"] == "server_error"
    if not is_unknown(error):
        assert (error["message"], answer.headers["retry-after"]) == (AWAY, "1")


def is_unknown(error: Json) -> bool:
    """Whether the store was away for so long that nobody knows whether it took the response."""
    return error.get("code") == "outcome_unknown"


def test_a_store_that_dies_under_load_has_what_was_acknowledged(
    kind: str, servers: dict[str, Server], wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    # Without its store for long, whoever makes the work takes itself for dead, and it is begun again.
    upstream.script("m", [HELD, WHOLE])
    work = queue(wires[0])
    upstream.wait_for("m", chunks=3)
    longest = 0.0
    with Load(wires) as load:
        for _ in range(2):
            load.wait_for(12)
            killed_at = time.monotonic()
            servers[kind].kill()
            servers[kind].start()
            load.wait_for(1)
            longest = max(longest, time.monotonic() - killed_at)
        load.wait_for(12)
    upstream.release("m")
    assert spoken(ended(wires[1], work)) == [("completed", "one two three")]
    for here, there in (wires, wires[::-1]):
        for response_id, asked in load.made.items():
            response = ended(here, response_id)
            assert (response["status"], output_text(response)) == ("completed", asked)
            assert final(there.replay(response_id)) == response
    assert len(upstream.requests("m")) == 1 or longest > LEASE / 3


def test_a_store_that_is_away_is_said_so_and_missed_no_longer_than_that(
    kind: str, servers: dict[str, Server], wires: tuple[Wire, Wire], upstream: Upstream
) -> None:
    # Should the work have to be begun again, because the store was away for long, it is not held another time.
    upstream.script("m", [HELD, HELD, WHOLE])
    kept = [wire.create(model="local/echo", input="kept") for wire in wires]
    work = queue(wires[0])
    body = {"model": "local/echo", "input": "too early"}
    with ExitStack() as open_all:
        clients = open_all.enter_context(ThreadPoolExecutor(8))
        followers = [open_all.enter_context(Reader.of(wire, work)) for wire in wires]
        reader = open_all.enter_context(Reader.asking(wires[0], model="local/m", input="Count."))
        for each in (reader, *followers):
            each.read_to("two ")
        upstream.wait_for("m", 2, chunks=3)
        servers[kind].kill()
        upstream.release("m")
        answers = [clients.submit(wire.post, body | {"stream": stream}) for wire in wires for stream in (False, True)]
        answers += [clients.submit(wire.get, f"/{each['id']}") for wire, each in zip(wires, kept, strict=True)]
        for answer in answers:
            away(answer.result())
        reader.read_to_cut()
        last = reader.events[-1]
        if not is_unknown(last):
            failed = check_stream(reader.events)
            assert (failed["status"], failed["error"]["message"]) == ("failed", AWAY)
        servers[kind].start()
        made = [check_stream(each.read_to_end()) for each in followers]
    for here, there in (wires, wires[::-1]):
        after = here.create(model="local/echo", input="after", previous_response_id=kept[0]["id"])
        assert there.retrieve(after["id"]) == after
        assert [there.retrieve(each["id"]) for each in kept] == kept
    assert spoken(ended(wires[1], work))[-1] == ("completed", "one two three")
    assert made == [wire.retrieve(work) for wire in wires]
    record = ended(wires[1], reader.response_id)
    assert record["status"] == "failed"
    if not is_unknown(last):
        assert record["error"] == failed["error"]


def test_work_that_loses_its_store_again_and_again_in_one_round_completes(
    servers: dict[str, Server], replicas: dict[str, dict[str, LiveStack]], upstream: Upstream
) -> None:
    upstream.script("m", [*[HELD] * TRIES, WHOLE])
    stacks = replicas["postgres"]
    with Wire(stacks["one"]) as here:
        work = queue(here)
        for outage in range(1, TRIES + 1):
            upstream.wait_for("m", outage, chunks=3)
            servers["postgres"].kill()
            # No lease is left, and whoever makes the work has given it up.
            time.sleep(LEASE + 1)
            servers["postgres"].start()
        response = ended(here, work)
    assert (response["status"], spoken(response)[-1]) == ("completed", ("completed", "one two three"))


class Doomed:
    """A stack that makes responses when it dies or stops, and what readers of another see."""

    def __init__(self, victim: LiveStack, survivor: Wire, upstream: Upstream, open_all: ExitStack) -> None:
        """Several responses are held in their middle; one of them nobody reads."""
        self.victim = victim
        self.survivor = survivor
        self._upstream = upstream
        wire = open_all.enter_context(Wire(victim))
        self.models = [f"{victim.port}-{number}" for number in range(HELD_AT_ONCE)]
        for model in self.models:
            upstream.script(model, [HELD, WHOLE])
        self.made = [queue(wire, model) for model in self.models]
        for model in self.models:
            upstream.wait_for(model, chunks=3)
        self.left = open_all.enter_context(Reader.of(wire, self.made[0]))
        self.left.read_to("two ")
        self.readers = [open_all.enter_context(Reader.of(survivor, each)) for each in self.made[:-1]]
        self.key = f"{victim.port}-keyed"
        upstream.script(self.key, [HELD, WHOLE])
        self.waits = open_all.enter_context(keyed(wire, self.key, self.key))
        self.waits.read_to("two ")
        for reader in self.readers:
            reader.read_to("two ")

    def kill(self) -> None:
        """End the stack as a machine that loses power."""
        self.victim.kill()
        self.left.read_to_death()
        self.waits.read_to_death()

    def freeze(self) -> None:
        """Stop the stack in the middle of whatever it does."""
        os.kill(self.victim.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on where it was."""
        os.kill(self.victim.pid, signal.SIGCONT)

    def go_on(self) -> None:
        """End one of the responses before anybody has taken it over; the model says the rest to whoever listens."""
        assert cancel(self.survivor, self.made[1])["status"] == "cancelled"
        for model in self.models:
            self._upstream.release(model)
        self._upstream.release(self.key)

    def check(self) -> None:
        """Each was begun again once, on what was kept of it, and ended once."""
        for reader in self.readers:
            self._check_reader(reader)
        with Reader.of(self.survivor, self.made[0], self.left.last) as again:
            assert self.left.events + again.read_to_end() == self.readers[0].events
        cut, whole = ("incomplete", "one two "), ("completed", "one two three")
        expected = {self.made[1]: [cut], self.made[-1]: [whole]}
        responses = [ended(self.survivor, response_id) for response_id in self.made]
        begun = [len(self._upstream.requests(model)) for model in self.models]
        for response, model, times in zip(responses, self.models, begun, strict=True):
            response_id = response["id"]
            assert final(self.survivor.replay(response_id)) == response
            if times == 2 or response_id == self.made[1]:
                assert spoken(response) == expected.get(response_id, [cut, whole])
            assert [each["id"] for each in self.survivor.listed(model=f"local/{model}")] == [response_id]
        self._check_key()
        # With luck others took one or the other before the victim could; nobody goes on with the one that was cancelled.
        assert (set(begun), begun[1]) == ({1, 2}, 1)

    def _check_key(self) -> None:
        """Who comes back with the key finds what went on without them."""
        with keyed(self.survivor, self.key, self.key) as again:
            response = check_stream(again.read_to_end())
        assert again.events[: len(self.waits.events)] == self.waits.events
        assert spoken(response) == [("incomplete", "one two "), ("completed", "one two three")]
        assert len(self._upstream.requests(self.key)) == 2

    def check_comes_back(self) -> None:
        """What the sleeper had in hand is not its own any more: it changes nothing, and shows what there is."""
        assert self.left.read_to_end() == self.readers[0].events
        assert self.survivor.replay(self.waits.response_id) == self.waits.read_to_end()
        before = [self.survivor.retrieve(response_id) for response_id in self.made]
        asked = [len(self._upstream.requests(model)) for model in self.models]
        with Wire(self.victim) as wire:
            assert ended(wire, queue(wire, "echo"))["status"] == "completed"
            assert [wire.retrieve(response_id) for response_id in self.made] == before
            for reader in self.readers:
                assert wire.replay(reader.response_id) == reader.events
        assert [len(self._upstream.requests(model)) for model in self.models] == asked

    def _check_reader(self, reader: Reader) -> None:
        """What it saw stays as it was, and goes on without a gap."""
        seen = list(reader.events)
        response = check_stream(reader.read_to_end())
        assert reader.events[: len(seen)] == seen
        assert response == self.survivor.retrieve(reader.response_id)
        assert self.survivor.replay(reader.response_id) == reader.events
        with Reader.of(self.survivor, reader.response_id, seen[-1]["sequence_number"]) as again:
            assert seen + again.read_to_end() == reader.events


def test_what_a_lost_server_made_another_ends(replicas: dict[str, dict[str, LiveStack]], upstream: Upstream) -> None:
    """Two are killed and one is stopped, all at the same time, since it takes a while until a server counts as dead."""
    with ExitStack() as open_all:
        doomed: dict[str, Doomed] = {}
        for kind, stacks in replicas.items():
            survivor = open_all.enter_context(Wire(stacks["other"]))
            for name in stacks.keys() - {"other"}:
                doomed[f"{kind}-{name}"] = Doomed(stacks[name], survivor, upstream, open_all)
        sleeper = doomed["postgres-sleeper"]
        for each in doomed.values():
            if each is sleeper:
                each.freeze()
            else:
                each.kill()
        # Only now: one of them may make what another queued.
        for each in doomed.values():
            each.go_on()
        for each in doomed.values():
            each.check()
        sleeper.wake()
        sleeper.check_comes_back()
