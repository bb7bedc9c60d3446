"""A stack on a Valkey that may lose responses."""

from pathlib import Path

import pytest
from redis import Redis

from tests.integration.test_readiness import READY, ready
from tests.support.process import StartError
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.upstream import UpstreamProcess
from tests.support.valkey import PATIENCE, Valkey
from tests.support.variants import Json, responses_config, variant
from tests.support.waiting import wait_until

# What is stored does not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

TEMPLATE = REPOSITORY / "templates" / "redis" / "config.yaml"


def accept_losses(config: Json) -> None:
    responses_config(config)["store"]["volatile"] = True


def test_stack_on_a_store_that_forgets_starts_only_if_that_is_accepted(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> None:
    with Valkey(tmp_path / "valkey", "--appendonly", "no") as server:
        env = {**stack_env, **server.environment, "INFERENCE_URL": upstream_process.client.base_url}
        refused = LiveStack(TEMPLATE, env, tmp_path / "refused", host=host)
        with pytest.raises(StartError):
            refused.start()
        logged = " ".join(refused.log.read_text().split())
        assert "The response store's server may lose responses: it forgets responses when it restarts" in logged
        config = variant(TEMPLATE, tmp_path / "config.yaml", accept_losses)
        with LiveStack(config, env, tmp_path / "accepted", host=host) as stack:
            wait_until(lambda: ready(stack) == (200, READY | {"durability": "volatile"}))


@pytest.mark.extended  # readiness follows after many seconds
def test_readiness_follows_the_settings_of_the_store(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path: Path
) -> None:
    with Valkey(tmp_path / "valkey") as server, Redis.from_url(f"{server.url}?{PATIENCE}") as admin:
        env = {**stack_env, **server.environment, "INFERENCE_URL": upstream_process.client.base_url}
        with LiveStack(TEMPLATE, env, tmp_path / "state", host=host) as stack:
            wait_until(lambda: ready(stack) == (200, READY))
            admin.config_set("maxmemory", "100mb")
            admin.config_set("maxmemory-policy", "allkeys-lru")
            wait_until(lambda: ready(stack) == (503, READY | {"status": "not_ready", "durability": "volatile"}))
            admin.config_set("maxmemory-policy", "noeviction")
            wait_until(lambda: ready(stack) == (200, READY))
