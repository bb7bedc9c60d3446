"""Servers of one store are replaced one by one under load, as the guide says: no request fails, no response is lost."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final, Self

import httpx
import pytest

from tests.support.nginx import Nginx
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, final, output_text

pytestmark = [pytest.mark.live, pytest.mark.extended]

TEMPLATE: Final = REPOSITORY / "templates" / "scale-out"
ADDRESSES: Final = ("127.0.0.1:8321", "127.0.0.1:8322")
SLOW: Final = reply(text(*(f"word{number} " for number in range(20))), interval=0.05)
FORMS: Final[list[Json]] = [{}, {"stream": True}, {"background": True}]
CLIENTS: Final = 4


class Load:
    """Clients that make responses one after the other, for a `with` block.

    Attributes:
        response_ids: the ids of the responses.
        failures: what went wrong.
    """

    def __init__(self, address: Nginx) -> None:
        self.response_ids: list[str] = []
        self.failures: list[str] = []
        self._address = address
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for each in self._threads:
            each.join()

    def more(self) -> None:
        """Wait for some more responses."""
        before = len(self.response_ids)
        wait_until(lambda: len(self.response_ids) >= before + 2 * CLIENTS or bool(self.failures))

    def _run(self) -> None:
        previous: str | None = None
        with Wire(self._address) as wire:
            for number in count():
                if self._end.is_set():
                    return
                try:
                    previous = self._make(wire, FORMS[number % len(FORMS)], previous)
                    self.response_ids.append(previous)
                except (AssertionError, httpx.HTTPError) as error:
                    self.failures.append(repr(error))
                    return

    def _make(self, wire: Wire, form: Json, previous: str | None) -> str:
        request = {"model": "local/slow", "input": "Count.", "previous_response_id": previous, **form}
        streamed = final(wire.stream(**request)) if "stream" in form else wire.create(**request)
        if "background" in form:
            wait_until(lambda: wire.retrieve(streamed["id"])["status"] not in ("queued", "in_progress"))
            streamed = wire.retrieve(streamed["id"])
        assert streamed["status"] == "completed", f"{form}: {streamed['status']}, {streamed['error']}"
        assert output_text(streamed).endswith("word19 ")
        return str(streamed["id"])


@pytest.fixture
def servers(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, upstream: Upstream, tmp_path: Path
) -> Iterator[list[LiveStack]]:
    """Two servers on one Valkey."""
    upstream.script("slow", SLOW)
    (tmp_path / "valkey").mkdir()
    with Valkey(tmp_path / "valkey") as valkey, ThreadPoolExecutor(1) as starter:
        env = {
            **stack_env,
            **valkey.environment,
            "INFERENCE_URL": upstream_process.client.base_url,
            "FINISH_SECONDS": "60",
        }
        stacks = [LiveStack(TEMPLATE / "config.yaml", env, tmp_path / f"server-{n}", host=host) for n in (1, 2)]
        try:
            list(starter.map(LiveStack.start, stacks))
            yield stacks
        finally:
            for each in stacks:
                each.stop()


def test_sighup_ends_a_server_at_once(servers: list[LiveStack], upstream: Upstream) -> None:
    """It reloads nothing: the running response fails like after a crash, although there is time to finish."""
    with Wire(servers[0]) as wire, Wire(servers[1]) as other, ThreadPoolExecutor(1) as asking:
        upstream.script("held", reply(text("one ", "two"), hold=1))
        pending = asking.submit(wire.post, {"model": "local/held", "input": "Count."})
        upstream.wait_for("held", chunks=1)
        os.kill(servers[0].pid, signal.SIGHUP)
        assert isinstance(pending.exception(60), httpx.TransportError)
        assert other.listed() == []
    assert servers[0].stop() == -signal.SIGHUP


def test_servers_replaced_one_by_one_under_load_fail_no_request(servers: list[LiveStack], tmp_path: Path) -> None:
    behind = {name: f"127.0.0.1:{server.port}" for name, server in zip(ADDRESSES, servers, strict=True)}
    with (
        Nginx((TEMPLATE / "nginx.conf").read_text(), tmp_path, "127.0.0.1:8320", behind) as address,
        Load(address) as load,
    ):
        for server in servers:
            load.more()
            name = f"server 127.0.0.1:{server.port} "
            address.change(name, f"{name}down ")
            assert server.stop(grace=120) != -signal.SIGKILL
            server.start()
            wait_until(server.is_ready)
            address.change(f"{name}down ", f"server 127.0.0.1:{server.port} ")
            load.more()
    assert load.failures == []
    with Wire(servers[0]) as wire:
        assert {wire.retrieve(name)["status"] for name in load.response_ids} == {"completed"}
