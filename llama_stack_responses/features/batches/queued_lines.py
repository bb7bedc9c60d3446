"""The lines of a batch that are responses: each is a job of the queue, which any server runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ...concurrency.tasks import gather_or_cancel
from ...core.errors import ApiError
from ...jobs.work_class import Work, WorkClass
from ...service.detached_responses import Place
from ...store.records import UNAVAILABLE, Conflict, VersionIs
from .input_lines import memory_of, value_of
from .objects import refusal
from .parts import Parts
from .rows import Line, Result
from .stored_batches import Running

_TOGETHER: Final = 32
"""Jobs that are cancelled at the same time."""
_LONGEST_PAUSE_SECONDS: Final = 60.0


class QueuedLines:
    """Queues lines for the current user.

    Args:
        parts: what it needs.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tried: dict[int, int] = {}

    async def begin(self, line: Line, text: bytes | bytearray, waits: VersionIs | None = None) -> None:
        """Queue a line, or store why it is refused; do nothing if it was queued before.

        Args:
            line: the try of the line.
            text: the line.
            waits: as in `StoredBatches.queued`.
        """
        if line.attempt > 1:  # before: a server that dies in between leaves no response of an earlier try
            await self._parts.forget(Line(line.batch, line.number, line.attempt - 1).response_id)
        ops, conditions = self._parts.batches.queued(line, waits)
        place = Place(line.response_id, Work(WorkClass.BATCH), ops, conditions)
        try:
            async with self._parts.memory.hold(memory_of(text)):
                await self._parts.impl.queue((await value_of(text))["body"], place)
        except Conflict:
            return
        except ApiError as error:
            if (pause := self._pause(line, error)) is not None:
                due = await self._parts.batches.now() + pause
                await self._parts.batches.begin_later(line, due, waits)
                return
            await self._parts.batches.end(line, refusal(error))
        self._tried.pop(line.number, None)

    def _pause(self, line: Line, error: ApiError) -> float | None:
        """Return the seconds after which a line that could not be queued is queued; None if it never is."""
        if error.status in (UNAVAILABLE, 429):
            return min(error.retry_after or self._parts.tries.first, _LONGEST_PAUSE_SECONDS)
        tried = self._tried[line.number] = self._tried.get(line.number, 0) + 1
        return self._parts.tries.pause(tried, error)

    def left(self, _: Running) -> Sequence[Line]:
        """Return the lines that a dead server has left: none, since another one goes on with its jobs."""
        return ()

    async def go_on(self, line: Line, text: bytes | bytearray) -> None:
        """Go on with a line that a dead server has left."""

    async def end_lost(self, running: Running) -> None:
        """End the lines whose job is gone although they have not ended: their response was deleted."""
        jobs: Mapping[str, object] = await self._parts.impl.jobs.find_many(
            [line.response_id for line, _ in running.values()]
        )
        for line, unchanged in running.values():
            if line.response_id not in jobs:
                await self._parts.batches.end(line, Result(line.response_id, True, 0), unchanged)

    async def cancel(self, running: Running) -> None:
        """Cancel the lines that are queued or run: first those that wait, which would begin in the place of others."""
        jobs, ids = self._parts.impl.jobs, [line.response_id for line, _ in running.values()]
        await self.end_lost(running)
        await jobs.cancel_unbegun(ids)
        found = await jobs.find_many(ids)
        left = sorted(found, key=lambda each: found[each].state.worker is not None)
        for start in range(0, len(left), _TOGETHER):
            await gather_or_cancel(map(jobs.cancel, left[start : start + _TOGETHER]))

    async def stop(self) -> None:
        """Do nothing: the lines are those of the queue."""
