"""Responses in the stack's own key-value backends: SQLite, Redis and PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Final

import pytest

from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.tracebacks import assert_no_traceback
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.valkey import Valkey
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, error_of, final, output_text, roles_and_texts

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended]

BACKENDS: Final = {"redis": "kv_redis"} | (
    {} if find_spec("ogx") else {"sqlite": "kv_default", "postgres": "kv_postgres"}
)
"""The hosts have the same backends, so one is tested on both hosts, and the rest on one."""


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DatabaseServer]]:
    """The servers of the Redis and the PostgreSQL backend."""
    with Valkey(tmp_path_factory.mktemp("valkey")) as valkey, Postgres(tmp_path_factory.mktemp("postgres")) as postgres:
        yield {"redis": valkey, "postgres": postgres}


@pytest.fixture(scope="module")
def stacks(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    databases: dict[str, DatabaseServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, LiveStack]]:
    """A stack on each backend, by the backend's name."""

    def use(config: Json) -> None:
        redis, postgres = databases["redis"], databases["postgres"]
        config["storage"]["backends"] |= {
            "kv_redis": {"type": "kv_redis", "host": "127.0.0.1", "port": redis.port},
            "kv_postgres": {
                "type": "kv_postgres",
                "host": "127.0.0.1",
                "port": postgres.port,
                "db": "postgres",
                "user": "postgres",
                "password": postgres.password,
            },
        }
        responses_config(config)["store"] = {"type": "host", "backend": "${env.BACKEND}"}

    config = variant(STARTER, tmp_path_factory.mktemp("config") / "config.yaml", use)
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    servers = {
        backend: LiveStack(config, {**env, "BACKEND": name}, tmp_path_factory.mktemp(backend), host=host)
        for backend, name in BACKENDS.items()
    }
    # A child process ends with the thread that started it, so these threads must live as long as the stacks.
    with ThreadPoolExecutor(len(servers)) as starters:
        try:
            list(starters.map(LiveStack.start, servers.values()))
            yield servers
        finally:
            for each in servers.values():
                each.stop()


@pytest.fixture(params=BACKENDS)
def stack(request: pytest.FixtureRequest, stacks: dict[str, LiveStack]) -> LiveStack:
    """The stack on the parametrized backend."""
    return stacks[request.param]


def converse(wire: Wire, turns: int, last: str | None = None) -> list[Json]:
    """Return the responses of some chained turns, alternately unstreamed and streamed."""
    created: list[Json] = []
    for turn in range(turns):
        request = {"model": "local/echo", "input": f"turn {turn}", "previous_response_id": last}
        created.append(check_stream(wire.stream(**request)) if turn % 2 else wire.create(**request))
        last = created[-1]["id"]
    return created


def test_host_backend_keeps_responses_after_a_kill(stack: LiveStack, upstream: Upstream) -> None:
    with Wire(stack) as wire:
        created = converse(wire, 4)
    stack.kill()
    stack.start()
    with Wire(stack) as wire:
        for response in created:
            assert wire.retrieve(response["id"]) == response
            assert final(wire.replay(response["id"])) == response
        assert [each["id"] for each in wire.listed(order="asc")][: len(created)] == [each["id"] for each in created]
        items = [item for page in wire.pages(f"/{created[-1]['id']}/input_items", limit=3) for item in page["data"]]
        assert len(items) == 2 * len(created) - 1
        created += converse(wire, 2, last=created[-1]["id"])
    contents = [content for _, content in roles_and_texts(upstream.requests("echo")[-1].body["messages"])]
    questions = [f"turn {turn}" for turn in (0, 1, 2, 3, 0, 1)]
    assert contents == [each for each in questions for _ in ("asked", "echoed")][:-1]
    assert_no_traceback(stack.log)


def test_host_backend_deletion_keeps_successors(stack: LiveStack, upstream: Upstream) -> None:
    with Wire(stack) as wire:
        first, second, third = converse(wire, 3)
        for response in (second, first):
            assert wire.http.delete(f"/responses/{response['id']}").status_code == 200
            error_of(wire.get(f"/{response['id']}"), 404)
        assert wire.retrieve(third["id"]) == third
        assert output_text(wire.create(model="local/echo", input="on", previous_response_id=third["id"])) == "on"
    assert len(upstream.requests("echo")[-1].body["messages"]) == 7


def test_host_backend_keeps_conversation_items_of_concurrent_responses(stack: LiveStack, upstream: Upstream) -> None:
    """Concurrent writers are serialized: one process owns the backend."""
    with Wire(stack) as wire:
        path = f"/conversations/{wire.http.post('/conversations', json={}).json()['id']}"

        def ask(turn: int) -> str:
            request = {"model": "local/echo", "input": f"turn {turn}", "conversation": path.rpartition("/")[2]}
            return output_text(check_stream(wire.stream(**request)) if turn % 2 else wire.create(**request))

        with ThreadPoolExecutor(4) as clients:
            assert list(clients.map(ask, range(4))) == [f"turn {turn}" for turn in range(4)]
        items = wire.http.get(f"{path}/items", params={"order": "asc"}).json()["data"]
        received = [item["content"][0]["text"] for item in items]
        assert received[::2] == received[1::2]
        assert sorted(received[::2]) == [f"turn {turn}" for turn in range(4)]
        assert wire.http.delete(f"{path}/items/{items[0]['id']}").status_code == 200
        ask(4)
        assert len(upstream.requests("echo")[-1].body["messages"]) == 8
        assert wire.http.delete(path).json()["deleted"]
        error_of(wire.http.get(f"{path}/items"), 404)


def test_host_backend_refuses_background_naming_the_stores_that_support_it(
    stack: LiveStack, upstream: Upstream
) -> None:
    with Wire(stack) as wire:
        for stream in (False, True):
            for body, headers in (({"background": True}, {}), ({}, {"idempotency-key": "later"})):
                request = {"model": "local/echo", "input": "later", "stream": stream, **body}
                error = error_of(wire.http.post("/responses", json=request, headers=headers), 400)
                assert (error["param"], error["code"]) == ("background", "unsupported_value")
                assert error["message"] == (
                    "Background responses and requests with an Idempotency-Key need a transactional store: set `store` "
                    "of the responses provider, in the stack's configuration, to 'sqlite', 'redis', 'cluster' or 'postgres'."
                )
        assert upstream.requests("echo") == []


@pytest.mark.parametrize("kind", sorted(BACKENDS.keys() - {"sqlite"}))
def test_host_backend_outage_is_503_until_it_is_back(
    kind: str, stacks: dict[str, LiveStack], databases: dict[str, DatabaseServer], upstream: Upstream
) -> None:
    with Wire(stacks[kind]) as wire:
        kept = wire.create(model="local/echo", input="kept")
        databases[kind].kill()
        for answer in (wire.get(f"/{kept['id']}"), wire.post({"model": "local/echo", "input": "too early"})):
            message = error_of(answer, 503)["message"]
            assert message.startswith("The response store, a key-value backend of the stack, does not answer (")
            assert answer.headers["retry-after"] == "1"
        databases[kind].start()
        # A backend detects each broken connection only by using it.
        wait_until(lambda: wire.post({"model": "local/echo", "input": "after"}).is_success)
        after = wire.create(model="local/echo", input="after", previous_response_id=kept["id"])
        assert wire.retrieve(kept["id"]) == kept
        assert wire.retrieve(after["id"]) == after
