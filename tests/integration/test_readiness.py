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
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.variants import Json, responses_config, variant
from tests.support.waiting import wait_until

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


def shows_different_secrets(stack: LiveStack) -> bool:
    """Whether a server is ready, and lacks a secret of the others."""
    return ready(stack) == (200, READY | {"secrets": "different"})


@pytest.mark.parametrize("kind", SERVERS)
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


@pytest.mark.both_hosts
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
def test_readiness_names_only_parts(stack: LiveStack, upstream: Upstream) -> None:
    wait_until(lambda: ready(stack)[0] == 200)
    answer = httpx.get(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    assert answer.json() == READY
    assert answer.headers["cache-control"] == "no-store"
    refused = httpx.post(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


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
def test_servers_without_a_secret_on_one_store_log_an_error(new_stack: Callable[..., LiveStack]) -> None:
    """One alone does not: what it seals, it opens. Each of two makes its own key, which the other lacks."""
    with new_stack("first") as first:
        wait_until(lambda: ready(first) == (200, READY))
        first.kill()
        first.start()
        wait_until(lambda: ready(first) == (200, READY))
        with new_stack("other") as other:
            for each in (first, other):
                wait_until(partial(shows_different_secrets, each))
                logged = " ".join(each.log.read_text().split())
                assert "set the same RESPONSES_SECRET" in logged
                assert logged.count("secrets differ between") == 1


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
            assert "this one has none but one of its own process" in logged
            assert "set the same RESPONSES_SECRET" in logged
            assert secret not in logged
