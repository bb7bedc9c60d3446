"""Servers on one Valkey, and servers on one PostgreSQL: whatever one begins, the others show, end and go on with."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.support.postgres import Postgres
from tests.support.reader import Reader
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text
from tests.support.valkey import Valkey
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, checked, error_of, final, output_text, said

pytestmark = pytest.mark.live

type Server = Valkey | Postgres

SERVERS: Final[dict[str, Callable[[Path], AbstractContextManager[Server]]]] = {"redis": Valkey, "postgres": Postgres}
SOON = 2.0  # seconds in which the model server must see that nobody waits any more, wherever that was said
COUNT = [*reasoning("Hm."), *text("one ", "two ", "three")]
HELD = reply(COUNT, hold=3)
WHOLE = reply(COUNT)
HOPS = 6
HELD_AT_ONCE = 6
STACKS: Final[dict[str, list[str]]] = {"redis": ["one", "other"], "postgres": ["one", "other", "sleeper"]}


@pytest.fixture(scope="module")
def replicas(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, LiveStack]]]:
    """Stacks on each server, by its kind and their names, all started at the same time."""
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with ExitStack() as running:
        made: dict[str, dict[str, LiveStack]] = {}
        for kind, names in STACKS.items():
            folder = tmp_path_factory.mktemp(kind)
            store = _store(kind, running.enter_context(SERVERS[kind](folder / "server")).url)
            config = variant(STARTER, folder / "config.yaml", partial(_use, store=store))
            made[kind] = {name: LiveStack(config, env, folder / name, host=host) for name in names}
        stacks = [stack for each in made.values() for stack in each.values()]
        # A child ends with the thread that started it: these last as long as the stacks.
        starters = running.enter_context(ThreadPoolExecutor(len(stacks)))
        for stack in stacks:
            running.callback(stack.stop)
        list(starters.map(LiveStack.start, stacks))
        yield made


@pytest.fixture(params=STACKS)
def wires(
    request: pytest.FixtureRequest, replicas: dict[str, dict[str, LiveStack]], upstream: Upstream
) -> Iterator[tuple[Wire, Wire]]:
    """A client of each of two stacks."""
    stacks = replicas[request.param]
    with Wire(stacks["one"]) as here, Wire(stacks["other"]) as there:
        yield here, there


def _store(kind: str, url: str) -> Json:
    password = urlsplit(url).password
    if password is None:
        return {"type": kind, "url": url}
    return {"type": kind, "url": url.replace(f":{password}@", "@"), "password": password}


def _use(config: Json, store: Json) -> None:
    responses_config(config)["store"] = store


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


def ended(wire: Wire, response_id: str) -> Json:
    """A response once it has ended."""
    wait_until(lambda: wire.retrieve(response_id)["status"] not in ("queued", "in_progress"))
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
            assert upstream.wait_for("m", turn, ended=True, seconds=SOON)[-1].ended == "client_gone"
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
        assert upstream.wait_for("m", ended=True, seconds=SOON)[0].ended == "client_gone"
    for wire in wires:
        error_of(wire.get(f"/{reader.response_id}"), 404)


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
        begun = {
            response_id: len(self._upstream.requests(model))
            for response_id, model in zip(self.made, self.models, strict=True)
        }
        for response_id, model in zip(self.made, self.models, strict=True):
            response = ended(self.survivor, response_id)
            assert final(self.survivor.replay(response_id)) == response
            if begun[response_id] == 2 or response_id == self.made[1]:
                assert spoken(response) == expected.get(response_id, [cut, whole])
            assert [each["id"] for each in self.survivor.listed(model=f"local/{model}")] == [response_id]
        self._check_key()
        # With luck others took one or the other before the victim could.
        assert HELD_AT_ONCE < sum(begun.values()) < 2 * HELD_AT_ONCE
        assert set(begun.values()) == {1, 2}

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
            each.go_on()
        for each in doomed.values():
            each.check()
        sleeper.wake()
        sleeper.check_comes_back()
