"""The worker's heartbeat: the record by which other processes know that this one is alive.

The worker renews it every `Intervals.heartbeat_seconds`; a lease that is not renewed ends after `lease_seconds`.
"""

from __future__ import annotations

from .queue import JobQueue


class Heartbeat:
    """Renews the lease of one worker.

    Args:
        jobs: the queue, which stores the lease.
        worker: the worker's id.
    """

    def __init__(self, jobs: JobQueue, worker: str) -> None:
        self._jobs = jobs
        self._worker = worker
        self._alive = False

    async def ensure(self) -> None:
        """Renew the lease unless it is held.

        Call it before this worker holds anything: without its lease, other workers would treat its jobs as stalled.
        """
        if not self._alive:
            await self.renew()

    async def renew(self) -> None:
        """Renew the lease."""
        await self._jobs.heartbeat(self._worker)
        self._alive = True

    def expire(self) -> None:
        """Record that the lease was not renewed in time, so that the next `ensure` renews it."""
        self._alive = False

    async def end(self) -> None:
        """Delete the lease: other workers requeue the worker's jobs at their next heartbeat."""
        await self._jobs.deregister(self._worker)
