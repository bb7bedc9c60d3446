"""What is killed at random moments, and started again: servers, and nodes of the cluster that has their store."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Executor

from benchmarks.node_logs import Audit, EngineLosses
from tests.support.cluster import PRIMARIES, Cluster, Node
from tests.support.stack import LiveStack
from tests.support.waiting import wait_until


class Victims:
    """Servers and nodes of which some are killed at the same moment, and then started together.

    Args:
        servers: all servers.
        at_once: how many of them are killed at a time.
        nodes: the nodes of their store; None if it is in no cluster.
        starters: one thread for each server, which starts it: a server ends with that thread.

    Attributes:
        killed: how many servers and nodes were killed so far.
    """

    def __init__(
        self, servers: Sequence[LiveStack], at_once: int, nodes: Nodes | None, chance: random.Random, starters: Executor
    ) -> None:
        self.killed = 0
        self._servers, self._at_once, self._nodes = servers, at_once, nodes
        self._chance, self._starters = chance, starters

    @property
    def at_a_time(self) -> int:
        """How many servers and nodes are killed at a time."""
        return self._at_once + (2 if self._nodes else 0)

    @property
    def elections(self) -> Sequence[float]:
        """The seconds from the death of a primary until another node had its slots."""
        return self._nodes.elections if self._nodes else []

    @property
    def engine_losses(self) -> EngineLosses | None:
        """What the engine has lost, if the store is in a cluster."""
        return self._nodes.audit.losses if self._nodes else None

    def kill_and_restart(self) -> None:
        """Kill some, and wait until they work again."""
        dead = self._chance.sample(self._servers, self._at_once)
        if self._nodes:
            self.killed += self._nodes.kill()
        for server in dead:
            server.kill()
        self.killed += len(dead)
        starting = self._starters.map(LiveStack.start, dead)
        if self._nodes:
            self._nodes.restart()
        list(starting)


class Nodes:
    """The nodes of a cluster: a primary of a partition dies, and so does a replica of another primary.

    Each time it is the primary of a random partition. Once it is back, as a replica of the one that took over, a
    partition is moved to another primary.

    Args:
        partitions: those of the store.
        replicas: how many each primary has.
        unlinked: for so many seconds before its death, a primary acknowledges what its replicas do not get.
        atomic: whether partitions move as a whole, which takes nodes of Valkey 9, and not key by key.

    Attributes:
        audit: compares the files of all nodes after each death.
        elections: as of `Victims`.
    """

    def __init__(
        self,
        cluster: Cluster,
        partitions: int,
        replicas: int,
        unlinked: float,
        chance: random.Random,
        *,
        atomic: bool = False,
    ) -> None:
        self.audit = Audit(cluster, replicas)
        self.elections: list[float] = []
        self._cluster, self._partitions, self._replicas, self._chance = cluster, partitions, replicas, chance
        self._unlinked, self._atomic = unlinked, atomic
        self._place, self._died_at = "", 0.0
        self._dead: list[Node] = []
        self.audit.mark()

    def kill(self) -> int:
        """Kill them; return how many."""
        self._place = self._any_place()
        primary = self._cluster.owner(self._place)
        other = next(node for node in self._cluster.nodes if node.is_primary and node is not primary)
        replicas = self._cluster.replicas_of(primary)
        self._dead = [primary, self._chance.choice(self._cluster.replicas_of(other))]
        if self._unlinked:
            for replica in replicas:
                replica.freeze()
            primary.told("CLIENT", "KILL", "TYPE", "REPLICA")
            time.sleep(self._unlinked)
        for node in self._dead:
            node.kill()
        self._died_at = time.monotonic()
        if self._unlinked:
            for replica in replicas:
                replica.thaw()
        return len(self._dead)

    def restart(self) -> None:
        """Start the replica, and the primary once it has been replaced; compare the files; move a partition."""
        primary, replica = self._dead
        replica.start()
        wait_until(lambda: self._cluster.owner(self._place) is not primary)
        self.elections.append(time.monotonic() - self._died_at)
        primary.start()
        wait_until(self._is_whole)
        self.audit.mark()
        place = self._any_place()
        if self._atomic:
            self._cluster.move_as_a_whole([place])
        else:
            self._cluster.move(place)

    def _is_whole(self) -> bool:
        """Whether each primary has all its replicas, and each of them has what its primary has."""
        primaries = [node for node in self._cluster.nodes if node.is_primary]
        return len(primaries) == PRIMARIES and all(
            sum(replica.follows for replica in self._cluster.replicas_of(node)) == self._replicas for node in primaries
        )

    def _any_place(self) -> str:
        """Return what all keys of some partition begin with."""
        return f"{{responses:{self._chance.randrange(self._partitions)}}}:"
