"""The quota of llama-stack, which OGX does not have, behind a proxy."""

from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.stack import STARTER, LiveStack
from tests.support.variants import variant

pytestmark = [pytest.mark.live, pytest.mark.one_host, pytest.mark.extended]

PROXY: Final = "127.0.0.2"
QUOTA: Final = {"kvstore": {"backend": "kv_default", "namespace": "quota"}, "anonymous_max_requests": 2}


def add_quota(config: dict[str, Any]) -> None:
    """Allow an address two requests a day."""
    config["server"]["quota"] = QUOTA


def test_quota_counts_the_clients_of_a_trusted_proxy_apart_and_those_of_another_one_together(
    stack_env: dict[str, str], tmp_path: Path
) -> None:
    env = {**stack_env, "FORWARDED_ALLOW_IPS": PROXY}
    with LiveStack(variant(STARTER, tmp_path / "config.yaml", add_quota), env, tmp_path / "state", fork=False) as stack:
        assert statuses(stack, PROXY) == [200, 200, 429] * 2
        assert statuses(stack, "127.0.0.3") == [200, 200, 429, 429, 429, 429]


def statuses(stack: LiveStack, proxy: str) -> list[int]:
    """Return the answers to three requests of each of two clients through a proxy."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=proxy), timeout=60) as client:
        url = f"{stack.base_url}/v1/models"
        clients = [each for each in ("10.0.0.1", "10.0.0.2") for _ in range(3)]
        return [client.get(url, headers={"x-forwarded-for": each}).status_code for each in clients]
