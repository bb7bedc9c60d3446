"""A stack with the host's responses provider and this project's other providers keeps the host's routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.servers import use_builtin
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream
from tests.support.variants import variant

pytestmark = [pytest.mark.live, pytest.mark.both_hosts, pytest.mark.extended]


def use_builtin_with_our_inference(config: dict[str, Any]) -> None:
    inference = config["providers"]["inference"]
    use_builtin(config)
    config["providers"]["inference"] = inference


def test_builtin_responses_provider_keeps_the_conversations_routes_of_the_host(
    upstream: Upstream, tmp_path: Path, host: Host
) -> None:
    config = variant(STARTER, tmp_path / "config.yaml", use_builtin_with_our_inference)
    env = {"INFERENCE_URL": upstream.base_url}
    with LiveStack(config, env, tmp_path / "state", host=host) as stack:
        created = httpx.post(
            f"{stack.base_url}/v1/conversations", json={"metadata": {"topic": "demo"}}, timeout=60, verify=False
        )
    assert created.status_code == 200, created.text
    assert created.json()["object"] == "conversation"
