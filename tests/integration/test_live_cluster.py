"""Two servers on a cluster whose partitions move, and of which a primary dies that has no replica."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from llama_stack_responses.core.ids import tag_of
from llama_stack_responses.intervals import DEFAULT
from tests.support.cluster import Cluster, state_of
from tests.support.stack import REPOSITORY, Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text
from tests.support.waiting import wait_until
from tests.support.wire import Wire, error_of

# The store does not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.one_host]

PARTITIONS: Final = 8


@contextmanager
def two_servers(cluster: Cluster, env: dict[str, str], folder: Path, host: Host) -> Iterator[list[Wire]]:
    """Run two servers on a cluster; yield a client of each."""
    folder.mkdir()
    template = (REPOSITORY / "templates" / "redis" / "config.yaml").read_text()
    assert template.count("type: redis\n") == 1
    config = folder / "config.yaml"
    config.write_text(template.replace("type: redis\n", f"type: cluster\n        partitions: {PARTITIONS}\n"))
    stacks = [LiveStack(config, env | cluster.environment, folder / name, host=host) for name in ("one", "other")]
    with ExitStack() as running:
        # A child process ends with the thread that started it.
        starters = running.enter_context(ThreadPoolExecutor(2))
        for stack in stacks:
            running.callback(stack.stop)
        list(starters.map(LiveStack.start, stacks))
        yield [running.enter_context(Wire(stack)) for stack in stacks]


def in_background(wire: Wire, chain: str) -> None:
    """Continue a chain in the background, and wait until that has ended."""
    queued = wire.create(model="local/m", input="More.", previous_response_id=chain, background=True)
    wait_until(lambda: wire.retrieve(queued["id"])["status"] == "completed")


def load(wire: Wire, chain: str, done: Event) -> int:
    """Continue a chain whole, streamed and in the background until the event; return how often. Nothing may fail."""
    count = 0
    while not done.is_set():
        wire.create(model="local/m", input="More.", previous_response_id=chain)
        wire.stream(model="local/m", input="More.", previous_response_id=chain)
        in_background(wire, chain)
        count += 1
    return count


@dataclass(frozen=True)
class Site:
    """Two servers on a cluster.

    Attributes:
        cluster: the cluster.
        wires: a client of each server.
        chains: a response in each partition.
    """

    cluster: Cluster
    wires: list[Wire]
    chains: dict[int, str]

    @contextmanager
    def loaded(self, numbers: Iterable[int]) -> Iterator[None]:
        """Continue the chains of these partitions within the block, and longer: each at least once more behind it."""
        done = Event()
        with ThreadPoolExecutor(PARTITIONS) as pool:
            loads = [pool.submit(load, self.wires[number % 2], self.chains[number], done) for number in numbers]
            try:
                yield
            finally:
                done.set()
            assert min(map(Future.result, loads)) > 0


@pytest.fixture(scope="module")
def site(
    host: Host, stack_env: dict[str, str], upstream_process: UpstreamProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("cluster")
    upstream_process.client.script("m", reply(text("Yes.")))
    env = {**stack_env, "INFERENCE_URL": upstream_process.client.base_url}
    with ExitStack() as running:
        cluster = running.enter_context(Cluster(folder / "nodes", "--appendfsync", "no"))
        wires = running.enter_context(two_servers(cluster, env, folder / "stacks", host))
        chains: dict[int, str] = {}
        while len(chains) < PARTITIONS:
            made = wires[0].create(model="local/m", input=f"Begin {time.monotonic_ns()}.")["id"]
            chains.setdefault(tag_of(made) % PARTITIONS, made)
        yield Site(cluster, wires, chains)


def place(number: int) -> str:
    """Return what all keys of a partition begin with."""
    return f"{{responses:{number}}}:"


def test_partitions_that_move_under_load_fail_no_request(site: Site, upstream: Upstream) -> None:
    upstream.script("m", reply(text("Yes.")))
    before = {number: site.cluster.owner(place(number)) for number in site.chains}
    with site.loaded(site.chains):
        for number in site.chains:
            site.cluster.move(place(number))
    assert all(site.cluster.owner(place(number)) is not owner for number, owner in before.items())
    for wire in site.wires:
        for chain in site.chains.values():
            assert wire.retrieve(chain)["status"] == "completed"


def test_chains_of_a_dead_primary_are_503_and_all_others_go_on(site: Site, upstream: Upstream) -> None:
    upstream.script("m", reply(text("Yes.")))
    cluster, wires, chains = site.cluster, site.wires, site.chains
    dead = cluster.owner(place(0))  # also of what all chains share
    away = {number for number in range(PARTITIONS) if cluster.owner(place(number)) is dead}
    here = [number for number in chains if number not in away]
    with site.loaded(here):
        replica = cluster.replica_of(dead)
        replica.kill()
        dead.kill()
        time.sleep(DEFAULT.lease_seconds + 1)  # by now, leases in its partitions have expired
        for wire in wires:
            answer = wire.get(f"/{chains[0]}")
            assert "response store" in error_of(answer, 503)["message"]
            assert answer.headers["retry-after"] == "1"
            wait_until(lambda wire=wire: wire.http.get("/ready").status_code == 200)  # type: ignore[misc]
        for wire in wires:
            in_background(wire, chains[here[0]])
        dead.start()
        replica.start()
        wait_until(lambda: "cluster_state:ok" in state_of(dead))
        for number in away:
            for wire in wires:  # each sees by itself that the primary is back
                wait_until(lambda wire=wire, number=number: wire.get(f"/{chains[number]}").status_code == 200)  # type: ignore[misc]
            in_background(wires[0], chains[number])
