"""The store of a simulation: the real records in memory, reached through a network that delays and loses.

`SharedStore` is the one store of all servers, and tells watchers of each commit that it applies. `RemoteRecords` is how
one server reaches it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, Final

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.commit_deadline import APPLIED_SECONDS, TRIES
from llama_stack_responses.store.layout import OUTBOX
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import (
    UNAVAILABLE,
    Condition,
    Conflict,
    Delete,
    Op,
    PubSub,
    Put,
    Record,
    Records,
    Unanswered,
    after_prefix,
    woken_by,
    writes_of,
)
from llama_stack_responses.store.routing import tag_of_key
from tests.simulation.faults import Faults
from tests.simulation.part import Part, Pending, Undo
from tests.simulation.world import Process, World

Watcher = Callable[[str, Sequence[Op], "SharedStore"], Undo | None]
"""Called with the name of the server, the ops and the store, after the conditions were checked and before the ops apply.

It returns a function that undoes its notes if the commit is lost in a failover; None if there is nothing to undo.
"""

_TIMEOUT: Final = 1.0
"""Seconds after which a caller gives up at most."""

_NODES: Final = 3
"""Servers on which the partitions are."""
_VISIBLE: Final = 6.0
"""Factor of the probability that a primary dies after a commit whose effects may be visible outside of its partition."""
_SILENT: Final = "The response store has not answered."


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as it is sent.

    Attributes:
        id: its id.
        part: its partition.
        deadline: after this time it is not applied any more.
        ops, conditions: what it does, and when.
    """

    id: bytes
    part: int
    deadline: float
    ops: Sequence[Op]
    conditions: Sequence[Condition]


class SharedStore:
    """The store of all servers.

    Args:
        world: its clock is the store's.
        notifies: whether it has notifications.
        partitions: how many partitions it has.
        replicated: whether they have replicas.

    Attributes:
        parts: the partitions.
        replicated: whether they have replicas.
        watchers: called with each commit.
    """

    def __init__(
        self, world: World, faults: Faults, *, notifies: bool, partitions: int, replicated: bool = False
    ) -> None:
        self.world, self.faults, self.notifies, self.replicated = world, faults, notifies, replicated
        self.parts = [Part(world, faults, replicated=replicated) for _ in range(partitions)]
        self.watchers: list[Watcher] = []
        self.subscribers: list[RemotePubSub] = []

    def commit(self, who: str, commit: Commit) -> None:
        """Apply a commit, and send its notifications, unless it is applied or settled already, or comes too late."""
        ops, conditions, part = commit.ops, commit.conditions, self.parts[commit.part]
        if part.is_known(commit.id) or commit.deadline < self.world.now:
            self.world.log(who, "refused: a commit that was given up")
            return
        try:
            part.check(conditions)
        except Conflict as conflict:
            if self.world.traced:
                self.world.log(who, f"conflict: {', '.join(map(shown, conflict.failed))}")
            raise
        undo = [watcher(who, ops, self) for watcher in self.watchers]
        part.apply(ops, commit.id, [each for each in undo if each])
        if self.world.traced:
            self.world.log(who, f"commits {', '.join(map(shown, ops))}")
        for name in woken_by(ops):
            for subscriber in self.subscribers:
                subscriber.send(name)
        chance = self.faults.failovers * (_VISIBLE if any(map(_is_visible, ops)) else 1.0)
        if chance and self.world.random.random() < chance:
            self.world.after(self.world.random.uniform(0.0, self.faults.behind), partial(self.fail_over, commit.part))

    def fail_over(self, number: int) -> None:
        """Have the node with a partition die: replicas take its place."""
        parts = [each for each in range(len(self.parts)) if each % _NODES == number % _NODES]
        lost = sum(self.parts[each].lacking for each in parts)
        self.world.log("store", f"loses a node, with {lost} commits in partitions {parts}")
        for each in parts:
            self.parts[each].fail_over()
        for subscriber in list(self.subscribers):
            if subscriber.part in parts:
                subscriber.cut()

    def get(self, key: str) -> Record | None:
        """Return a record as it is now."""
        part = self.parts[tag_of_key(key) % len(self.parts)]
        return part.found([key]).get(key)

    def rows(self, prefix: str) -> dict[str, Record]:
        """Return all records whose keys begin with a prefix, in order; empty for all."""
        start, end = (prefix, after_prefix(prefix)) if prefix else ("!", "~")
        found = [row for part in self.parts for row in part.rows(start, end, 100_000)]
        return dict(sorted(found, key=lambda row: row[0]))


def remote_records(store: SharedStore, process: Process) -> Records:
    """Return the store as one server reaches it."""
    parts = [RemoteRecords(store, process, number) for number in range(len(store.parts))]
    return PartitionedRecords(parts) if len(parts) > 1 else parts[0]


