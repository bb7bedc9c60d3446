"""One schedule: a seed decides the servers, the clients, the faults, and what runs when."""

from __future__ import annotations

import gc
import logging
import os
import random as random_module
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

from llama_stack_responses.config.server_profiles import ServerProfiles
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.rows import DAYS, PENDING, table_of
from llama_stack_responses.generation import factory
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.store import codec
from llama_stack_responses.store.records import UNAVAILABLE
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.talks import Talks
from tests.simulation.workload import OWNERS, Clients
from tests.simulation.world import Endless, World

_BUSY_SECONDS: Final = 30.0
"""Virtual seconds in which things go wrong."""
_PATIENCE: Final = 1_200.0
"""Virtual seconds after which everything has to be done that was begun."""
BURSTS: Final = 0.2
"""Share of the schedules in which nothing goes wrong, and some jobs are queued at almost the same time."""
_MANY: Final = 4
"""Clients whose responses one server may not run at the same time."""
_PROMPT_SECONDS: Final = 0.4
_PROMPT_CALLS: Final = 16
"""The time and the calls of the store that it takes at most until a job is claimed, or an event is read."""
_PARTITION_CALLS: Final = 8
"""Further calls if there are several partitions: a server asks in which of them jobs wait."""
_RETAINED_SECONDS: Final = 5 * 86_400.0
_SWEPT_SECONDS: Final = 200.0
_WORK: Final = ("j/resp_", "q/", "h/", "k/", "d/", "v/", "o/", "ob/", "g/", "bt/q/", "bt/r/", "bt/t/", "wh/e/", "wh/q/")
"""Rows of work that is not done yet."""
_KEPT: Final = ("p/", "sw/reached", "sw/conversations", "bt/c/", "wh/c/", "oa/", "up/", "us/")
"""Rows that stay when all that users had is gone: `docs/explanation/storage.md`."""

_POLLED: Final = Intervals(poll_seconds=1.0, event_poll_seconds=1.0, fast_poll_seconds=0.2)
_NOTIFIED: Final = Intervals(fallback_poll_seconds=5.0)
_TRUSTED: Final = Intervals(fallback_poll_seconds=100_000.0)
"""Where no notification is lost, nothing may depend on a poll."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a schedule.

    Attributes:
        seed: its seed.
        violations: what must not be; empty if all is well.
        trace: who did what when, a line each; empty unless it was traced.
    """

    seed: int
    violations: list[str]
    trace: list[str]


