"""A stack with the host's own provider of responses and only our other providers keeps the host's routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.servers import use_builtin
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.upstream import Upstream
from tests.support.variants import variant

pytestmark = pytest.mark.live


def use_builtin_with_our_inference(config: dict[str, Any]) -> None:
    inference = config["providers"]["inference"]
    use_builtin(config)
    config["providers"]["inference"] = inference


def test_conversations_of_the_host_are_served_with_its_own_responses(
    upstream: Upstream, tmp_path: Path, host: Host
) -> None:
    config = variant(STARTER, tmp_path / "config.yaml", use_builtin_with_our_inference)
    env = {"INFERENCE_URL": upstream.base_url}
    with LiveStack(config, env, tmp_path / "state", host=host) as stack:
        made = httpx.post(f"{stack.base_url}/v1/conversations", json={"metadata": {"topic": "demo"}}, timeout=60)
    assert made.status_code == 200, made.text
    assert made.json()["object"] == "conversation"
