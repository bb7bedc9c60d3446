"""Cancels jobs that wait and were never started: no worker has to end anything of them, so many share a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ..concurrency.offloading import INLINE_BYTES, in_thread
from ..core.types import Json
from ..generation.activity import Activity
from ..generation.shared_events import SharedEvents
from ..generation.timeline import Timeline
from ..intervals import Intervals
from ..store.archive import Archive
from ..store.commit_outcome import until_known
from ..store.conflict_retry import ConflictRetry
from ..store.loaded_response import FoundEntry
from ..store.queued_end import QueuedEnd
from ..store.records import Condition, Op
from ..stream.assembler import Assembler
from ..stream.events import Event
from ..stream.transcript import Transcript
from ..stream.usage import Usage
from . import fair_order
from .event_log import EventLog
from .job import QUEUED_EVENTS, Job
from .queue import JobQueue

_TOGETHER: Final = 32
"""Jobs that end in one commit."""
_TOGETHER_BYTES: Final = 2**20
"""Bytes of the responses with which a commit ends."""
_SMALL_BYTES: Final = INLINE_BYTES // 2
"""Bytes of a response whose end, which has it several times, the event loop encodes at once."""


class UnbegunJobs:
    """Cancels jobs that no worker has started, so that none starts them any more.

    Args:
        jobs: the queue.
        archive: the stored responses.
        event_log: the event logs.
        activity: what this server does.
        event_log_seconds: how long an event log stays readable after the end of its response.
        intervals: how often and how long to ask a store that did not answer a commit.
    """

    def __init__(
        self,
        jobs: JobQueue,
        archive: Archive,
        event_log: EventLog,
        activity: Activity,
        event_log_seconds: float,
        intervals: Intervals,
    ) -> None:
        self._jobs, self._archive, self._event_log, self._activity = jobs, archive, event_log, activity
        self._event_log_seconds, self._intervals = event_log_seconds, intervals

    async def cancel(self, response_ids: Sequence[str]) -> None:
        """Cancel those of the responses, of one owner with one tag, that wait and were never started."""
        unknown = "The response store did not confirm whether the responses are cancelled: cancel them again."
        for start in range(0, len(response_ids), _TOGETHER):
            some = response_ids[start : start + _TOGETHER]
            await until_known(partial(self._cancel, some), unknown, self._intervals)

    async def _cancel(self, response_ids: Sequence[str], _: bool) -> None:
        retry = ConflictRetry()
        while unbegun := await self._unbegun(response_ids):
            await retry.wait()
            if await self._end(unbegun):
                return

    async def _unbegun(self, response_ids: Sequence[str]) -> dict[str, Job]:
        jobs = await self._jobs.find_many(response_ids)
        return {response_id: job for response_id, job in jobs.items() if job.state.unbegun}

    async def _end(self, jobs: Mapping[str, Job]) -> bool:
        """End the jobs whose response is still stored; return False if some have changed since they were read."""
        together, size, unchanged = list[tuple[Job, QueuedEnd, list[Event]]](), 0, True
        async for found, stored in self._archive.queued(list(jobs)):
            job, small = jobs[found.entry.id], stored.size <= _SMALL_BYTES
            ending = partial(self._ending, job, found, stored.response, small)
            together.append((job, *(ending() if small else await in_thread(ending))))
            size += stored.size
            if size >= _TOGETHER_BYTES:
                unchanged &= await self._commit(together)
                together, size = [], 0
            await asyncio.sleep(0)  # each takes a part of a millisecond
        return (not together or await self._commit(together)) and unchanged

    def _ending(self, job: Job, found: FoundEntry, response: Json, small: bool) -> tuple[QueuedEnd, list[Event]]:
        """Return the end of a job's response, and the events that are not stored yet."""
        waited = max(0.0, self._archive.clock() - fair_order.queued_at(job.state.order))
        timeline, transcript = Timeline(self._activity, job.state.owner), Transcript()
        assembler = Assembler(response | {"status": "in_progress"}, lambda _: None)
        stored = assembler.enqueue()
        assembler.resume(QUEUED_EVENTS, Usage())
        timeline.resume(waited, None)
        events = assembler.proceed()
        timeline.event_times.note(assembler.numbered)
        assembler.set_outcome("cancelled")
        events += assembler.end()
        transcript.note([*stored, *events])
        timing = timeline.recording().timing
        return QueuedEnd(found, assembler.response, transcript.marks(), timing, small), events

    async def _commit(self, together: Sequence[tuple[Job, QueuedEnd, list[Event]]]) -> bool:
        """End jobs in one commit; return False if one of them has changed."""
        expiry = self._archive.clock() + self._event_log_seconds
        ops, fences = list[Op](), list[Condition]()
        for job, end, events in together:
            if end.is_small:
                ops += self._event_log.small_batch(job.response_id, SharedEvents(events))
            else:
                ops += await self._event_log.batch(job.response_id, events)
            ops += [*self._event_log.expire(job.response_id, expiry), *job.delete_ops()]
            fences.append(job.fence)
        try:
            return await self._archive.end_queued([end for _, end, _ in together], ops, fences)
        finally:
            # Also if it is not known whether the commit was applied.
            for job, _, _ in together:
                self._event_log.announce(job.response_id)
