"""A server gives the memory of a heavy load back to the system soon after the load has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import pytest

from tests.support.memory import resident_bytes
from tests.support.socket_client import SocketClient
from tests.support.stack import STARTER, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire

pytestmark = [
    pytest.mark.live,
    pytest.mark.one_host,
    pytest.mark.extended,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]

BODY_BYTES: Final = 150 * 2**20
ITEM_BYTES: Final = 10_000
READERS: Final = 20
RESPONSES: Final = 300
WORDS: Final = "word " * 800
CHUNKS: Final = 2_000
SHORT: Final[Json] = {"model": "local/short", "input": "x"}
FACTOR: Final = 1.3
"""What the memory may be afterwards, times that at the start."""


@pytest.fixture(scope="module")
def server(
    stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveStack]:
    folder = tmp_path_factory.mktemp("memory")

    def change(config: Json) -> None:
        settings = responses_config(config)
        settings["background"] = {"concurrency": 64, "waiting": 2 * RESPONSES}
        bodies = {"total_bytes": 4 * BODY_BYTES, "bytes_per_user": 4 * BODY_BYTES}
        settings["limits"] = {"request_bytes": 2 * BODY_BYTES, "bodies": bodies}

    config = variant(STARTER, folder / "config.yaml", change)
    env = stack_env | {"INFERENCE_URL": upstream_process.client.base_url}
    with LiveStack(config, env, folder / "state", fork=False) as stack:
        yield stack


def send_large_body(stack: LiveStack) -> None:
    """Send a body that is read and decoded, and then refused."""
    item = b'{"role":"user","content":"%b"}' % (b"x" * ITEM_BYTES)
    items = b",".join([item] * (BODY_BYTES // ITEM_BYTES))
    body = b'{"model":"local/short","temperature":9,"input":[%b]}' % items
    with Wire(stack) as wire:
        answer = wire.http.post("/responses", content=body, headers={"content-type": "application/json"}, timeout=300)
    assert answer.status_code == 400, answer.text


def stall(stack: LiveStack, upstream: Upstream) -> None:
    """Let clients begin long streams, read nothing more, and leave once the model server has to wait."""
    body = {"model": "local/flood", "input": "x", "stream": True}
    with ExitStack() as clients:
        for _ in range(READERS):
            client = clients.enter_context(SocketClient(stack, body, buffer=32_768))
            client.read_until(b"event: response.output_text.delta")
    wait_until(lambda: all(each.ended for each in upstream.requests("flood")), seconds=120)


def run_in_background(stack: LiveStack) -> None:
    """Run background responses to their end."""
    with Wire(stack) as wire, ThreadPoolExecutor(8) as threads:

        def create(_: int) -> str:
            return str(wire.create(**SHORT, background=True)["id"])

        def ended(response_id: str) -> bool:
            return bool(wire.get(f"/{response_id}").json()["status"] == "completed")

        ids = list(threads.map(create, range(RESPONSES)))
        wait_until(lambda: all(map(ended, ids[::-100])), seconds=300)


def run_small(stack: LiveStack) -> None:
    """Run a short response."""
    with Wire(stack) as wire:
        wire.create(**SHORT)


def test_memory_of_a_heavy_load_is_returned_within_a_minute(server: LiveStack, upstream: Upstream) -> None:
    upstream.script("short", reply(text("word ")))
    upstream.script("flood", reply(text(*[WORDS] * CHUNKS)))
    run_small(server)
    before = resident_bytes(server.pid)
    send_large_body(server)
    stall(server, upstream)
    run_in_background(server)
    wait_until(lambda: resident_bytes(server.pid) <= FACTOR * before, seconds=60, every=1.0)
    run_small(server)
