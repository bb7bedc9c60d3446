"""Servers whose clock is wrong, on real stores: nobody loses a response."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import openai
import pytest

from llama_stack_responses.store.sweep_guard import REACHED
from tests.integration.test_readiness import READY, ready
from tests.support.seed import DAY, seed
from tests.support.shifted_stack import ShiftedStack
from tests.support.stack import REPOSITORY, STARTER, Host
from tests.support.stores import SERVERS
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import keeps, responses_config, variant
from tests.support.waiting import wait_until

# What is stored does not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host, pytest.mark.extended]

MANY: Final = 25
"""Responses of a store."""


@pytest.fixture
def new_stack(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, upstream: Upstream, tmp_path: Path
) -> Callable[..., ShiftedStack]:
    """Return a function that prepares a stack by the path of its template, its name and its environment."""
    upstream.script("m", reply(text("Hello.")))
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}

    def prepare(template: Path, name: str, **own: str) -> ShiftedStack:
        return ShiftedStack(template, env | own, tmp_path / name, host)

    return prepare


def create(client: openai.OpenAI, count: int) -> list[str]:
    return [client.responses.create(model="local/m", input="Hi").id for _ in range(count)]


def all_found(client: openai.OpenAI, ids: list[str]) -> bool:
    try:
        return [client.responses.retrieve(each).id for each in ids] == ids
    except openai.NotFoundError:
        return False


@pytest.mark.parametrize("kind", SERVERS)
def test_server_with_a_wrong_clock_is_not_ready_and_deletes_nothing(
    kind: str, new_stack: Callable[..., ShiftedStack], tmp_path: Path
) -> None:
    (tmp_path / kind).mkdir()
    template = REPOSITORY / "templates" / kind / "config.yaml"
    with SERVERS[kind](tmp_path / kind) as database:
        right = new_stack(template, "right", **database.environment)
        wrong = new_stack(template, "wrong", **database.environment)
        with right, right.client() as client:
            ids = create(client, MANY)
            wrong.shift(31 * DAY)
            with wrong, wrong.client() as of_wrong:
                wait_until(lambda: ready(wrong) == (503, READY | {"status": "not_ready", "clock": "wrong"}))
                wait_until(lambda: "seconds ahead of the clock of the store" in wrong.logged())
                # It shows what the others show, and what it creates has the time of the store.
                assert all_found(of_wrong, ids)
                [own] = create(of_wrong, 1)
                ages = [client.responses.retrieve(each).created_at for each in (ids[-1], own)]
                assert abs(ages[0] - ages[1]) < DAY
                wait_until(lambda: ready(right) == (200, READY))
                wrong.shift(0)
                wait_until(lambda: ready(wrong) == (200, READY))
            assert all_found(client, [*ids, own])


def test_clock_that_jumps_deletes_nothing_of_an_sqlite_file(new_stack: Callable[..., ShiftedStack]) -> None:
    with new_stack(STARTER, "state") as stack, stack.client() as client:
        wait_until(lambda: ready(stack) == (200, READY))
        ids = create(client, 3)
        stack.shift(31 * DAY)
        wait_until(lambda: ready(stack)[1].get("clock") == "wrong")
        assert all_found(client, ids)
        stack.shift(0)
        wait_until(lambda: ready(stack) == (200, READY))
        assert all_found(client, ids)


def heartbeats(database: Path) -> int:
    """Return how often the one of all workers with a lease that has renewed it least has done so."""
    with closing(sqlite3.connect(database)) as connection:
        [(least,)] = connection.execute("SELECT min(version) FROM records WHERE key LIKE 'p/%'")
    return int(least)


def test_server_whose_clock_jumps_ends_no_response_of_another_one_on_an_sqlite_file(
    new_stack: Callable[..., ShiftedStack], upstream: Upstream, tmp_path: Path
) -> None:
    database = tmp_path / "shared" / "responses.db"

    def share(config: dict[str, object]) -> None:
        responses_config(config)["store"]["path"] = str(database)

    upstream.script("held", reply(text("one ", "two"), hold=1))
    template = variant(STARTER, tmp_path / "shared.yaml", share)
    with new_stack(template, "right") as right, new_stack(template, "wrong") as wrong, right.client() as client:
        stream = client.responses.create(model="local/held", input="Hi", stream=True)
        begun = next(stream)
        assert begun.type == "response.created"
        wrong.shift(31 * DAY)
        wait_until(lambda: ready(wrong)[1].get("clock") == "wrong")
        # Longer than a server that noticed a jump leaves the others alone.
        done = heartbeats(database) + 7
        wait_until(lambda: heartbeats(database) >= done)
        upstream.release("held")
        assert [event.type for event in stream][-1] == "response.completed"
        assert client.responses.retrieve(begun.response.id).output_text == "one two"


def test_restart_with_a_wrong_clock_waits_for_a_person(
    new_stack: Callable[..., ShiftedStack], capsys: pytest.CaptureFixture[str]
) -> None:
    stack = new_stack(STARTER, "state")
    with stack, stack.client() as client:
        ids = create(client, MANY)
    stack.shift(31 * DAY)
    with stack:
        wait_until(lambda: ready(stack) == (200, READY | {"sweep": "held"}))
        wait_until(lambda: f"would delete {MANY} of {MANY}" in stack.logged())
    stack.shift(0)
    with stack, stack.client() as client:
        wait_until(lambda: ready(stack) == (200, READY))
        assert all_found(client, ids)


def test_deletion_is_logged_with_its_count(new_stack: Callable[..., ShiftedStack]) -> None:
    stack = new_stack(STARTER, "state")
    with stack:
        wait_until(lambda: ready(stack)[0] == 200)
        [database] = stack.state_dir.rglob("responses.db")
        # A first deletion of the two would be held back.
        wait_until(lambda: keeps(database, REACHED))
        seed(database, [("Hi", "Hello"), ("And?", "Well.")], age=31 * DAY)
        wait_until(lambda: "deleted expired responses:" in stack.logged())
