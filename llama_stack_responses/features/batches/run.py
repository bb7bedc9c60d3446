"""The work that one server does for one batch, while it holds the batch's lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Final

import orjson

from ...concurrency.share import ShareOf, working_for
from ...concurrency.tasks import gather_or_cancel
from ...core.errors import ApiError
from ...core.types import Json
from ...inputs.large_files import LargeFiles
from ...jobs.work_class import Work, WorkClass
from ...logs import Outage, get_logger
from ...sealing.sealer import Sealer, Unopened
from ...service.detached_responses import Place
from ...service.responses import OpenAIResponsesImpl
from ...store.records import UNAVAILABLE, Conflict
from .ends import Tries
from .input_lines import Checks, LineReader, RawLine, checked, value_of
from .objects import refusal
from .output import Output
from .rows import ENDED, Batch, Line, Result
from .settings import Batches
from .stored_batches import StoredBatches

logger = get_logger(__name__)

_TOGETHER: Final = 8
"""Lines that are queued at the same time."""
_LOOK_SECONDS: Final = 0.5
"""Interval in which it looks for lines that other servers have ended."""
_GATHER_SECONDS: Final = 0.05
"""Time in which further lines may end before it looks for those that have ended."""
_LOST_SECONDS: Final = 10.0
"""Interval in which it looks for lines whose job is gone."""
_LONGEST_PAUSE_SECONDS: Final = 60.0
_PURPOSE: Final = "batch keys"


class _Broken(Exception):  # noqa: N818 (the batch fails)
    """The batch cannot go on.

    Args:
        problem: why, as the API has it.
    """

    def __init__(self, code: str, message: str, param: str | None) -> None:
        super().__init__(message)
        self.problem: Json = {"code": code, "line": None, "message": message, "param": param}


class _Later(Exception):  # noqa: N818 (the batch goes on later)
    """No line can be queued now.

    Args:
        seconds: when the next one may be.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Parts:
    """What the work for batches needs.

    Attributes:
        impl: runs the responses.
        batches: the batches.
        files: the file store.
        sealer: opens the credentials of users.
        settings: the settings.
        share_of: returns the share of a user.
    """

    impl: OpenAIResponsesImpl
    batches: StoredBatches
    files: LargeFiles
    sealer: Sealer
    settings: Batches
    share_of: ShareOf

    @property
    def tries(self) -> Tries:
        """How often a line is tried."""
        return Tries(self.settings.tries, self.settings.retry_seconds)

    @property
    def output(self) -> Output:
        """Writes the files."""
        return Output(self.batches, self.files, self._load)

    async def _load(self, response_id: str) -> Json | None:
        stored = await self.impl.archive.load(response_id, expired=True)
        return stored.response if stored else None


def seal_keys(sealer: Sealer, keys: Mapping[str, Any], batch: Batch) -> str:
    """Return the credentials of a batch's owner, sealed."""
    return sealer.seal(orjson.dumps(dict(keys)), purpose=_PURPOSE, owner=batch.owner, about=batch.id)