class Schedule:
    """One schedule.

    Args:
        seed: decides all of it.
        partitions: how many partitions the store has.
        replicated: whether they have replicas, and primaries die.
        bursts: the share of the schedules in which nothing goes wrong, and some jobs are queued at almost the same time.
    """

    def __init__(
        self,
        seed: int,
        *,
        traced: bool = False,
        partitions: int = 1,
        replicated: bool = False,
        bursts: float = BURSTS,
    ) -> None:
        self.world = World(seed, traced=traced)
        random = self.world.random
        self._is_burst = random.random() < bursts and not replicated
        self._faults = Faults(longest_call=random.choice((0.02, 0.1))) if self._is_burst else Faults.draw(random)
        if replicated:
            self._faults = self._faults.with_failovers(random)
        notifies = random.random() < 0.7
        features = random.random() < 0.5 and not self._is_burst
        calm = Faults(longest_call=self._faults.longest_call)
        intervals = _POLLED if not notifies else _NOTIFIED if self._faults.any else _TRUSTED
        kinds = {"notifies": notifies, "features": features, "replicated": replicated}
        size = random.choice((1, 2, 2, 3))
        if replicated:
            # Notes for other partitions are met while replicas lack them.
            intervals = replace(intervals, partition_look_seconds=1.0, heartbeat_seconds=1.0)
        self.cluster = Cluster(self.world, size, calm, intervals, **kinds, partitions=partitions)
        self.clients = Clients(self.cluster)
        self.talks = Talks(self.clients)
        self.ledger = self.cluster.ledger

    def run(self) -> None:
        """Run it; the ledger has the violations."""
        self._prepare()
        self._work()
        if self._failed or not self._settle():
            return
        self._check()
        if not self._failed:
            self._clear()

    @property
    def violations(self) -> list[str]:
        """What was found that must not be."""
        return self.ledger.violations

    @property
    def _failed(self) -> bool:
        self.ledger.violations += self.world.defects
        self.world.defects.clear()
        return bool(self.ledger.violations)

    def _prepare(self) -> None:
        if self.cluster.features and self.world.random.random() < 0.8:
            self.clients.start("endpoint", lambda: self.clients.endpoint(OWNERS[0]))
            self._await("no endpoint is created")

    def _work(self) -> None:
        """Let clients work while things go wrong, and then until they are done."""
        world, until = self.world, self.world.now + _BUSY_SECONDS
        faults = self.cluster.faults
        faults.become(self._faults)
        self._begin()
        self.cluster.torment(until)
        world.run_until(lambda: not self.clients.waiting or bool(self._failed), until)
        world.log("world", "nothing goes wrong any more")
        self.cluster.heal()
        self._await("do not end: ")

    def _begin(self) -> None:
        """Start the clients."""
        random, clients = self.world.random, self.clients
        within = 0.2 if self._is_burst else random.choice((0.0, 0.05, 5.0))
        number_of_clients = 3 if self._is_burst else random.choice((1, 2, 3, 4))
        wakes = self.cluster.store.notifies or len(self.cluster.servers) == 1
        if wakes and not self._faults.any and not self.cluster.features and number_of_clients < _MANY:
            most = _PROMPT_CALLS + (_PARTITION_CALLS if len(self.cluster.store.parts) > 1 else 0)
            self.ledger.prompt_seconds = _PROMPT_SECONDS + most * self._faults.longest_call
        for number in range(number_of_clients):
            clients.start(f"client {number}", self._client(number), random.uniform(0.0, within))

    def _client(self, number: int) -> Callable[[], Awaitable[None]]:
        """Return what a client does."""
        random, clients = self.world.random, self.clients
        owner, kind = random.choice(OWNERS), random.random()
        if kind < 0.4 or self._is_burst:
            return partial(clients.background, owner, random.choice((0, 1, 2)))
        if kind < 0.6:
            senders, background = random.choice((1, 2, 3)), random.random() < 0.5
            return partial(clients.keyed, owner, f"key {number}", senders, background=background)
        if kind < 0.8:
            return partial(self.talks.hold, owner, random.choice((1, 2, 3)), random.choice((2, 4)))
        if kind < 0.9 or not self.cluster.features:
            return partial(clients.foreground, owner, random.choice((1, 1, 6)))
        return partial(clients.batch, owner, random.choice((1, 3, 6)))

    def _await(self, complaint: str) -> None:
        done = self.world.run_until(lambda: not self.clients.waiting or self._failed, self.world.now + _PATIENCE)
        if not done:
            self.ledger.fail(f"{complaint}{', '.join(self.clients.waiting)}")

    def _settle(self) -> bool:
        """Wait until no work is left; return whether that comes."""
        left, until = list[str](), self.world.now + _PATIENCE
        while self.world.now < until and not self._failed:
            if not (left := self._left(lambda key: key.startswith(_WORK))):
                return True
            self.world.run_until(lambda: False, self.world.now + 5.0)
        if left:
            self.ledger.fail(f"work is left that nobody does: {', '.join(left)}")
        return False

    def _left(self, chosen: Callable[[str], bool]) -> list[str]:
        """Return the chosen keys of rows that do not expire by themselves."""
        store = self.cluster.store
        # What counts for an owner is in another partition than the job: it may be written after the job's end.
        return [key for key in store.rows("") if chosen(key) and not (len(store.parts) > 1 and key.startswith("d/"))]

    def _check(self) -> None:
        """Check that all is as clients were told."""
        promises, store, ledger = self.clients.promises, self.cluster.store, self.ledger
        for response_id in sorted(promises.stored.keys() - promises.deleted):
            if store.get(f"r/{response_id}") is None:
                ledger.fail(f"{response_id} is lost, although its creation was acknowledged")
            elif response_id not in ledger.outcomes:
                ledger.fail(f"{response_id} has no outcome")
        for response_id, response in promises.final.items():
            was, now = response["status"], ledger.outcomes.get(response_id)
            if was != now:
                ledger.fail(f"{response_id} was returned as {was}, and is {now}")
        self._check_usage()
        for owner in promises.endpoints.values():
            self._check_messages(owner)
        for owner in OWNERS:
            self.clients.start(f"list of {owner.principal}", partial(self.clients.check_list, owner))
        self._await("do not end: ")

    def _check_usage(self) -> None:
        """Check that what each response has used is counted, once."""
        ledger, store = self.ledger, self.cluster.store
        if not store.replicated:
            return  # it is not counted
        if uncounted := ledger.outcomes.keys() - ledger.used.keys():
            ledger.fail(f"what responses have used is not counted: {', '.join(sorted(uncounted))}")
        rows = [codec.decode(record.value) for record in store.rows(DAYS.prefix).values()]
        counted = sum(counts["requests"] for table in rows for counts in table_of(table).values())
        if counted + len(store.rows(PENDING)) != len(ledger.used):
            ledger.fail(f"the tables of usage have {counted} of {len(ledger.used)} responses")

    def _check_messages(self, owner: Owner) -> None:
        """Check that the receiver of an owner has got one event for each end."""
        promises, ledger = self.clients.promises, self.ledger
        # A response that is deleted while its server is dead has no end.
        ended = [each for each in promises.background & ledger.outcomes.keys() if promises.stored[each] == owner]
        ended += [each for each, of in promises.batches.items() if of == owner]
        for each in ended:
            if len(set(ledger.received.get(each, ()))) != 1:
                ledger.fail(f"the receiver has got {ledger.received.get(each)} of the end of {each}")

    def _clear(self) -> None:
        """Delete all that users have, and check that nothing is left of it."""
        clients, promises = self.clients, self.clients.promises
        if self.world.random.random() < 0.5:
            for response_id, owner in promises.stored.items():
                clients.start(f"deletion of {response_id}", partial(clients.delete, owner, response_id))
            for each, owner in promises.conversations.items():
                clients.start(f"deletion of {each}", partial(clients.delete_conversation, owner, each))
        for endpoint_id, owner in promises.endpoints.items():
            clients.start(f"deletion of {endpoint_id}", partial(clients.delete_endpoint, owner, endpoint_id))
        self._await("do not end: ")
        for server in self.cluster.alive:
            server.stop()
        self.world.run_until(lambda: not any(each.process.alive for each in self.cluster.servers), self.world.now + 60)
        self.world.now += _RETAINED_SECONDS
        # A job whose creation was not acknowledged may have waited until now. Its conversation expires before it runs.
        self.ledger.prompts.clear()
        self.cluster.start()
        until, left = self.world.now + _SWEPT_SECONDS, [""]
        while left and self.world.now < until and not self._failed:
            self.world.run_until(lambda: False, self.world.now + 1.0)
            left = self._left(lambda key: not key.startswith(_KEPT))
        if left and not self._failed:
            self.ledger.fail(f"rows are left after all was deleted: {', '.join(left)}")


