"""The worker's heartbeat: the record by which other processes know that this one is alive.

The worker renews it every `Intervals.heartbeat_seconds`; a lease that is not renewed ends after `lease_seconds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from ..intervals import DEFAULT, Intervals
from ..store.records import Op
from .dead_workers import DeadWorkers
from .queue import JobQueue


class Heartbeat:
    """Renews the lease of one worker, and says whether a worker without a lease is dead.

    Args:
        jobs: the queue, which stores the lease.
        worker: the worker's id.
    """

    def __init__(self, jobs: JobQueue, worker: str, intervals: Intervals = DEFAULT) -> None:
        self._jobs = jobs
        self._worker = worker
        self._intervals = intervals
        self._alive = False
        self._turn = asyncio.Lock()
        self._renewed: float | None = None
        self._patient_until = 0.0
        self.holding: list[Callable[[], Iterable[str]]] = []
        """Return the ids of the responses that this worker runs."""

    @property
    def others_are_dead(self) -> bool:
        """Whether a worker without a lease is dead, at the time of the last renewal.

        It may be alive for `grace_seconds` after the start of this worker, since the store may just have recovered from
        an outage. The same holds after the store's clock jumped or went back between two renewals, for `lease_seconds`
        if the lease of this worker had ended: during an outage or a sleep of the machine no worker renews its lease,
        and a clock that is set expires leases.
        """
        return self._renewed is not None and self._renewed >= self._patient_until

    @property
    def numbers(self) -> set[int]:
        """The partitions in which this worker may hold responses."""
        return self._jobs.numbers_of(self._worker)

    @property
    def dead_workers(self) -> DeadWorkers:
        """Finds what dead workers hold."""
        return self._jobs.dead_workers

    async def ensure(self) -> None:
        """Renew the lease unless it is held.

        Call it before this worker holds anything: without its lease, other workers would treat its jobs as stalled.
        """
        if not self._alive:
            await self._in_turn(unless_held=True)

    async def renew(self) -> None:
        """Renew the lease."""
        await self._in_turn(unless_held=False)

    async def _in_turn(self, *, unless_held: bool) -> None:
        async def renew() -> None:
            async with self._turn:
                if not (unless_held and self._alive):
                    await self._renew()

        # If the caller is cancelled, the renewal ends all the same: `end` waits for it, and no lease is written later.
        renewal = asyncio.create_task(renew(), name="renewal of the worker's lease")
        renewal.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(renewal)

    async def _renew(self) -> None:
        now = await self._jobs.heartbeat(self._worker, (each for held in self.holding for each in held()))
        if self._renewed is None:
            self._patient_until = now + self._intervals.grace_seconds
        elif not 0 <= (passed := now - self._renewed) < self._intervals.outage_seconds:
            had_ended = not 0 <= passed < self._intervals.lease_seconds
            patience = self._intervals.lease_seconds if had_ended else self._intervals.grace_seconds
            self._patient_until = now + patience
        self._renewed = now
        self._alive = True

    async def lease_ops(self, response_id: str) -> Sequence[Op]:
        """Return the ops of the lease for a response, for the commit from which on this worker runs it."""
        return await self._jobs.leases.ops(self._worker, response_id)

    def expire(self) -> None:
        """Record that the lease was not renewed in time, so that the next `ensure` renews it."""
        self._alive = False

    async def end(self) -> None:
        """Delete the lease: other workers requeue the worker's jobs at their next heartbeat."""
        async with self._turn:
            await self._jobs.deregister(self._worker)
