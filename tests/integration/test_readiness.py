"""The readiness route while stores and model servers stop and start."""

import json
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.database import DatabaseServer
from tests.support.process import free_port
from tests.support.snippet_programs import READINESS
from tests.support.snippets import blocks
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.stores import SERVERS
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text, tool_call
from tests.support.variants import Json, responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of

pytestmark = pytest.mark.live

DOCUMENTED: Final = json.loads(blocks()[READINESS].text)
READY: Final = {"status": "ready", "store": "ok", "worker": "ok", "model_server": "ok"}


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[DatabaseServer]:
    """The server of a store, by the `kind` of the test's parameter."""
    (tmp_path / kind).mkdir()
    with SERVERS[kind](tmp_path / kind) as running:
        yield running


@pytest.fixture
def new_stack(
    kind: str,
    server: DatabaseServer,
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path: Path,
) -> Callable[..., LiveStack]:
    """Return a function that prepares a stack with that store, by its name and its own environment variables."""
    config = REPOSITORY / "templates" / kind / "config.yaml"
    env = {**stack_env, **server.environment, "INFERENCE_URL": upstream_process.client.base_url}

    def prepare(name: str, **own: str) -> LiveStack:
        return LiveStack(config, env | own, tmp_path / name, host=host)

    return prepare


