"""Two worker processes of one server: they share the store, and the death of one of them costs only what it ran."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from tests.support.leaver import Leaver
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import SseReader, check_stream
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, error_of, final, output_text, said
from tests.support.workers import Workers, WorkersStack, worker_behind, worker_of

pytestmark = pytest.mark.live

CLIENTS = 16
TURNS = 6
HOPS = 12


@pytest.fixture(scope="module")
def server(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    """The template with two workers."""
    folder = tmp_path_factory.mktemp("workers")
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with WorkersStack(STARTER, env, folder, host=host) as live:
        yield live


@pytest.fixture
def workers(server: LiveStack) -> Iterator[Workers]:
    """A client of each worker."""
    with Workers(server) as workers:
        yield workers


def test_a_conversation_hops_between_workers(workers: Workers, upstream: Upstream) -> None:
    """Whoever sees the terminal event can go on at once, with any worker."""
    last: str | None = None
    for turn, (here, there) in zip(range(HOPS), cycle(both_ways(workers)), strict=False):
        question = {"model": "local/echo", "input": f"turn {turn}", "previous_response_id": last}
        response = final(here.stream(**question)) if turn % 4 < 2 else here.create(**question)
        last = response["id"]
        assert there.retrieve(last) == response
        assert final(there.replay(last)) == response
    contents = [content for _, content in said(upstream.requests("echo")[-1].body["messages"])]
    assert contents == [f"turn {turn}" for turn in range(HOPS) for _ in ("asked", "echoed")][:-1]
    workers.check()


def test_a_response_deleted_by_one_worker_is_gone_for_the_other(workers: Workers, upstream: Upstream) -> None:
    for here, there in both_ways(workers):
        response = here.create(model="local/echo", input="soon gone")
        assert there.retrieve(response["id"]) == response
        assert here.http.delete(f"/responses/{response['id']}").status_code == 200
        error_of(there.get(f"/{response['id']}"), 404)
    workers.check()


def test_under_load_nothing_is_lost(server: LiveStack, workers: Workers, upstream: Upstream) -> None:
    def converse(client: int) -> tuple[int, list[Json]]:
        made: list[Json] = []
        with Wire(server) as wire:
            for turn in range(TURNS):
                before = made[-1]["id"] if made else None
                question = {"model": "local/echo", "input": f"{client}/{turn}", "previous_response_id": before}
                made.append(final(wire.stream(**question)) if (client + turn) % 2 else wire.create(**question))
            return worker_of(wire, server), made

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(converse, range(CLIENTS)))
    assert {pid for pid, _ in answers} == set(workers.wires)
    made = [response for _, responses in answers for response in responses]
    assert [output_text(each) for each in made] == [
        f"{each}/{turn}" for each in range(CLIENTS) for turn in range(TURNS)
    ]
    for wire in workers.wires.values():
        for response in made:
            assert wire.retrieve(response["id"]) == response
    assert max(len(request.body["messages"]) for request in upstream.requests("echo")) == 2 * TURNS - 1


def test_a_worker_that_is_killed_takes_only_its_own_streams_along(
    server: LiveStack, workers: Workers, upstream: Upstream
) -> None:
    upstream.script("held", reply(text("one ", "two ", "three"), hold=2))
    (dead, doomed), (alive, other) = workers.wires.items()
    kept = [wire.create(model="local/echo", input="kept") for wire in (doomed, other)]
    with Stream(doomed) as cut, Stream(other) as whole:
        cut.read_to("two ")
        whole.read_to("two ")
        assert (worker_behind(cut.answer, server), worker_behind(whole.answer, server)) == (dead, alive)
        os.kill(dead, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            cut.read_to_end()
        upstream.release("held")
        kept.append(whole.read_to_end())
        kept.append(other.create(model="local/echo", input="go on", previous_response_id=kept[0]["id"]))
    with Workers(server) as healed:  # the server starts another in its place
        assert dead not in healed.wires
        for wire in healed.wires.values():
            for response in kept:
                assert wire.retrieve(response["id"]) == response
            # The dead worker is missed after its lease; then its response is ended by another.
            wait_until(partial(is_there, wire, cut.response_id), seconds=20)
            failed = wire.retrieve(cut.response_id)
            assert (failed["status"], failed["output"]) == ("failed", [])
            assert failed["error"]["message"] == "The server ended while it made this response."
            assert {each["status"] for each in wire.listed(limit=100)} == {"completed", "failed"}
        check_hop(healed, kept[-1])


def is_there(wire: Wire, response_id: str) -> bool:
    return wire.get(f"/{response_id}").is_success


def check_hop(workers: Workers, last: Json) -> None:
    """The new worker goes on with what the old ones stored, and the other way round."""
    for here, there in both_ways(workers):
        last = here.create(model="local/echo", input="still here", previous_response_id=last["id"])
        assert there.retrieve(last["id"]) == last


def both_ways(workers: Workers) -> list[tuple[Wire, Wire]]:
    """One worker and the other, and the other way round."""
    one, other = workers.wires.values()
    return [(one, other), (other, one)]


class Stream:
    """A stream that is read a bit at a time."""

    def __init__(self, wire: Wire) -> None:
        """It asks the model whose answers are held."""
        body = {"model": "local/held", "input": "count", "stream": True}
        self._asking = wire.http.stream("POST", "/responses", json=body)
        self._reader = SseReader()
        self._events: list[Json] = []

    def __enter__(self) -> "Stream":
        """Ask."""
        self.answer = self._asking.__enter__()
        self._bytes = self.answer.iter_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave."""
        self._asking.__exit__(None, None, None)

    @property
    def response_id(self) -> str:
        """The id of the response, which the first event names."""
        found: str = self._events[0]["response"]["id"]
        return found

    def read_to(self, delta: str) -> None:
        """Read until this much has come."""
        while not any(event.get("delta") == delta for event in self._events):
            self._take(next(self._bytes))

    def read_to_end(self) -> Json:
        """The final response."""
        for data in self._bytes:
            self._take(data)
        self._reader.close()
        return check_stream(self._events)

    def _take(self, data: bytes) -> None:
        self._events += [event for _, event in self._reader.feed(data)]


def test_clients_that_do_not_read_keep_no_worker_from_ending(server: LiveStack, upstream: Upstream) -> None:
    """Last, since no other test finds a server after it."""
    upstream.script("flood", reply(text(*["word " * 1000] * 8000)))
    flood: dict[str, object] = {"model": "local/flood", "input": "x", "stream": True}
    with ExitStack() as open_all:
        with Workers(server) as workers:
            pids = list(workers.wires)
        for _ in range(8):  # that all of them are one worker's is as good as impossible
            client = open_all.enter_context(Leaver(server, flood, buffer=32_768))
            client.read_until(b"event: response.output_text.delta")
        assert server.stop(grace=60) != -signal.SIGKILL
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