class RemoteRecords(Records):
    """A partition of the store as one server reaches it.

    Args:
        store: the store.
        process: the server.
        number: that of the partition.
    """

    transactional: Final = True
    has_own_clock: Final = True

    def __init__(self, store: SharedStore, process: Process, number: int = 0) -> None:
        self._store, self._process, self._number = store, process, number
        self._part = store.parts[number]
        self._server = self._part.server

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        return await self._call(lambda: self._part.found(keys, max_bytes))

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        return await self._call(partial(self._part.rows, start, end, limit, reverse=reverse, max_bytes=max_bytes))

    async def filled(self, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        return await self._call(lambda: list(starmap(self._part.is_filled, ranges)))

    async def ranges(
        self, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        def read() -> list[list[tuple[str, Record]]]:
            return [self._part.rows(*each, limit, reverse=reverse) for each in ranges]

        return await self._call(read)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        # As a driver, which has encoded them before it waits.
        made = Commit(
            self._store.world.random.randbytes(16),
            self._number,
            self._store.world.now + APPLIED_SECONDS,
            tuple(ops),
            tuple(conditions),
        )
        for _ in range(TRIES):
            server = self._server
            try:
                await self._call(lambda: self._store.commit(self._process.name, made), made)
                break
            except Conflict:
                if await self.replicated(self._number, server):
                    raise
        else:
            raise ApiError(UNAVAILABLE, _SILENT, retry_after=1)
        if self._part.replicated and writes_of(ops):
            await self._acknowledged(made.id)

    async def _acknowledged(self, commit_id: bytes) -> None:
        try:
            await self._commit_replicated(commit_id)
        except ApiError as error:
            raise Unanswered(error.message, partial(self._settle, commit_id)) from error

    async def _settle(self, commit_id: bytes) -> bool:
        was_applied = await self._call(lambda: self._part.settle(commit_id))
        if self._part.replicated:
            await self._commit_replicated(commit_id)
        return was_applied

    def server_of(self, _tag: int) -> str:
        """Return what `Replicated` says: the primary that the last call has met."""
        return self._server

    async def replicated(self, _tag: int, server: str) -> bool:
        """Wait as `Replicated` says."""
        if not self._part.replicated:
            return True
        await self._written_replicated(lambda: True)
        return self._server == server

    async def _commit_replicated(self, commit_id: bytes) -> None:
        await self._written_replicated(lambda: self._part.is_known(commit_id))

    async def _written_replicated(self, write: Callable[[], bool]) -> None:
        """Write, and wait until a replica has that and all that was written before.

        Raises:
            ApiError: 503, nothing was written, or no replica has it in time.
        """

        def written() -> Pending | bool:
            return write() and self._part.replication()

        if not await self._call(written):
            raise ApiError(UNAVAILABLE, "The response store's server has too few replicas.", retry_after=1)

    def pubsub(self) -> AbstractAsyncContextManager[PubSub] | None:
        return self._subscribed() if self._store.notifies else None

    async def now(self) -> float:
        return await self._call(lambda: self._store.world.now)

    async def sweep(self, now: float) -> int:
        return await self._call(lambda: self._part.swept(now))

    async def size(self) -> int | None:
        return None

    async def close(self) -> None:
        pass

    @asynccontextmanager
    async def _subscribed(self) -> AsyncGenerator[PubSub]:
        await self._call(lambda: None)
        pubsub = RemotePubSub(self._store, self._process, self._number)
        self._store.subscribers.append(pubsub)
        try:
            yield pubsub
        finally:
            self._store.subscribers.remove(pubsub)

    async def _call[Result](self, call: Callable[[], Result | Pending], commit: Commit | None = None) -> Result:
        """Return what a call returns, which happens between its begin and its end, or after its failure.

        Args:
            call: is made again if it is pending when the primary dies.
            commit: what it commits, if it is a commit.
        """
        if self._process.buried:
            raise ApiError(UNAVAILABLE, "The simulation is over.")
        answer: asyncio.Future[Result] = self._process.create_future()
        lost = Unanswered(_SILENT, partial(self._settle, commit.id)) if commit else None
        _Call(self._store, self._process, self._part, call, answer, lost).send(self._met)
        return await answer

    def _met(self) -> None:
        """Note which primary has got a call."""
        self._server = self._part.server


class _Call[Result]:
    """A call on its way.

    Args:
        part: the partition that it is for.
        call: makes it.
        answer: what the caller waits for.
        lost: the error if the answer to a commit is lost; None for other calls.
    """

    def __init__(
        self,
        store: SharedStore,
        process: Process,
        part: Part,
        call: Callable[[], Result | Pending],
        answer: asyncio.Future[Result],
        lost: Unanswered | None,
    ) -> None:
        self._store, self._world, self._process, self._part = store, store.world, process, part
        self._call, self._answer, self._lost = call, answer, lost
        self._fate = store.faults.fate(self._world.random, self._world.now, writes=lost is not None)

    def send(self, met: Callable[[], None]) -> None:
        """Send it; `met` is called when a primary receives it."""
        self._met = met
        there = self._seconds(self._store.faults.longest_call)
        if self._fate == "refused":
            self._reply(there, error=ApiError(UNAVAILABLE, "The response store cannot be reached.", retry_after=1))
            return
        if self._fate != "answered":
            given_up = there + self._seconds(_TIMEOUT)
            self._give_up(given_up)
            there = given_up + self._seconds(self._store.faults.latest) if self._fate == "late" else there
        self._world.after(there, self._arrive)

    def _give_up(self, seconds: float) -> None:
        late = self._fate == "late"
        self._process.log("gives a commit up that comes late" if late else "gets no answer of the store")
        self._reply(seconds, error=self._lost or ApiError(UNAVAILABLE, _SILENT, retry_after=1))

    def _arrive(self) -> None:
        if self._part.away_until > self._world.now:
            self._wait_for_primary()
            return
        result, error = None, None
        self._met()
        try:
            result = self._call()
        except Conflict as conflict:
            error = conflict
        if isinstance(result, Pending):
            result.then = self._answer_pending
        else:
            self._answer_with(result, error)

    def _wait_for_primary(self) -> None:
        """Try again once the partition has a primary, or give up before."""
        seconds = self._part.away_until - self._world.now + self._seconds(self._store.faults.longest_call)
        if seconds < _TIMEOUT or self._fate == "late":
            self._world.after(seconds, self._arrive)
        elif self._fate == "answered":
            self._reply(_TIMEOUT, error=ApiError(UNAVAILABLE, "The partition has no primary.", retry_after=1))

    def _answer_pending(self, answer: bool | None) -> None:
        if answer is None:
            self._world.after(self._seconds(self._store.faults.longest_call), self._arrive)
        else:
            self._answer_with(answer)

    def _answer_with(self, result: Any, error: Exception | None = None) -> None:
        if self._fate == "answered":
            self._reply(self._seconds(self._store.faults.longest_call), result, error)

    def _reply(self, seconds: float, result: Result | None = None, error: Exception | None = None) -> None:
        """Answer the caller after some seconds, unless it waits no more."""

        def reply() -> None:
            if self._answer.done():
                return
            if error:
                self._answer.set_exception(error)
            else:
                self._answer.set_result(result)  # type: ignore[arg-type]

        self._world.after(seconds, reply, self._process)

    def _seconds(self, most: float) -> float:
        return self._world.random.uniform(0.0, most)


class RemotePubSub:
    """The notifications that one server receives, of a partition.

    Attributes:
        part: the number of the partition.
    """

    def __init__(self, store: SharedStore, process: Process, part: int) -> None:
        self._store, self._process, self.part = store, process, part
        self._names: set[str] = set()
        self._queue = deque[str]()
        self._waiter: Any = None
        self._lost = False

    async def subscribe(self, names: Collection[str]) -> None:
        for name in sorted(names):
            self._later(partial(self._subscribed, name))

    async def unsubscribe(self, names: Collection[str]) -> None:
        self._names.difference_update(names)

    async def receive(self) -> str:
        while not self._queue:
            if self._lost or self._process.buried:
                raise ApiError(UNAVAILABLE, "The connection for notifications is lost.")
            self._waiter = self._process.create_future()
            await self._waiter
        return self._queue.popleft()

    def send(self, name: str) -> None:
        """Send a notification, which may be lost."""
        if name in self._names and self._store.world.random.random() >= self._store.faults.notifications_lost:
            self._later(partial(self._arrive, name))

    def cut(self) -> None:
        """Lose the connection."""
        self._lost = True
        self._names.clear()
        self._process.ready(self._wake)

    def _subscribed(self, name: str) -> None:
        if not self._lost:
            self._names.add(name)
            self._later(partial(self._arrive, name))

    def _arrive(self, name: str) -> None:
        self._process.ready(partial(self._receive, name))

    def _receive(self, name: str) -> None:
        self._queue.append(name)
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _later(self, call: Callable[[], None]) -> None:
        world = self._store.world
        world.after(world.random.uniform(0.0, self._store.faults.longest_call), call)


def _is_visible(op: Op) -> bool:
    return (isinstance(op, Put) and op.key.startswith((OUTBOX, "e/"))) or isinstance(op, Delete)


def shown(each: Op | Condition) -> str:
    """Return an op or a condition for the trace."""
    kind = type(each).__name__
    where = getattr(each, "key", None) or getattr(each, "name", None) or getattr(each, "prefix", "")
    version = f"={each.version}" if hasattr(each, "version") else ""
    return f"{kind} {where}{version}"
