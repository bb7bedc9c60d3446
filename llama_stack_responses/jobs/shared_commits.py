"""Commits in which several jobs of a process store their events together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Final

from ..logs import get_logger
from ..store.records import Op, Records
from .job_writer import JobWriter

logger = get_logger(__name__)

_JOBS: Final = 32
"""Maximum number of jobs of one group: each takes a part of a millisecond."""

_SECONDS_PER_JOB: Final = 0.0015
"""Seconds for each job between two commits of a job. A row of events costs a tenth of that, however many it has."""

_MAX_FACTOR: Final = 2
"""Multiple of the interval to which many jobs extend it."""


class SharedCommits:
    """Stores the events of jobs at intervals, those of several jobs and one owner in one commit.

    With many jobs, deltas of an open text are stored less often, and so in fewer rows.

    Args:
        records: the store.
        seconds: interval between two commits of a job.
    """

    def __init__(self, records: Records, seconds: float) -> None:
        self._records = records
        self._seconds = seconds
        self._jobs = 0
        self._group: _Group | None = None

    def _more_seconds(self) -> float:
        """Return how much longer than other events deltas of an open text may wait."""
        seconds = min(self._jobs * _SECONDS_PER_JOB, _MAX_FACTOR * self._seconds)
        return max(0.0, seconds - self._seconds)

    async def join(self, writer: JobWriter) -> bool:
        """Store the events of a job until there were none in an interval, or it has to write by itself.

        Return whether it has to write by itself.
        """
        group = self._group
        if group is None or not group.has_room:
            self._group = group = _Group(self._records, self._seconds, self._more_seconds)
        self._jobs += 1
        try:
            return await group.join(writer)
        finally:
            self._jobs -= 1


class _Group:
    """Jobs that share commits.

    Args:
        records: the store.
        seconds: interval between two commits of a job.
        more_seconds: returns how much longer deltas of an open text may wait.
    """

    def __init__(self, records: Records, seconds: float, more_seconds: Callable[[], float]) -> None:
        self._records = records
        self._seconds = seconds
        self._more_seconds = more_seconds
        self._loop = asyncio.get_running_loop()
        self._writers: dict[JobWriter, asyncio.Future[bool]] = {}
        self._commits: dict[object, asyncio.Task[None]] = {}
        # Without a context: what is stored for one job is stored for no user who is served.
        self._task = self._loop.create_task(self._run(), name="shared commits", context=Context())

    @property
    def has_room(self) -> bool:
        """Whether another job may join."""
        runs = self._loop is asyncio.get_running_loop() and not self._task.done()
        return runs and len(self._writers) < _JOBS

    async def join(self, writer: JobWriter) -> bool:
        """Return as `SharedCommits.join`."""
        left: asyncio.Future[bool] = self._loop.create_future()
        self._writers[writer] = left
        try:
            return await left
        finally:
            self._writers.pop(writer, None)

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._seconds)
                if (more := self._more_seconds()) > 0:
                    await self._store([each for each in self._writers if each.urgent])
                    await asyncio.sleep(more)
                if not (self._writers or self._commits):
                    return
                await self._store(list(self._writers))
        finally:
            if commits := list(self._commits.values()):
                await asyncio.wait(commits)
            # After an unexpected error, or at the end of the server.
            for writer in list(self._writers):
                self._leave(writer, writes=True)

    async def _store(self, writers: Sequence[JobWriter]) -> None:
        """Begin to store what these jobs have; those that have nothing, or have to write by themselves, leave.

        The jobs of an owner whose last commit has not ended wait for the next interval, and those of others do not.
        """
        offers: dict[object, list[tuple[JobWriter, list[Op]]]] = {}
        for writer in writers:
            if writer.owner in self._commits:
                continue
            if ops := await _offered(writer):
                offers.setdefault(writer.owner, []).append((writer, ops))
            else:
                self._leave(writer, writes=ops is None)
        # One commit for each owner: a store may count records by the owner of what the commit depends on.
        for owner, together in offers.items():
            self._commits[owner] = task = self._loop.create_task(self._commit(together))
            task.add_done_callback(partial(self._committed, owner, [writer for writer, _ in together]))

    def _committed(self, owner: object, writers: Sequence[JobWriter], task: asyncio.Task[None]) -> None:
        del self._commits[owner]
        error = None if task.cancelled() else task.exception()
        if error:
            logger.error("noting a shared commit failed", exc_info=error)
        if error or task.cancelled():
            for writer in writers:
                self._leave(writer, writes=True)

    async def _commit(self, offers: Sequence[tuple[JobWriter, list[Op]]]) -> None:
        writers = [writer for writer, _ in offers]
        try:
            await self._records.commit([op for _, ops in offers for op in ops], [each.fence for each in writers])
        except Exception as error:  # noqa: BLE001 - each job meets its own error when it writes by itself
            logger.debug("a shared commit failed, and each job writes by itself: %s", error)
            return
        finally:
            for writer in writers:
                writer.release()
        for writer in writers:
            writer.note_stored()

    def _leave(self, writer: JobWriter, *, writes: bool) -> None:
        left = self._writers.pop(writer, None)
        if left and not left.done():
            left.set_result(writes)


async def _offered(writer: JobWriter) -> list[Op] | None:
    """Return what the job offers."""
    try:
        return await writer.offer()
    except Exception:  # noqa: BLE001 - as above
        return None
