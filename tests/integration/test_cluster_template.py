"""The template `cluster`: three primaries and three replicas with its settings, three servers, and its nginx."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import httpx
import pytest

from llama_stack_responses.cli import main
from tests.support.cluster import Cluster, Node
from tests.support.nginx import Nginx
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.valkey import program
from tests.support.waiting import wait_until
from tests.support.wire import Json, Wire, output_text

# The store and the proxy do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(1), pytest.mark.one_host]

TEMPLATE: Final = REPOSITORY / "templates" / "cluster"
ADDRESSES: Final = ("127.0.0.1:8321", "127.0.0.1:8322", "127.0.0.1:8323")
CHAINS: Final = 6


class TemplateNode(Node):
    """A node with the settings of the template."""

    def command(self, options: tuple[str, ...]) -> list[str]:
        """Return the command line of the template, with ports of its own and little patience."""
        command = [program(), str(TEMPLATE / "valkey.conf"), "--port", str(self.port), "--dir", str(self.folder)]
        return [*command, "--bind", "127.0.0.1", "--cluster-port", str(self.bus), *options]


@dataclass(frozen=True)
class Site:
    """What the template starts."""

    cluster: Cluster
    servers: list[LiveStack]
    nginx: Nginx


@pytest.fixture(scope="module")
def site(
    host: Host,
    stack_env: dict[str, str],
    upstream_process: UpstreamProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """The unmodified template, all on this machine."""
    folder = tmp_path_factory.mktemp("cluster-template")
    quick = ("--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
    with ExitStack() as running:
        cluster = running.enter_context(Cluster(folder / "nodes", *quick, node=TemplateNode))
        env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url, **cluster.environment}
        config = TEMPLATE / "config.yaml"
        # Not all are forked: their hash seeds differ, as those of servers on several machines.
        servers = [LiveStack(config, env, folder / f"server-{n}", host=host, fork=n > 0) for n in range(len(ADDRESSES))]
        # A child process ends with the thread that started it, so these threads must live as long as the stacks.
        starters = running.enter_context(ThreadPoolExecutor(len(servers)))
        for each in servers:
            running.callback(each.stop)
        list(starters.map(LiveStack.start, servers))
        behind = {name: f"127.0.0.1:{server.port}" for name, server in zip(ADDRESSES, servers, strict=True)}
        config_of_nginx = (TEMPLATE / "nginx.conf").read_text()
        nginx = running.enter_context(Nginx(config_of_nginx, folder, "127.0.0.1:8320", behind))
        yield Site(cluster, servers, nginx)


@pytest.fixture
def wire(site: Site, upstream: Upstream) -> Iterator[Wire]:
    """A client of the nginx."""
    with Wire(site.nginx) as wire:
        yield wire


def chain_of(wire: Wire, words: str) -> list[Json]:
    first = wire.create(model="local/echo", input=words)
    return [first, wire.create(model="local/echo", input="more", previous_response_id=first["id"])]


def test_chains_are_spread_over_the_primaries_and_found_by_each_server(
    site: Site, wire: Wire, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = [each for number in range(CHAINS) for each in chain_of(wire, f"chain {number}")]
    for server in site.servers:
        with Wire(server) as direct:
            assert [direct.retrieve(each["id"]) for each in stored] == stored
    monkeypatch.setenv("REDIS_URL", site.cluster.url)
    assert main(["partitions", "--json", "--config", str(TEMPLATE / "config.yaml")]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    partitions = [each for each in printed if "partition" in each]
    assert len(partitions) == 64
    assert {each["primary"] for each in partitions} == {
        f"127.0.0.1:{node.port}" for node in site.cluster.nodes if node.is_primary
    }
    assert all(len(each["replicas"]) == 1 for each in partitions)
    assert len({each["worker"] for each in partitions}) == len(site.servers)


def test_killed_zone_loses_nothing(site: Site, wire: Wire, upstream: Upstream) -> None:
    """A server, a primary and the replica of another one die at once, as in a zone of three.

    What was acknowledged before is found once a replica is elected, and background responses end.
    """
    held = reply(text("one ", "two ", "three"), hold=2)
    upstream.script("work", [held, *[reply(text("one two three"))] * CHAINS])
    stored = [each for number in range(CHAINS) for each in chain_of(wire, f"other {number}")]
    work = wire.create(model="local/work", input="Count.", background=True)["id"]
    upstream.wait_for("work", chunks=2)
    primary = site.cluster.owner(f"{{responses:{int(work[6:9], 16) % 64}}}:made")
    other = next(node for node in site.cluster.nodes if node.is_primary and node is not primary)
    replica = site.cluster.replica_of(other)
    site.servers[0].kill()
    primary.kill()
    replica.kill()
    upstream.release("work")
    wait_until(lambda: all(ready(site, each["id"]) for each in [*stored, {"id": work}]))
    with Wire(site.nginx) as after:
        assert [after.retrieve(each["id"]) for each in stored] == stored
        wait_until(lambda: after.retrieve(work)["status"] == "completed")
        assert output_text(after.retrieve(work)).endswith("one two three")
        for each in stored[1::2]:
            following = after.create(model="local/echo", input="again", previous_response_id=each["id"])
            assert output_text(following) == "again"


def ready(site: Site, response_id: str) -> bool:
    """Whether a response is found, in as long as the election takes."""
    url = f"{site.nginx.base_url}/v1/responses/{response_id}"
    return httpx.get(url, timeout=60, trust_env=False).status_code == 200
