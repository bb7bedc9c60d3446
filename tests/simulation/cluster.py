"""The servers of a simulation, and what befalls them."""

from __future__ import annotations

from typing import Final

from llama_stack_responses.intervals import Intervals
from tests.simulation.faults import Faults
from tests.simulation.ledger import Ledger
from tests.simulation.server import Server, SharedFiles
from tests.simulation.store import SharedStore
from tests.simulation.world import World

_PAUSES: Final = (1.0, 8.0, 12.0, 25.0)
"""Seconds for which a server stands still: less than its lease, a little more, and much more."""
_CLOCKS: Final = (-86_400.0, -400.0, 90.0, 10_000.0, 40 * 86_400.0)
"""Seconds by which the clock of a machine is ahead once it was set."""
_WRONG_CLOCKS: Final = 0.5
"""Share of the machines whose clock is wrong when a server is started, if any clock is set."""
_OUTAGES: Final = (0.5, 4.0, 15.0)
"""Seconds for which the store is away."""


class Cluster:
    """Some servers on one store.

    Args:
        world: the world.
        size: number of servers.
        faults: what befalls them.

    Attributes:
        features: whether the servers run batches and deliver webhooks.
        servers: all that were ever started.
    """

    def __init__(
        self,
        world: World,
        size: int,
        faults: Faults,
        intervals: Intervals,
        *,
        notifies: bool,
        features: bool,
        partitions: int,
        replicated: bool,
    ) -> None:
        self.world, self.faults, self._intervals, self.features = world, faults, intervals, features
        self.ledger, self.files = Ledger(world), SharedFiles()
        kinds = {"notifies": notifies, "replicated": replicated}
        self.store = SharedStore(world, faults, partitions=partitions, **kinds)
        self.store.watchers.append(self.ledger.on_commit)
        self.servers: list[Server] = []
        self._pause = world.random.choice((0.01, 0.2, 1.5))
        self._restarting = 0
        for _ in range(size):
            self.start()

    @property
    def alive(self) -> list[Server]:
        """The servers that take requests."""
        return [each for each in self.servers if each.alive]

    def start(self) -> None:
        """Start a server."""
        name = f"server{len(self.servers) + 1}"
        given = self.store, self.ledger, self.files, self._intervals, self._pause
        self.servers.append(server := Server(self.world, name, *given, features=self.features))
        if self.faults.clock_jumps and self.world.random.random() < _WRONG_CLOCKS:
            server.process.set_clock(self.world.random.choice(_CLOCKS))

    def heal(self) -> None:
        """Let nothing go wrong any more."""
        self.faults.heal()
        for server in self.alive:
            server.process.set_clock(0.0)
        if not self.alive:
            self.start()

    def torment(self, until: float) -> None:
        """Let things befall the servers each second, until a time."""
        if self.world.now >= until:
            return
        random, faults = self.world.random, self.faults
        if random.random() < faults.outages:
            seconds = random.choice(_OUTAGES)
            faults.away_until = self.world.now + seconds
            self.world.log("store", f"is away for {seconds:.1f} s")
            for subscriber in list(self.store.subscribers):
                subscriber.cut()
        for server in self.alive:
            self._befall(server)
        self.world.after(1.0, lambda: self.torment(until))

    def _befall(self, server: Server) -> None:
        """Let something happen to a server, perhaps."""
        random, faults = self.world.random, self.faults
        if random.random() < faults.clock_jumps:
            server.process.set_clock(random.choice(_CLOCKS))
        chance = random.random()
        if chance < faults.kills:
            server.kill()
            self._restart()
        elif chance < faults.kills + faults.pauses:
            server.process.pause(random.choice(_PAUSES))
        elif chance < faults.kills + faults.pauses + faults.stops:
            server.stop()
            self._restart()

    def _restart(self) -> None:
        self.world.after(self.world.random.uniform(0.0, self.faults.restarts), self.start)
