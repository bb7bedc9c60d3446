"""A real Valkey Cluster: three primaries with a replica each, or with several."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Self, override

from redis import Redis
from redis.crc import key_slot

from tests.support.database import READY_SECONDS
from tests.support.process import free_port
from tests.support.valkey import PATIENCE, Valkey
from tests.support.waiting import wait_until

PRIMARIES: Final = 3
SLOTS: Final = 16384
NODE_TIMEOUT: Final = 2000
"""Milliseconds without an answer after which a node counts as dead."""


class Node(Valkey):
    """A node of a cluster."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        super().__init__(folder, *options, password=password)
        self.bus = free_port()

    def command(self, options: tuple[str, ...]) -> list[str]:
        """Return the command line of a Valkey that waits for the others."""
        command = [*super().command(options), "--cluster-enabled", "yes", "--cluster-port", str(self.bus)]
        command += ["--cluster-node-timeout", str(NODE_TIMEOUT), "--cluster-require-full-coverage", "no"]
        command += ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
        return command + (["--masterauth", self.password] if self.password else [])

    @contextmanager
    def asking(self) -> Iterator[Redis]:
        """Yield a client of this node alone."""
        with Redis.from_url(f"{self.url}?{PATIENCE}", decode_responses=True) as client:
            yield client

    def told(self, *command: str | int) -> Any:
        """Return what the node answers to a command."""
        with self.asking() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def info(self, section: str) -> Mapping[str, Any]:
        """Return a section of what the node says of itself."""
        with self.asking() as client:
            found: Mapping[str, Any] = client.info(section)
            return found

    @property
    def name(self) -> str:
        """The id of the node."""
        return str(self.told("CLUSTER MYID"))

    @property
    def follows(self) -> bool:
        """Whether the node is a replica that has what its primary has."""
        return self.info("replication").get("master_link_status") == "up"

    @property
    def is_primary(self) -> bool:
        """Whether the node takes writes."""
        return bool(self.info("replication")["role"] == "master")


class ChosenNode(Node):
    """A node that runs another program than the one of the tests, if it is set."""

    program = ""

    @override
    def command(self, options: tuple[str, ...]) -> list[str]:
        known = super().command(options)
        return [self.program or known[0], *known[1:]]


class OneNode(Node):
    """A cluster of one node, which has all slots."""

    @property
    def url(self) -> str:
        """The URL of a store in it, including the password: a cluster has no databases."""
        return super().url.removesuffix("/0")

    def answers(self) -> bool:
        """Whether it serves all slots."""
        if not super().answers():
            return False
        if "cluster_slots_assigned:0" in state_of(self):
            self.told("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        return "cluster_state:ok" in state_of(self)


class Cluster:
    """A cluster with its data in `folder`; a `with` block starts and stops it.

    Args:
        folder: its parts are the folders of the nodes.
        options: those of each node.
        replicas: how many each primary has.
    """

    def __init__(
        self, folder: Path, *options: str, password: str = "", node: type[Node] = Node, replicas: int = 1
    ) -> None:
        self.password, self._replicas = password, replicas
        count = PRIMARIES * (1 + replicas)
        self.nodes = [node(folder / str(number), *options, password=password) for number in range(count)]
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """The URL of a store in it, including the password: two of its nodes."""
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[1:3])

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that configure the template `cluster`, with long timeouts."""
        return {"REDIS_URL": f"{self.url}/?{PATIENCE}"}

    def __enter__(self) -> Self:
        """Start the nodes and join them."""
        try:
            for node in self.nodes:
                self._running.enter_context(node)
            self._join()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all nodes."""
        self._running.close()

    def owner(self, key: str) -> Node:
        """Return the primary that has the slot of a key."""
        slot = key_slot(key.encode())
        living = next(node for node in self.nodes if node.runs)
        ranges = living.told("CLUSTER SLOTS")
        port = next(nodes[0][1] for first, last, *nodes in ranges if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def replica_of(self, primary: Node) -> Node:
        """Return the replica of a primary, or one of them."""
        return self.replicas_of(primary)[0]

    def replicas_of(self, primary: Node) -> list[Node]:
        """Return the replicas that are connected to a primary."""
        told = primary.info("replication")
        ports = [told[f"slave{number}"]["port"] for number in range(told["connected_slaves"])]
        return [node for node in self.nodes if node.port in ports]

    def move(self, key: str) -> None:
        """Move the slot of a key to another primary, key by key, while clients use it.

        Only one at a time: two primaries that send each other keys wait for each other.
        """
        slot, source = key_slot(key.encode()), self.owner(key)
        target = next(node for node in self.nodes if node.runs and node.is_primary and node is not source)
        target.told("CLUSTER SETSLOT", slot, "IMPORTING", source.name)
        source.told("CLUSTER SETSLOT", slot, "MIGRATING", target.name)
        secret = ["AUTH", self.password] if self.password else []
        while keys := source.told("CLUSTER GETKEYSINSLOT", slot, 100):
            source.told("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, *secret, "KEYS", *keys)
        for node in (target, source):
            node.told("CLUSTER SETSLOT", slot, "NODE", target.name)

    def move_as_a_whole(self, keys: Sequence[str]) -> None:
        """Move the slots of these keys to the next primaries, all at once, as Valkey 9 does it."""
        primaries = [node for node in self.nodes if node.runs and node.is_primary]
        sources = {key: self.owner(key) for key in keys}
        for source in set(sources.values()):
            target = primaries[(primaries.index(source) + 1) % len(primaries)]
            slots = [key_slot(key.encode()) for key in keys if sources[key] is source]
            ranges = [each for slot in slots for each in (slot, slot)]
            source.told("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *ranges, "NODE", target.name)
        wait_until(lambda: all(self.owner(key) is not source for key, source in sources.items()), every=0.01)

    def _join(self) -> None:
        primaries, replicas = self.nodes[:PRIMARIES], self.nodes[PRIMARIES:]
        for number, primary in enumerate(primaries):
            first, end = SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES
            primary.told("CLUSTER ADDSLOTSRANGE", first, end - 1)
        for number, node in enumerate(self.nodes):
            node.told("CLUSTER SET-CONFIG-EPOCH", number + 1)
            self.nodes[0].told("CLUSTER MEET", "127.0.0.1", node.port, node.bus)
        wait_until(lambda: all(self._knows_all(node) for node in self.nodes), READY_SECONDS)
        for primary, replica in zip(cycle(primaries), replicas, strict=False):
            replica.told("CLUSTER REPLICATE", primary.name)
        wait_until(lambda: all(replica.follows for replica in replicas), READY_SECONDS)
        wait_until(lambda: all(self._is_ready(node) for node in self.nodes), READY_SECONDS)

    def _knows_all(self, node: Node) -> bool:
        return f"cluster_known_nodes:{len(self.nodes)}" in state_of(node)

    def _is_ready(self, node: Node) -> bool:
        """Whether the node knows the primary and the replica of all slots."""
        shards = [nodes for _, _, *nodes in node.told("CLUSTER SLOTS")]
        return "cluster_state:ok" in state_of(node) and [*map(len, shards)] == [1 + self._replicas] * PRIMARIES


def state_of(node: Node) -> str:
    """Return what a node says of the cluster."""
    told = node.told("CLUSTER INFO")
    return told if isinstance(told, str) else "\n".join(f"{name}:{value}" for name, value in told.items())
