"""The readiness route while stores and model servers stop and start."""

import json
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.postgres import Postgres
from tests.support.process import free_port
from tests.support.snippet_programs import READINESS
from tests.support.snippets import blocks
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.both_hosts]

SERVERS: Final = {"redis": Valkey, "postgres": Postgres}
DOCUMENTED: Final = json.loads(blocks()[READINESS].text)
READY: Final = {"status": "ready", "store": "ok", "worker": "ok", "model_server": "ok"}


def ready(stack: LiveStack) -> tuple[int, dict[str, str]]:
    """Ask for readiness, without a token."""
    answer = httpx.get(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    return answer.status_code, answer.json()


def is_alive(stack: LiveStack) -> bool:
    """Whether the host's own health route answers."""
    return httpx.get(f"{stack.base_url}/v1/health", timeout=60, trust_env=False, verify=False).status_code == 200


@pytest.mark.parametrize("kind", SERVERS)
def test_readiness_follows_a_store_that_stops_and_starts(
    kind: str, host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> None:
    config = REPOSITORY / "templates" / kind / "config.yaml"
    (tmp_path / kind).mkdir()
    with SERVERS[kind](tmp_path / kind) as server:
        env = {**stack_env, **server.environment, "INFERENCE_URL": upstream_process.client.base_url}
        with LiveStack(config, env, tmp_path / "state", host=host) as stack:
            wait_until(lambda: ready(stack) == (200, READY))
            server.freeze()
            wait_until(lambda: ready(stack)[1]["store"] == "unavailable")
            server.thaw()
            wait_until(lambda: ready(stack) == (200, READY))
            server.kill()
            wait_until(lambda: ready(stack)[0] == 503)
            status, told = ready(stack)
            assert (status, told["status"], told["store"], told["model_server"]) == (
                503,
                "not_ready",
                "unavailable",
                "ok",
            )
            assert told.keys() == DOCUMENTED.keys()
            assert DOCUMENTED | {"worker": told["worker"]} == told
            assert is_alive(stack), "only readiness may tell: a restart of the server would not help"
            server.start()
            wait_until(lambda: ready(stack) == (200, READY))


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


def test_readiness_names_nothing_but_parts(stack: LiveStack, upstream: Upstream) -> None:
    wait_until(lambda: ready(stack)[0] == 200)
    answer = httpx.get(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    assert answer.json() == READY
    assert answer.headers["cache-control"] == "no-store"
    refused = httpx.post(f"{stack.base_url}/v1/ready", timeout=60, trust_env=False, verify=False)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


def test_servers_with_different_secrets_log_an_error_and_stay_ready(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> None:
    config = REPOSITORY / "templates" / "redis" / "config.yaml"
    (tmp_path / "redis").mkdir()
    secrets = [b64encode(bytes([number]) * 32).decode() for number in (1, 2)]
    with Valkey(tmp_path / "redis") as server:
        env = {**stack_env, **server.environment, "INFERENCE_URL": upstream_process.client.base_url}
        first = LiveStack(config, {**env, "RESPONSES_SECRET": secrets[0]}, tmp_path / "first", host=host)
        other = LiveStack(config, {**env, "RESPONSES_SECRET": secrets[1]}, tmp_path / "other", host=host)
        rotated = {"RESPONSES_SECRET": secrets[0], "RESPONSES_SECRET_2": secrets[1]}
        both = LiveStack(config, {**env, **rotated}, tmp_path / "both", host=host)
        with first:
            wait_until(lambda: ready(first) == (200, READY))
            with other:
                wait_until(lambda: ready(other) == (200, READY | {"secrets": "different"}))
                logged = " ".join(other.log.read_text().split())
                assert "ERROR" in logged
                assert "set the same RESPONSES_SECRET" in logged
                assert not [secret for secret in secrets if secret in logged]
            with both:
                wait_until(lambda: ready(both) == (200, READY))
                assert "RESPONSES_SECRET" not in " ".join(both.log.read_text().split())
