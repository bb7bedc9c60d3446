"""The responses of a stack on SQLite move to one in a cluster, while clients use both."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from llama_stack_responses.cli import main
from tests.support.cluster import OneNode
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, output_text

# The stores do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(0), pytest.mark.one_host]

CLUSTER: Final = REPOSITORY / "templates" / "cluster" / "config.yaml"
WAITING: Final = 3


@dataclass(frozen=True)
class Side:
    """A stack, and the commands on its store."""

    stack: LiveStack
    config: Path
    env: dict[str, str]

    def run(self, *words: str) -> Json:
        """Run a command, and return what it prints."""
        printed = StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
            for name, value in {**self.env, "STATE_DIR": str(self.stack.state_dir)}.items():
                patch.setenv(name, value)
            assert main([*words, "--config", str(self.config), "--json"]) == 0
        found: Json = json.loads(printed.getvalue())
        return found


@pytest.fixture
def sides(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> Iterator[tuple[Side, Side]]:
    """A stack on SQLite, which runs one background response at a time, and one in a cluster."""

    def change(config: Json) -> None:
        responses_config(config)["background"] = {"concurrency": 1}

    with ExitStack() as running:
        node = running.enter_context(OneNode(tmp_path / "node"))
        env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "REDIS_URL": node.url}
        configs = [variant(STARTER, tmp_path / "config.yaml", change), CLUSTER]
        names = ("there", "here")
        stacks = [LiveStack(each, env, tmp_path / name, host=host) for each, name in zip(configs, names, strict=True)]
        starters = running.enter_context(ThreadPoolExecutor(2))
        for each in stacks:
            running.callback(each.stop)
        list(starters.map(LiveStack.start, stacks))
        there, here = (Side(stack, config, env) for stack, config in zip(stacks, configs, strict=True))
        yield there, here


@dataclass
class Clients:
    """What clients of a stack have been told."""

    stored: dict[str, Json] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)


@contextmanager
def used(side: Side, clients: Clients) -> Iterator[None]:
    """Let clients of a stack create, continue and delete responses meanwhile."""
    ended = Event()

    def work(number: int) -> None:
        last = None
        with Wire(side.stack) as wire:
            while not ended.is_set():
                # The first words are the same in all chains, so these share content.
                created = wire.create(model="local/echo", input="Hello", previous_response_id=last)
                clients.stored[created["id"]] = created
                last = created["id"]
                old = wire.create(model="local/echo", input="Hello", store=True, metadata={"n": str(number)})["id"]
                assert wire.http.delete(f"/responses/{old}").status_code == 200
                clients.deleted.add(old)

    with ThreadPoolExecutor(2) as workers:
        tasks = [workers.submit(work, number) for number in range(2)]
        try:
            yield
        finally:
            ended.set()
        for task in tasks:
            task.result()


def test_nothing_acknowledged_is_lost_and_nothing_deleted_comes_back(
    sides: tuple[Side, Side], upstream: Upstream, tmp_path: Path
) -> None:
    there, here = sides
    before, of_there, of_here = Clients(), Clients(), Clients()
    one, two, three = (str(tmp_path / f"{name}.backup") for name in ("one", "two", "three"))
    with used(there, before):
        wait_until(lambda: len(before.stored) > 8)
    with used(there, of_there), used(here, of_here):
        there.run("backup", one)
        here.run("restore", one, "--live")
        gone_there, gone_here = list(before.stored)[:2], list(before.stored)[2:4]
        for side, gone in ((there, gone_there), (here, gone_here)):
            with Wire(side.stack) as wire:
                for each in gone:
                    assert wire.http.delete(f"/responses/{each}").status_code == 200
        there.run("backup", two)
        here.run("restore", two, "--since", one, "--live")
    upstream.script("work", reply(text("one ", "two"), hold=1))
    with Wire(there.stack) as wire:
        jobs = [wire.create(model="local/work", input="Count.", background=True)["id"] for _ in range(WAITING)]
    upstream.wait_for("work", chunks=1)
    there.stack.kill()
    upstream.script("work", reply(text("one ", "two")))
    there.run("backup", three)
    here.run("restore", three, "--since", two)
    deleted_since = {*gone_there, *gone_here}
    with Wire(here.stack) as wire:
        for each in jobs:
            wait_until(lambda each=each: wire.retrieve(each)["status"] == "completed")  # type: ignore[misc]
            assert output_text(wire.retrieve(each)) == "one two"
        stored = before.stored | of_there.stored | of_here.stored
        assert {each for each in stored if wire.get(f"/{each}").status_code != 200} == deleted_since
        assert all(wire.retrieve(each) == told for each, told in stored.items() if each not in deleted_since)
        deleted = before.deleted | of_there.deleted | of_here.deleted
        assert {wire.get(f"/{each}").status_code for each in deleted} == {404}
        for last in (list(of_there.stored)[-1], list(of_here.stored)[-1]):
            following = wire.create(model="local/echo", input="And now?", previous_response_id=last)
            assert output_text(following) == "And now?"
