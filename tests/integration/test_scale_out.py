"""The unmodified scale-out template: two servers, their nginx, and a Valkey with a password behind TLS."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.certificates import Certificates
from tests.support.nginx import Nginx
from tests.support.reader import Reader
from tests.support.relay import Relay
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.strict import check_stream
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.valkey import PATIENCE, Valkey
from tests.support.variants import traces
from tests.support.waiting import wait_until
from tests.support.websocket_client import WebSocketClient
from tests.support.wire import Json, Wire, final, output_text, roles_and_texts

# The store and the proxy do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(0), pytest.mark.one_host]

TEMPLATE: Final = REPOSITORY / "templates" / "scale-out"
ADDRESSES: Final = ("127.0.0.1:8321", "127.0.0.1:8322")
PASSWORD: Final = "open-sesame-4711"
TURNS: Final = 6
HELD: Final = reply(text("one ", "two ", "three"), hold=2)
WHOLE: Final = reply(text("one ", "two ", "three"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files of the servers."""
    return tmp_path_factory.mktemp("scale-out")


@pytest.fixture(scope="module")
def servers(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, folder: Path
) -> Iterator[list[LiveStack]]:
    """The two servers, each with its own folder."""
    certificates = Certificates.create_in(folder / "authority", ["localhost"], address=None)
    with (
        Valkey(folder / "valkey", password=PASSWORD) as valkey,
        Relay(valkey.port, certificates.of_server()) as relay,
        ThreadPoolExecutor(len(ADDRESSES)) as starters,  # a child process ends with the thread that started it
    ):
        env = {
            **stack_env,
            "INFERENCE_URL": upstream_process.client.base_url,
            "REDIS_URL": f"rediss://localhost:{relay.port}/0?ssl_ca_certs={certificates.path('ca.pem')}&{PATIENCE}",
            "REDIS_PASSWORD": PASSWORD,
        }
        config = TEMPLATE / "config.yaml"
        # Not both are forked: their hash seeds differ, as those of servers on two machines.
        stacks = [LiveStack(config, env, folder / f"server-{n}", host=host, fork=n == 1) for n in (1, 2)]
        try:
            list(starters.map(LiveStack.start, stacks))
            yield stacks
        finally:
            for each in stacks:
                each.stop()


@pytest.fixture(scope="module")
def address(servers: list[LiveStack], folder: Path) -> Iterator[Nginx]:
    """The nginx in front of the servers."""
    behind = {name: f"127.0.0.1:{server.port}" for name, server in zip(ADDRESSES, servers, strict=True)}
    with Nginx((TEMPLATE / "nginx.conf").read_text(), folder, "127.0.0.1:8320", behind) as running:
        yield running


@pytest.fixture
def wire(address: Nginx, upstream: Upstream) -> Iterator[Wire]:
    """A client of the nginx."""
    with Wire(address) as wire:
        yield wire


def test_chain_continues_on_either_server_behind_nginx(
    address: Nginx, servers: list[LiveStack], upstream: Upstream
) -> None:
    responses: list[Json] = []
    for turn in range(TURNS):
        with Wire(address) as wire:
            before = responses[-1]["id"] if responses else None
            request = {"model": "local/echo", "input": f"turn {turn}", "previous_response_id": before}
            responses.append(final(wire.stream(**request)) if turn % 2 else wire.create(**request))
    for server in servers:
        with Wire(server) as direct:
            assert [direct.retrieve(each["id"]) for each in responses] == responses
    contents = [content for _, content in roles_and_texts(upstream.requests("echo")[-1].body["messages"])]
    assert contents == [f"turn {turn}" for turn in range(TURNS) for _ in ("asked", "echoed")][:-1]


def test_access_log_of_nginx_has_the_request_id_and_no_query(wire: Wire, folder: Path) -> None:
    answer = wire.http.get("/responses/resp_none?include=otter", headers={"x-request-id": "seen.by.nginx"})
    assert answer.headers["x-request-id"] == "seen.by.nginx"

    def lines() -> list[Json]:
        logged = [json.loads(line) for line in (folder / "access.log").read_text().splitlines()]
        return [line for line in logged if line["request_id"] == "seen.by.nginx"]

    wait_until(lambda: bool(lines()))
    [line] = lines()
    assert (line["status"], line["method"], line["path"]) == (400, "GET", "/v1/responses/resp_none")
    assert "otter" not in (folder / "access.log").read_text()


def test_client_disconnect_behind_nginx_ends_the_generation(wire: Wire, upstream: Upstream) -> None:
    upstream.script("m", HELD)
    with Reader.create(wire, model="local/m", input="Count.") as reader:
        reader.read_to("two ")
    assert upstream.wait_for("m", ended=True)[0].ended == "client_gone"


def test_websocket_behind_nginx_keeps_its_server(address: Nginx, wire: Wire, upstream: Upstream) -> None:
    """Its responses are stored for all servers, and a disconnect ends its generation."""
    upstream.script("m", HELD)
    with WebSocketClient(address) as websocket:
        websocket.ask(model="local/echo", input="first", store=False)
        websocket.ask(model="local/echo", input="second", previous_response_id=websocket.response()["id"])
        stored = websocket.response()
        websocket.ask(model="local/m", input="Count.")
        websocket.until("response.output_text.delta")
    assert upstream.wait_for("m", ended=True)[0].ended == "client_gone"
    for _ in range(2):
        wire.create(model="local/echo", input="third", previous_response_id=stored["id"])
        contents = [content for _, content in roles_and_texts(upstream.requests("echo")[-1].body["messages"])]
        assert contents == ["first", "first", "second", "second", "third"]


def test_killed_server_behind_nginx_is_skipped_and_its_job_continues(
    wire: Wire, address: Nginx, servers: list[LiveStack], upstream: Upstream
) -> None:
    """nginx balances by the fewest connections, so each server has one stream, and only one breaks."""
    upstream.script("m", HELD)
    upstream.script("work", [HELD, WHOLE])
    work = wire.create(model="local/work", input="Count.", background=True)["id"]
    upstream.wait_for("work", chunks=2)
    with (
        Wire(address) as other,
        Reader.create(wire, model="local/m", input="Count.") as one,
        Reader.create(other, model="local/m", input="Count.") as two,
    ):
        for reader in (one, two):
            reader.read_to("two ")
        servers[0].kill()
        upstream.release("m")
        ended = [whole(reader) for reader in (one, two)]
    assert sorted(ended) == [False, True]
    upstream.release("work")
    for number in range(4):
        with Wire(address) as another:
            assert output_text(another.create(model="local/echo", input=f"number {number}")) == f"number {number}"
    wait_until(lambda: wire.retrieve(work)["status"] == "completed")
    assert output_text(wire.retrieve(work)).endswith("one two three")
    paths = [f"/{reader.response_id}" for reader in (one, two)]
    wait_until(lambda: sorted(wire.get(path).json().get("status") for path in paths) == ["completed", "failed"])


def whole(reader: Reader) -> bool:
    """Return whether the stream completed."""
    try:
        return bool(check_stream(reader.read_to_end())["status"] == "completed")
    except httpx.TransportError:
        return False


def test_valkey_password_is_in_no_file_or_log(servers: list[LiveStack], folder: Path) -> None:
    assert servers[1].stop() in (0, -signal.SIGTERM)
    for server in servers:
        assert "rediss://localhost" in server.log.read_text(errors="replace")  # the host logs its configuration
    assert traces(folder, PASSWORD) == []