def ready(stack: LiveStack) -> tuple[int, dict[str, str]]:
    """Ask for readiness, without a token."""
    answer = httpx.get(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    return answer.status_code, answer.json()


def is_alive(stack: LiveStack) -> bool:
    """Whether the host's own health route answers."""
    return httpx.get(f"{stack.base_url}/v1/health", timeout=60, trust_env=False, verify=False).status_code == 200


def is_ready(stack: LiveStack) -> bool:
    """Whether a server is ready, and nothing is to be mended."""
    return ready(stack) == (200, READY)


def shows_different_secrets(stack: LiveStack) -> bool:
    """Whether a server is ready, and lacks a secret of the others."""
    return ready(stack) == (200, READY | {"secrets": "different"})


@pytest.mark.parametrize("kind", ["redis", pytest.param("postgres", marks=pytest.mark.extended)])
def test_readiness_follows_a_store_that_stops_and_starts(
    server: DatabaseServer, new_stack: Callable[..., LiveStack]
) -> None:
    with new_stack("state") as stack:
        wait_until(lambda: ready(stack) == (200, READY))
        server.freeze()
        wait_until(lambda: ready(stack)[1]["store"] == "unavailable")
        server.thaw()
        wait_until(lambda: ready(stack) == (200, READY))
        server.kill()
        wait_until(lambda: ready(stack)[0] == 503)
        status, body = ready(stack)
        assert (status, body["status"], body["store"], body["model_server"]) == (
            503,
            "not_ready",
            "unavailable",
            "ok",
        )
        assert body.keys() == DOCUMENTED.keys()
        assert DOCUMENTED | {"worker": body["worker"]} == body
        assert is_alive(stack), "only readiness may tell: a restart of the server would not help"
        server.start()
        wait_until(lambda: ready(stack) == (200, READY))


@pytest.mark.extended
def test_readiness_follows_a_locked_sqlite_file_and_a_model_server(
    host: Host, stack_env: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    env = {**stack_env, "INFERENCE_URL": f"http://127.0.0.1:{port}/v1"}
    with LiveStack(STARTER, env, tmp_path / "state", host=host) as stack:
        # The model server need not be there when the stack starts.
        wait_until(lambda: ready(stack) == (503, READY | {"status": "not_ready", "model_server": "unavailable"}))
        with UpstreamProcess(tmp_path / "upstream.log", port):
            wait_until(lambda: ready(stack) == (200, READY))
            [database] = (tmp_path / "state").rglob("responses.db")
            with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                # Nobody can write: the worker cannot renew its lease.
                wait_until(lambda: ready(stack) == (503, READY | {"status": "not_ready", "worker": "unavailable"}))
                connection.execute("ROLLBACK")
            wait_until(lambda: ready(stack) == (200, READY))
        wait_until(lambda: ready(stack)[1]["model_server"] == "unavailable")


@pytest.mark.both_hosts
def test_models_are_listed_soon_after_their_server_starts_and_when_one_is_unknown(
    host: Host, stack_env: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    env = {**stack_env, "INFERENCE_URL": f"http://127.0.0.1:{port}/v1"}
    with LiveStack(STARTER, env, tmp_path / "state", host=host) as stack, Wire(stack) as wire:

        def listed() -> set[str]:
            return {model["id"] for model in wire.http.get("/models").json()["data"]}

        assert "local/echo" not in listed()
        with UpstreamProcess(tmp_path / "upstream.log", port) as upstream:
            wait_until(lambda: "local/echo" in listed(), seconds=60)
            upstream.client.script("newer", reply(text("Hello")))
            refused = error_of(wire.post({"model": "newer", "input": "Hi"}), 404)
            assert "Did you mean 'local/newer'?" in refused["message"]
            assert "local/newer" in listed()


@pytest.mark.both_hosts
def test_readiness_names_only_parts(stack: LiveStack, upstream: Upstream) -> None:
    wait_until(lambda: ready(stack)[0] == 200)
    answer = httpx.get(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    assert answer.json() == READY
    assert answer.headers["cache-control"] == "no-store"
    refused = httpx.post(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["redis"])
def test_servers_with_different_secrets_log_an_error_and_stay_ready(new_stack: Callable[..., LiveStack]) -> None:
    secrets = [b64encode(bytes([number]) * 32).decode() for number in (1, 2)]
    first = new_stack("first", RESPONSES_SECRET=secrets[0])
    other = new_stack("other", RESPONSES_SECRET=secrets[1])
    both = new_stack("both", RESPONSES_SECRET=secrets[0], RESPONSES_SECRET_2=secrets[1])
    with first:
        wait_until(lambda: ready(first) == (200, READY))
        with other:
            wait_until(lambda: shows_different_secrets(other))
            logged = " ".join(other.log.read_text().split())
            assert "ERROR" in logged
            assert "set the same RESPONSES_SECRET" in logged
            assert not [secret for secret in secrets if secret in logged]
        with both:
            wait_until(lambda: ready(both) == (200, READY))
            assert "RESPONSES_SECRET" not in " ".join(both.log.read_text().split())


@pytest.mark.one_host
@pytest.mark.parametrize("kind", ["redis", pytest.param("postgres", marks=pytest.mark.extended)])
def test_servers_without_a_secret_share_that_of_their_store(
    new_stack: Callable[..., LiveStack], upstream: Upstream
) -> None:
    """They start at once on an empty store. It is in the store, so it protects no credentials there."""
    question, tools = {"role": "user", "content": "think"}, [{"type": "function", "name": "f"}]
    output = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    upstream.script("m", [reply(reasoning("Hm."), tool_call(0, "c1", "f", "{}")), reply(text("Done."))])
    with new_stack("first") as first, new_stack("other") as other, Wire(first) as wire, Wire(other) as others:
        created = wire.create(model="local/m", input=[question], tools=tools, store=False)
        others.create(model="local/m", input=[question, *created["output"], output], tools=tools, store=False)
        assert upstream.requests("m")[-1].body["messages"][1]["reasoning_content"] == "Hm."
        keys = {"X-LlamaStack-Provider-Data": '{"openai_chat_api_key": "sk-mine"}', "X-OGX-Provider-Data": "{}"}
        asked = {"model": "local/echo", "input": "x", "background": True}
        refused = error_of(wire.http.post("/responses", json=asked, headers=keys), 400)
        assert (refused["param"], refused["code"]) == ("background", "unsupported_value")
        assert "'secrets'" in refused["message"]
        for each in (first, other):
            wait_until(partial(is_ready, each))
            assert "secrets differ between" not in " ".join(each.log.read_text().split())


@pytest.mark.extended
@pytest.mark.one_host
def test_server_without_the_secret_of_its_sqlite_store_logs_an_error(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> None:
    def share(config: Json) -> None:
        responses_config(config)["store"]["path"] = str(tmp_path / "shared.db")

    config = variant(STARTER, tmp_path / "config.yaml", share)
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    secret = b64encode(bytes(range(32))).decode()
    with LiveStack(config, env | {"RESPONSES_SECRET": secret}, tmp_path / "first", host=host) as first:
        wait_until(lambda: ready(first) == (200, READY))
        with LiveStack(config, env, tmp_path / "other", host=host) as other:
            wait_until(lambda: shows_different_secrets(other))
            logged = " ".join(other.log.read_text().split())
            assert "set the same RESPONSES_SECRET" in logged
            assert secret not in logged