class BatchRun:
    """The work for one batch. Several may be under way at a time, after a lease was lost: no line ends twice.

    Args:
        parts: what it needs.
        of: the hash of the batch's owner.
        batch_id: the id of the batch.
    """

    def __init__(self, parts: Parts, of: str, batch_id: str) -> None:
        self._parts, self._of, self._id = parts, of, batch_id
        self._batches, self._impl = parts.batches, parts.impl
        self._source: BinaryIO | None = None
        self._paused_until = self._looked_at = 0.0
        self._tried: dict[int, int] = {}
        self._marks = [(1, 0)]
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look at once for lines that have ended."""
        self._wake.set()

    async def run(self) -> None:
        """Work until the batch has ended and nothing of it is left to do."""
        outage, failures = Outage(), 0
        try:
            while True:
                try:
                    if await self._step():
                        return
                    outage.over()
                    failures = 0
                except ApiError as error:
                    if outage.should_log(error):
                        logger.warning("could not go on with a batch, trying again: %s: %s", self._id, error)
                    failures += 1
                    await asyncio.sleep(min(_LOOK_SECONDS * 2.0 ** min(failures, 10), _LONGEST_PAUSE_SECONDS))
        finally:
            if self._source:
                self._source.close()

    async def _step(self) -> bool:
        """Do some work; return whether none is left."""
        batch = await self._batches.find(self._of, self._id)
        if batch is None or batch.status in ENDED:
            await self._clean_up()
            return True
        if batch.status in ("cancelling", "finalizing"):
            await self._cancel_lines()
        try:
            keys, share = await self._keys(batch), self._parts.share_of(batch.owner)
            with self._impl.access.acting_for(batch.owner, keys), working_for(share):
                await _WORK.get(batch.status, BatchRun._finalize)(self, batch)
        except _Broken as broken:
            await self._cancel_lines()
            await self._change(partial(_failed, [broken.problem], int(await self._batches.now())))
        return False

    async def _keys(self, batch: Batch) -> Json:
        if batch.sealed is None:
            return {}
        sealer = self._parts.sealer
        await sealer.load()
        try:
            opened: Json = orjson.loads(sealer.open(batch.sealed, purpose=_PURPOSE, owner=batch.owner, about=batch.id))
        except Unopened as error:
            message = f"The keys stored with this batch cannot be decrypted. {error}"
            raise _Broken("server_error", message, None) from error
        return opened

    async def _input(self, batch: Batch) -> BinaryIO:
        if self._source is None:
            try:
                self._source = await self._parts.files.open(batch.input_file_id, self._parts.settings.file_bytes)
            except ApiError as error:
                if error.status >= 500:
                    raise
                raise _Broken(error.code or "invalid_request", error.message, "input_file_id") from error
        return self._source

    async def _change(self, change: Callable[[Batch], Batch | None]) -> Batch | None:
        return await self._batches.change(self._of, self._id, change)

    async def _validate(self, batch: Batch) -> None:
        settings = self._parts.settings
        source = await self._input(batch)
        found = await checked(source, Checks(batch.endpoint, settings.lines, settings.line_bytes))
        now = int(await self._batches.now())
        if found.errors:
            await self._change(partial(_failed, found.errors, now))
        else:
            await self._change(partial(_begun, found.count, found.model, now))

    async def _advance(self, batch: Batch) -> None:
        """Queue the next lines, and note those that have ended."""
        self._wake.clear()
        added = await self._batches.add_ended(self._of, self._id, batch.line, batch.offset)
        if added is None or added.status != "in_progress":
            return
        now = await self._batches.now()
        if now >= added.expires_at:
            await self._change(partial(_finalizing, "expired", int(now)))
            return
        if now >= self._looked_at + _LOST_SECONDS:
            self._looked_at = now
            await self._end_lost()
        if await self._queue_lines(added, now):
            await self._change(partial(_finalizing, "completed", int(now)))
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _LOOK_SECONDS)
            await asyncio.sleep(_GATHER_SECONDS)

    async def _queue_lines(self, batch: Batch, now: float) -> bool:
        """Queue lines as far as there is room; return whether all have ended."""
        running = await self._batches.running(self._id)
        retries = await self._batches.retries(self._id)
        if batch.completed + batch.failed == batch.total:
            return True
        if now < self._paused_until:
            return False
        source, settings = await self._input(batch), self._parts.settings
        line, offset = batch.line, batch.offset
        try:
            for again in [again for again, at in retries.values() if at <= now]:
                await self._queue_again(again, source)
            room = settings.ahead - len(running) - len(retries)
            reader = LineReader(source, settings.line_bytes, line, offset)
            while room > 0 and (page := await reader.page()):
                for start in range(0, min(len(page), room), _TOGETHER):
                    some = page[start : min(start + _TOGETHER, room)]
                    await self._queue_together(some)
                    line, offset = some[-1].number + 1, some[-1].end
                self._marks.append((line, offset))
                room -= len(page)
        except _Later as later:
            self._paused_until = now + later.seconds
        if line > batch.line:
            await self._batches.add_ended(self._of, self._id, line, offset)
        return False

    async def _queue_together(self, lines: Sequence[RawLine]) -> None:
        """Queue lines at the same time."""
        queued = (self._queue(Line(self._id, each.number), each.text) for each in lines)
        for failure in await asyncio.gather(*queued, return_exceptions=True):
            if failure:
                raise failure

    async def _queue_again(self, line: Line, source: BinaryIO) -> None:
        """Queue a further try of a line."""
        number, offset = max(mark for mark in self._marks if mark[0] <= line.number)
        reader = LineReader(source, self._parts.settings.line_bytes, number, offset)
        while page := await reader.page():
            if text := next((each.text for each in page if each.number == line.number), None):
                await self._queue(line, text)
                await self._forget(Line(line.batch, line.number, line.attempt - 1))
                return
            self._marks.append((page[-1].number + 1, page[-1].end))

    async def _forget(self, line: Line) -> None:
        """Delete the response of an earlier try."""
        if line.attempt > 0 and await self._impl.archive.delete(line.response_id):
            await self._impl.jobs.forget(line.response_id)

    async def _queue(self, line: Line, text: bytes) -> None:
        """Queue a line, or store why it is refused; do nothing if it was queued before.

        Raises:
            _Later: no line can be queued now.
        """
        ops, conditions = self._batches.queued(line)
        place = Place(line.response_id, Work(WorkClass.BATCH), ops, conditions)
        try:
            await self._impl.queue((await value_of(text))["body"], place)
        except Conflict:
            return
        except ApiError as error:
            if error.status == UNAVAILABLE or error.status == 429:
                raise _Later(min(error.retry_after or self._parts.tries.first, _LONGEST_PAUSE_SECONDS)) from error
            tries = self._tried[line.number] = self._tried.get(line.number, 0) + 1
            if error.status >= 500 and tries < self._parts.tries.most:
                raise _Later(self._parts.tries.pause(tries)) from error
            await self._batches.end(line, refusal(error))
        self._tried.pop(line.number, None)

    async def _end_lost(self) -> None:
        """End the lines whose job is gone although they have not ended: their response was deleted."""
        running = await self._batches.running(self._id)
        jobs = await self._impl.jobs.find_many([line.response_id for line, _ in running.values()])
        for line, unchanged in running.values():
            if line.response_id not in jobs:
                await self._batches.end(line, Result(line.response_id, True, 0), [unchanged])

    async def _cancel_lines(self) -> None:
        """Cancel the lines that are queued or run, and wait until they have ended."""
        while running := await self._batches.running(self._id):
            lines = [line for line, _ in running.values()]
            for start in range(0, len(lines), _TOGETHER):
                some = lines[start : start + _TOGETHER]
                await gather_or_cancel(self._impl.jobs.cancel(line.response_id) for line in some)
            await self._end_lost()

    async def _finalize(self, batch: Batch) -> None:
        """Write the files, and end the batch."""
        added = await self._batches.add_ended(self._of, self._id, batch.line, batch.offset)
        if added is None:
            return
        written = added
        if added.total:
            source = await self._input(batch)
            written = await self._parts.output.write(added, source, self._parts.settings.line_bytes)
        now = int(await self._batches.now())
        await self._change(partial(_ended, written, now))

    async def _clean_up(self) -> None:
        """Delete the rows of the lines, and the responses that were not to be stored."""
        while some := await self._batches.some_results(self._id):
            for _, result in some:
                if result.response and not result.stored and await self._impl.archive.delete(result.response):
                    await self._impl.jobs.forget(result.response)
            await self._batches.drop([line for line, _ in some])
        await self._batches.finish(self._id)


def _failed(errors: list[Json], now: int, batch: Batch) -> Batch | None:
    if batch.status in ENDED:
        return None
    return replace(batch, status="failed", errors=errors, times={**batch.times, "failed_at": now})


def _begun(total: int, model: str | None, now: int, batch: Batch) -> Batch | None:
    if batch.status != "validating":
        return None
    times = {**batch.times, "in_progress_at": now}
    return replace(batch, status="in_progress", total=total, model=model, times=times)


def _finalizing(end: Any, now: int, batch: Batch) -> Batch | None:
    if batch.status != "in_progress":
        return None
    return replace(batch, status="finalizing", end=end, times={**batch.times, "finalizing_at": now})


def _ended(written: Batch, now: int, batch: Batch) -> Batch | None:
    """Return the batch with the files of `written`, and what it becomes."""
    if batch.status not in ("finalizing", "cancelling"):
        return None
    return replace(
        batch,
        status=batch.end,
        times={**batch.times, f"{batch.end}_at": now},
        completed=written.completed,
        failed=written.failed,
        output_file_id=written.output_file_id,
        error_file_id=written.error_file_id,
    )


_WORK: Final = {"validating": BatchRun._validate, "in_progress": BatchRun._advance}
"""What is done for a batch in a state; in others, it is finalized."""