def simulate(
    seed: int,
    *,
    traced: bool = False,
    partitions: int | None = None,
    replicated: bool | None = None,
    bursts: float = BURSTS,
) -> Outcome:
    """Run the schedule of a seed, and return what came of it.

    Args:
        partitions: how many partitions the store has; None for one with even seeds, and eight with odd ones.
        replicated: whether primaries die; None for half of the stores with partitions, by the seed.
        bursts: as of `Schedule`.
    """
    kind: dict[str, Any] = {
        "partitions": partitions or (8 if seed % 2 else 1),
        "replicated": seed % 4 == 3 if replicated is None else replicated,
        "bursts": bursts,
    }
    return outcome_of(seed, lambda: Schedule(seed, traced=traced, **kind), traced=traced)


class Simulated(Protocol):
    """A schedule: its world, and what was found that must not be."""

    world: World

    @property
    def violations(self) -> list[str]: ...

    def run(self) -> object: ...


def outcome_of(seed: int, make: Callable[[], Simulated], *, traced: bool) -> Outcome:
    """Make and run a schedule of which a seed decides all, and return what came of it."""
    with _determined(seed):
        schedule = make()
        handler = _Lines(schedule.world)
        logger = logging.getLogger("llama_stack_responses")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if traced else logging.ERROR)
        logger.propagate = False
        try:
            schedule.run()
        except Endless as endless:
            schedule.violations.append(str(endless))
        finally:
            violations, trace = list(schedule.violations), list(schedule.world.trace)
            schedule.world.end()
            logger.setLevel(level)
            logger.propagate = propagate
            logger.removeHandler(handler)
    return Outcome(seed, violations, trace)


class _Lines(logging.Handler):
    """Puts log lines into the trace. An unexpected exception that a server logs is a defect."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.log("log", f"{record.levelname.lower()} {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        if error and record.levelno >= logging.ERROR and getattr(error, "status", None) != UNAVAILABLE:
            self._world.defects.append(f"{record.getMessage()}: {error!r}")


@cache
def _profiles(file: Path | None) -> ServerProfiles:
    """Return what is known of model servers, which would be read from its file for each server."""
    return ServerProfiles(file)


@contextmanager
def _determined(seed: int) -> Iterator[None]:
    """Let all randomness within the block depend on the seed: ids, jitter, nonces.

    Garbage of cycles is collected behind the block: an asynchronous generator that is collected closes in a new step of
    its process, and when that happens depends on all that was allocated in this Python before.
    """
    collects = gc.isenabled()
    gc.disable()
    numbers, state = Random(seed), random_module.getstate()
    before = os.urandom, random_module._urandom, factory.ServerProfiles  # type: ignore[attr-defined]
    factory.ServerProfiles = _profiles  # type: ignore[attr-defined, assignment]
    random_module.seed(seed)
    sleep, time.sleep = time.sleep, lambda _: None  # nothing may take real time
    os.urandom = random_module._urandom = numbers.randbytes  # type: ignore[attr-defined]
    try:
        yield
    finally:
        time.sleep = sleep
        os.urandom, random_module._urandom, factory.ServerProfiles = before  # type: ignore[attr-defined]
        random_module.setstate(state)
        if collects:
            gc.enable()
            gc.collect(1)
