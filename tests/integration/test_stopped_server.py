"""What a stopping server has not begun, nginx gives to another one; what it has begun runs nowhere else."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.nginx import Nginx
from tests.support.process import free_port
from tests.support.stack import REPOSITORY, STARTER, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.extended]

NGINX: Final = REPOSITORY / "templates" / "scale-out" / "nginx.conf"
ADDRESSES: Final = ("127.0.0.1:8321", "127.0.0.1:8322")
ASKED: Final = {"model": "local/echo", "input": "not begun"}


class Servers:
    """Two servers whose model server has one slot, behind nginx.

    Attributes:
        first: the one that runs.
        address: nginx, which skips a server that does not run.
    """

    def __init__(self, first: LiveStack, second: LiveStack, port: int, metrics: int, address: Nginx) -> None:
        self.first, self._second, self._port = first, second, port
        self._metrics, self.address = metrics, address

    def start_second(self) -> None:
        """Start the other one."""
        self._second.start(self._port)

    @property
    def waiting(self) -> float:
        """The number of requests that wait in the first server."""
        found = httpx.get(f"http://127.0.0.1:{self._metrics}/metrics", timeout=60, trust_env=False).text
        match = re.search(r"^llama_stack_responses_model_server_waiting\S*{.*} (\S+)$", found, re.MULTILINE)
        return float(match[1]) if match else 0.0

    def stop_first(self) -> None:
        """Have the first server stop, and wait until it takes no more connections. It goes on with what it does."""
        os.kill(self.first.pid, signal.SIGTERM)
        wait_until(lambda: not self._is_taken())

    def _is_taken(self) -> bool:
        try:
            httpx.get(f"{self.first.base_url}/v1/health", timeout=1, trust_env=False)
        except httpx.ConnectError:
            return False
        except httpx.TransportError:
            return True  # busy, or it has closed a connection that it had not accepted yet
        return True


@pytest.fixture
def servers(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, upstream: Upstream, tmp_path: Path
) -> Iterator[Servers]:
    """The two servers. Each waits long for the slot of its model server, also before the head of a stream."""

    def change(config: Json) -> None:
        responses_config(config)["model_servers"] = {"local": {"concurrency": 1}}
        responses_config(config)["stream_refusal_seconds"] = 600

    metrics, port = free_port(), free_port()
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, "FINISH_SECONDS": "600"}
    scraped = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(metrics)}
    config = variant(STARTER, tmp_path / "config.yaml", change)
    upstream.script("held", reply(text("one ", "two"), hold=1))
    second = LiveStack(config, env, tmp_path / "second", host=host)
    with LiveStack(config, {**env, **scraped}, tmp_path / "first", host=host) as first:
        behind = {ADDRESSES[0]: f"127.0.0.1:{first.port}", ADDRESSES[1]: f"127.0.0.1:{port}"}
        with Nginx(NGINX.read_text(), tmp_path, "127.0.0.1:8320", behind) as address:
            try:
                yield Servers(first, second, port, metrics, address)
            finally:
                second.stop()


def test_what_a_stopping_server_has_not_begun_is_answered_by_another_one(servers: Servers, upstream: Upstream) -> None:
    address, first = servers.address, servers.first
    with ThreadPoolExecutor(3) as clients, Wire(address) as wire, Wire(address) as streaming, Wire(address) as holding:
        begun = clients.submit(holding.post, {"model": "local/held", "input": "begun"})
        upstream.wait_for("held", chunks=1)
        waiting = clients.submit(wire.create, **ASKED)
        stream = clients.submit(lambda: final(streaming.stream(**ASKED)))
        wait_until(lambda: servers.waiting == 2)
        kept = httpx.Limits(keepalive_expiry=60)
        with httpx.Client(base_url=f"{first.base_url}/v1", timeout=600, limits=kept, trust_env=False) as idle:
            servers.start_second()
            assert idle.get("/models").status_code == 200
            servers.stop_first()
            refused = idle.post("/responses", json=ASKED)
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "server_stopping")
        assert refused.headers["connection"] == "close"
        with Wire(address) as later:
            assert output_text(later.create(**ASKED)) == "not begun"
        assert not waiting.done()
        os.kill(first.pid, signal.SIGTERM)  # a second signal ends the wait for what runs
        assert {output_text(each.result(600)) for each in (waiting, stream)} == {"not begun"}
        assert begun.result(600).status_code == 503
    assert len(upstream.requests("held")) == 1
    assert len(upstream.requests("echo")) == 3
