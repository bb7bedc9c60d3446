"""A partition of a simulated store: what its primary has, and what a replica has of it.

Everybody reads what the primary has. A replica gets each commit a little later, in order. If the primary dies, the
replica takes its place: commits that it lacks are undone, as if they had never been, also what was noted of their ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Conflict, Op, Record, writes_of
from tests.simulation.faults import Faults
from tests.simulation.world import World

_REMEMBERED_SECONDS: Final = 60.0
"""Seconds for which the store remembers the ids of commits."""
_WAIT_SECONDS: Final = 1.0
"""Seconds for which a server waits at most until replicas have what it has written: `_ACKNOWLEDGED_SECONDS`."""
_ELECTIONS: Final = (0.0, 0.5, 3.0)
"""Seconds for which a partition is away until a replica takes the place of its primary."""
_RETURNS: Final = (0.0, 0.0, 2.0, 8.0)
"""Seconds after which a partition has a replica again."""

type Undo = Callable[[], object]
"""Takes back what a commit has changed."""


@dataclass(slots=True)
class Pending:
    """An answer that comes once replicas have what was written before, or too late, or not at all.

    Attributes:
        then: called with whether they have it; with None if the primary has died.
    """

    then: Callable[[bool | None], object] | None = None

    def answer(self, answer: bool | None) -> None:
        """Answer, unless it is answered."""
        if then := self.then:
            self.then = None
            then(answer)


@dataclass(slots=True)
class _Write:
    """What a replica may lack.

    Attributes:
        undo: takes it back, each behind the next.
        waiting: those that wait until a replica has it.
    """

    undo: Sequence[Undo]
    waiting: list[Pending] = field(default_factory=list)


class Part(MemoryRecords):
    """A partition.

    Args:
        world: its clock is the store's.
        faults: how far replicas are behind.
        replicated: whether it has replicas.

    Attributes:
        server: the name of the primary; empty without replicas.
        away_until: until then no server reaches it, in seconds since the epoch.
        replicated: whether it has replicas.
    """

    def __init__(self, world: World, faults: Faults, *, replicated: bool) -> None:
        super().__init__(clock=lambda: world.now)
        self._world, self._faults, self.replicated = world, faults, replicated
        self.server, self.away_until = "1" if replicated else "", 0.0
        self._lacking = deque[_Write]()
        self._caught_up_at = self._returns_at = 0.0
        self._known: dict[bytes, tuple[float, bool]] = {}

    # Commits.

    def apply(self, ops: Sequence[Op], commit_id: bytes, undo: Sequence[Undo]) -> None:
        """Apply a commit, whose conditions hold.

        Args:
            undo: takes back what else depends on it.
        """
        writes = writes_of(ops)
        self._note(commit_id, [*undo, *map(self._as_it_was, dict.fromkeys(op.key for op in writes))], applied=True)
        now = self._world.now
        for op in writes:
            self._apply(op, ANONYMOUS.identity, now)

    def is_known(self, commit_id: bytes) -> bool:
        """Return whether a commit was applied or settled in the last minute."""
        return self._known.get(commit_id, (0.0, False))[0] > self._world.now

    def settle(self, commit_id: bytes) -> bool:
        """Apply the commit of this id no more; return whether it was applied."""
        if not self.is_known(commit_id):
            self._note(commit_id, [], applied=False)
        return self._known[commit_id][1]

    def _note(self, commit_id: bytes, undo: Sequence[Undo], *, applied: bool) -> None:
        """Note that a commit is not applied any more. As a server, the store remembers that for a limited time."""
        self._known[commit_id] = self._world.now + _REMEMBERED_SECONDS, applied
        if self.replicated:
            self._lacking.append(_Write([*undo, lambda: self._known.pop(commit_id)]))
            seconds = self._world.random.uniform(0.0, self._faults.behind)
            self._caught_up_at = max(self._caught_up_at, self._returns_at, self._world.now + seconds)
            self._world.at(self._caught_up_at, self._replicates(self.server))

    def _as_it_was(self, key: str) -> Undo:
        """Return what puts a row back as it is now."""
        before = self._entries.get(key)

        def put_back() -> None:
            self._remove(key)
            if before:
                self._add(key, ANONYMOUS.identity, before)

        return put_back

    # Reads, without the coroutines of `Records`: a schedule has thousands.

    def rows(
        self, start: str, end: str, limit: int, *, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Return what `range` does."""
        return self._range(start, end, limit, reverse=reverse, max_bytes=max_bytes)

    def found(self, keys: Sequence[str], max_bytes: int | None = None) -> dict[str, Record]:
        """Return what `get_many` does."""
        return self._read(keys, max_bytes)

    def is_filled(self, start: str, end: str) -> bool:
        """Return whether a range has a row. Most are asked of partitions that have none there."""
        now = self._world.now
        first, last = bisect_left(self._keys, start), bisect_left(self._keys, end)
        return any(self._live(key, now) for key in self._keys[first:last])

    def swept(self, now: float) -> int:
        """Do what `sweep` does."""
        return self._sweep(now)

    def check(self, conditions: Sequence[Condition]) -> None:
        """Check the conditions of a commit.

        Raises:
            Conflict: some do not hold.
        """
        now = self._world.now
        if failed := [each for each in conditions if not self._holds(each, now)]:
            raise Conflict(failed)

    # Replicas.

    def replication(self) -> Pending:
        """Return what is answered once a replica has what was written before."""
        pending = Pending()
        if self._lacking:
            self._lacking[-1].waiting.append(pending)
            self._world.after(_WAIT_SECONDS, lambda: pending.answer(False))
        elif self._returns_at > self._world.now:
            self._world.after(_WAIT_SECONDS, lambda: pending.answer(False))
            self._world.at(self._returns_at, lambda: pending.answer(True))
        else:
            self._world.after(0.0, lambda: pending.answer(True))
        return pending

    def fail_over(self) -> None:
        """Have a replica take the place of the primary, unless there is none."""
        world = self._world
        if not self.replicated or max(self.away_until, self._returns_at) > world.now:
            return
        lacking, self._lacking = self._lacking, deque()
        while lacking:
            lost = lacking.pop()
            for undo in reversed(lost.undo):
                undo()
            for pending in lost.waiting:
                pending.answer(None)
        self.server = str(int(self.server) + 1)
        self.away_until = world.now + world.random.choice(_ELECTIONS)
        self._returns_at = self.away_until + world.random.choice(_RETURNS)

    @property
    def lacking(self) -> int:
        """How many commits the replica lacks."""
        return len(self._lacking)

    def _replicates(self, server: str) -> Callable[[], object]:
        def replicate() -> None:
            if server == self.server:
                for pending in self._lacking.popleft().waiting:
                    pending.answer(True)

        return replicate
