"""Stores the events and checkpoints of one job, under the fence of its row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ..core.ids import tag_of
from ..generation.event_buffer import EventBuffer
from ..generation.shared_events import SharedEvents
from ..store.records import Conflict, Op, Put, Records, VersionIs
from ..stream.delta_forms import DeltaRun
from ..stream.events import Event
from ..stream.transcript import Transcript
from .event_log import EventLog, are_large
from .job import Checkpoint, Job
from .recorded_requests import RecordedRequests
from .store_retry import StoreRetry

_NONE: Final[list[Op]] = []


class JobWriter:
    """Stores the events of one job in commits of its own, or offers them for a commit that several jobs share.

    Args:
        job: the job.
        records: the store.
        event_log: the event logs.
        event_buffer: has the events that are not stored yet.
        requests: has the chat requests that are not stored yet.
        retry: retries commits while the store is unavailable.

    Attributes:
        owner: the identity of the job's owner, and the tag of its response: what may be in one commit.
        fence: the condition on which everything is written.
        due: a checkpoint that belongs to the next commit; None if there is none.
        transcript: records the events that are stored.
    """

    def __init__(
        self,
        job: Job,
        records: Records,
        event_log: EventLog,
        event_buffer: EventBuffer,
        requests: RecordedRequests,
        retry: StoreRetry,
    ) -> None:
        self.owner, self.fence = (*job.state.owner.identity, tag_of(job.response_id)), job.fence
        self.due: Checkpoint | None = None
        self.transcript = Transcript()
        self._response_id = job.response_id
        self._records = records
        self._event_log = event_log
        self._event_buffer = event_buffer
        self._requests = requests
        self._retry = retry
        self._waiting: SharedEvents | None = None
        self._writes = self._version = 0
        self._lock = asyncio.Lock()

    @property
    def urgent(self) -> bool:
        """Whether other events than deltas of an open text wait, such as its first one."""
        events = self._event_buffer.waiting
        return bool(events) and not isinstance(events, DeltaRun)

    async def write(self) -> None:
        """Store the buffered events and the due checkpoint in one commit, so that they always match."""
        async with self._alone():
            self._waiting, due = self._taken(), self.due
            if not (due or self._waiting):
                return
            ops = await self._event_log.shared_batch(self._response_id, self._waiting) if self._waiting else []
            ops += self._requests.ops()
            if due:
                ops.append(Put(f"k/{self._response_id}", await due.encode()))
            await self._retry(lambda: self._commit(ops, due))
            if self.due is due:
                self.due = None
            self.note_stored()

    async def _commit(self, ops: Sequence[Op], due: Checkpoint | None) -> None:
        """Commit under the fence; a checkpoint also on condition that the row has the version that was stored last.

        An earlier commit whose answer was lost may still be on its way. It must not put an older checkpoint in the
        place of a newer one: finished rounds would be run again.
        """
        if due is None:
            await self._records.commit(ops, [self.fence])
            return
        key = f"k/{self._response_id}"
        self._version = max(self._version, due.version)
        while True:
            try:
                await self._records.commit(ops, [self.fence, VersionIs(key, self._version)])
            except Conflict as conflict:
                if self.fence in conflict.failed:
                    raise
                if (stored := (await self._records.get_many([key])).get(key)) is None:
                    raise
                # Nothing else writes the row under this fence: that commit was applied.
                self._version = stored.version
            else:
                self._version += 1
                return

    async def conclude(self, end: list[Event], store: Callable[[list[Event], list[Op]], Awaitable[None]]) -> None:
        """Store the last events.

        Args:
            end: the events after the buffered ones.
            store: stores all of them, with further ops.
        """
        async with self._alone():
            taken, requests = self._taken(), self._requests.ops()
            last = [*taken.events, *end] if taken else end
            self.transcript.note(last)
            self._waiting = None
            try:
                await self._retry(lambda: store(last, requests))
            finally:
                # Also after a conflict: an earlier commit may have been applied although its answer was lost.
                self._event_log.announce(self._response_id)

    async def offer(self) -> list[Op] | None:
        """Return the ops of a shared commit, on condition of the fence; None if the job has to write by itself.

        Without ops, there is nothing to store. With ops, nothing else is written until `release`.
        """
        events = self._event_buffer.waiting
        if self._writes or self.due or self._waiting or are_large(events):
            return None
        if not events:
            return _NONE
        shared = SharedEvents(events)
        ops = [*self._event_log.small_batch(self._response_id, shared), *self._requests.ops()]
        await self._lock.acquire()  # at once: nothing writes
        self._event_buffer.take()
        self._waiting = shared
        return ops

    def release(self) -> None:
        """Let the job write again, since the shared commit has ended. It was not made unless `note_stored` follows."""
        self._lock.release()

    def note_stored(self) -> None:
        """Note that the events that were to be stored are stored, and pass them to their readers."""
        self._requests.committed()
        stored, self._waiting = self._waiting, None
        if stored:
            self._note(stored)
        self._event_log.announce(self._response_id, stored)

    def _note(self, stored: SharedEvents) -> None:
        if stored.run is None:
            self.transcript.note(stored.events)
        else:
            self.transcript.note_run(stored.run)

    def _taken(self) -> SharedEvents | None:
        """Return the events that are not stored yet, and take the buffered ones among them; None if there are none."""
        if self._waiting is None:
            taken = self._event_buffer.take()
            return SharedEvents(taken) if taken else None
        return SharedEvents([*self._waiting.events, *self._event_buffer.ready()])

    @asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        """Let nothing else write within the block."""
        self._writes += 1
        try:
            async with self._lock:
                yield
        finally:
            self._writes -= 1
