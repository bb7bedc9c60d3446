"""The leases of the workers of this process: one of each worker, and one more for each tag of what it runs.

    p/<worker>          the worker is alive until this row expires; the value is when. Those of other tags end with
                        `.<tag>`: they are in the partitions of the responses that the worker runs

The commit from which on a worker runs a response has the lease of its tag, so that another worker does not take it for
that of a dead one. Such a commit may be on its way while a heartbeat renews the same lease, or come long after it was
given up. So it never changes a lease that is there: it makes one that is absent, until the end of the worker's last
renewal, and the next heartbeats renew it. All else that writes a lease does so in turn, each write once the one before
was made or will not come any more. A lease that nothing needs any more is deleted by a heartbeat, since one that is
left to expire may do so before the next heartbeat after a new claim.

A renewal waits only for a moment for partitions that do not answer: their leases are written once they do, while the
next heartbeats renew the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from enum import Enum, auto
from math import inf
from typing import Any

from ..concurrency.tasks import answers_of
from ..core.errors import stopped
from ..core.ids import tag_of
from ..store.commit_outcome import RepeatedCommit
from ..store.records import Delete, Ensure, Put, Records
from .dead_workers import lease_key
from .served_partitions import MOMENT_SECONDS


class _State(Enum):
    ABSENT = auto()
    """There is none, and no write of one comes any more."""
    RENEWED = auto()
    """Heartbeats renew it, or are about to."""
    ENDING = auto()
    """It is to be deleted before it is used again."""


class _Lease:
    """The lease of one worker for one tag.

    Args:
        records: the store.
        key: its key.

    Attributes:
        state: what is to become of it.
        used_until: until then, something may need it, in seconds since the epoch.
    """

    def __init__(self, records: Records, key: str) -> None:
        self._records, self._key = records, key
        self._commit, self._turn = RepeatedCommit(), asyncio.Lock()
        self.state, self.used_until = _State.ABSENT, -inf
        self._until, self._asked, self._made = -inf, 0, 0

    async def used(self, until: float) -> Ensure:
        """Return the op of a commit that begins to need it."""
        if self.state is _State.ENDING:
            await self.end()
        self.state, self.used_until = _State.RENEWED, max(self.used_until, until)
        return Ensure(self._key, repr(until).encode(), until)

    async def renew(self, until: float) -> None:
        """Write it. Renewals that wait for an earlier write are made together."""
        self._until, self._asked = until, self._asked + 1
        async with self._turn:
            if self._made < self._asked:
                asked, last = self._asked, self._until
                # A full store takes it: without its lease, a server would not pack what is idle, which makes room.
                lease = Put(self._key, repr(last).encode(), last, uses_reserve=True)
                await self._commit(lambda: self._records.commit([lease]))
                self._made = asked

    async def end(self) -> None:
        """Delete it, unless that is done or it is used again."""
        async with self._turn:
            if self.state is _State.ENDING:
                await self._commit(lambda: self._records.commit([Delete(self._key)]))
                self.state = _State.ABSENT


class WorkerLeases:
    """The leases of the workers of one process.

    Args:
        records: the store.
        lease_seconds: how long a worker counts as alive after a heartbeat, on the store's clock.
        clock: returns the time of the store's clock, in seconds since the epoch, without a round trip.
    """

    def __init__(self, records: Records, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._records, self._lease_seconds, self._clock = records, lease_seconds, clock
        self._leases: dict[str, dict[int, _Lease]] = {}
        self._until: dict[str, float] = {}
        self._ended = set[str]()

    async def renew(self, worker: str, now: float, holding: Iterable[str], *, first_needed: bool) -> float:
        """Renew the leases that a worker needs, delete those that it does not, and return until when they last.

        Args:
            worker: the worker.
            now: the time of the store's clock, in seconds since the epoch.
            holding: the ids of the responses that it runs.
            first_needed: whether the renewal of the lease of tag 0 has to succeed, whatever the worker runs.

        Raises:
            ApiError: 503, as of `_in_each`.
        """
        self._ended.discard(worker)
        until = self._until[worker] = now + self._lease_seconds
        for tag in {tag_of(each) for each in holding}:
            self._lease(worker, tag).used_until = until
        self._lease(worker, 0).state = _State.RENEWED
        needed, calls = set[int](), dict[int, Coroutine[Any, Any, None]]()
        for tag, lease in self._leases[worker].items():
            if lease.used_until > now:
                needed.add(tag)
                lease.state = _State.RENEWED
            elif tag and lease.state is _State.RENEWED:
                lease.state = _State.ENDING
            if lease.state is not _State.ABSENT:
                calls[tag] = lease.renew(until) if lease.state is _State.RENEWED else lease.end()
        await _in_each(calls, {0} if first_needed else needed, MOMENT_SECONDS)
        return until

    async def ops(self, worker: str, response_id: str) -> Sequence[Ensure]:
        """Return the ops of the worker's lease for a response, for the commit from which on it runs the response.

        Raises:
            ApiError: 503, the partition of the response does not answer, or the worker has ended.
        """
        tag = tag_of(response_id)
        if not tag:
            return []  # that of the worker itself, which is there before it begins
        if worker in self._ended:
            raise stopped(begun=True)  # nothing would delete the lease
        until = self._until.get(worker) or self._clock() + self._lease_seconds
        return [await self._lease(worker, tag).used(until)]

    def tags(self, worker: str) -> set[int]:
        """Return the tags of which the worker may run responses."""
        leases = self._leases.get(worker, {})
        return {0, *(tag for tag, lease in leases.items() if lease.state is _State.RENEWED)}

    async def end(self, worker: str) -> None:
        """Delete a worker's leases: what it holds is stalled from now on.

        Raises:
            ApiError: 503, as of `_in_each`.
        """
        self._ended.add(worker)
        self._lease(worker, 0).state = _State.RENEWED
        calls = dict[int, Coroutine[Any, Any, None]]()
        for tag, lease in self._leases.pop(worker).items():
            if lease.state is not _State.ABSENT:
                lease.state = _State.ENDING
                calls[tag] = lease.end()
        self._until.pop(worker, None)
        await _in_each(calls, calls.keys(), inf)

    def _lease(self, worker: str, tag: int) -> _Lease:
        leases = self._leases.setdefault(worker, {})
        if (lease := leases.get(tag)) is None:
            lease = leases[tag] = _Lease(self._records, lease_key(worker, tag))
        return lease


async def _in_each(calls: Mapping[int, Coroutine[Any, Any, None]], needed: Set[int], seconds: float) -> None:
    """Wait for the writes of the leases of these tags. Those that are left then go on by themselves.

    Args:
        calls: the writes.
        needed: tags in whose partitions the worker holds something. In a partition that does not answer, no commit of
            the worker is made either: one of these has to answer, if there are any.
        seconds: how long to wait for the others of `calls`.

    Raises:
        ApiError: 503, none of `needed` answers.
    """
    tasks = {tag: asyncio.create_task(call) for tag, call in calls.items()}
    for task in tasks.values():
        task.add_done_callback(lambda each: each.cancelled() or each.exception())
    if tasks:
        await asyncio.wait(tasks.values(), timeout=None if seconds == inf else seconds)
    first = {tasks[tag] for tag in needed}
    while (waiting := {each for each in first if not each.done()}) and all(map(_has_failed, first - waiting)):
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    ended = {tag: task for tag, task in tasks.items() if task.done()}
    failures = {tag: each for tag, each in zip(ended, await answers_of(ended.values()), strict=True) if each}
    if needed and failures.keys() >= needed:
        raise failures[min(needed)]


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and task.exception() is not None
