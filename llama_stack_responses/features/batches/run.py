"""The work that one server does for one batch, while it holds the batch's lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, Final

from ...concurrency.share import working_for
from ...concurrency.tasks import end_all
from ...core.errors import ApiError
from ...core.statuses import ENDED_BATCH
from ...core.types import Json
from ...logs import Outage, get_logger
from ...sealing.sealer import Unopened
from .asked_lines import AskedLines
from .input_lines import Checks, RawLine, checked
from .line_order import InputChanged, LineOrder, Place
from .new_batch import RESPONSES
from .parts import Parts
from .queued_lines import QueuedLines
from .rows import Batch, Line
from .stored_batches import Again

logger = get_logger(__name__)

_TOGETHER: Final = 8
"""Lines that begin at the same time."""
_LOOK_SECONDS: Final = 0.5
"""Interval in which it looks for lines that other servers have ended, and whether the batch is cancelled."""
_GATHER_SECONDS: Final = 0.05
"""Time in which further lines may end before it looks for those that have ended."""
_LOST_SECONDS: Final = 10.0
"""Interval in which it looks for lines whose job is gone."""
_LONGEST_PAUSE_SECONDS: Final = 60.0


class _Broken(Exception):  # noqa: N818 (the batch fails)
    """The batch cannot go on.

    Args:
        problem: why, as the API has it.
    """

    def __init__(self, code: str, message: str, param: str | None) -> None:
        super().__init__(message)
        self.problem: Json = {"code": code, "line": None, "message": message, "param": param}


class BatchRun:
    """The work for one batch. Several may be under way at a time, after a lease was lost: no line ends twice.

    Args:
        parts: what it needs.
        of: the hash of the batch's owner.
        batch_id: the id of the batch.
    """

    def __init__(self, parts: Parts, of: str, batch_id: str) -> None:
        self._parts, self._of, self._id = parts, of, batch_id
        self._batches = parts.batches
        self._lines: QueuedLines | AskedLines | None = None
        self._source: BinaryIO | None = None
        self._order: LineOrder | None = None
        self._looked_at = 0.0
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look at once for lines that have ended."""
        self._wake.set()

    async def run(self) -> None:
        """Work until the batch has ended and nothing of it is left to do."""
        try:
            await self._repeat(self._step)
        finally:
            if self._lines:
                await self._lines.stop()
            if self._source:
                self._source.close()

    async def end_lines(self) -> None:
        """Cancel the lines that run if the batch begins no more: so may any server, whichever works for the batch."""
        await self._repeat(self._end_lines)

    async def _repeat(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Do steps until one returns that there are no more, with pauses while a store does not answer."""
        outage, failures = Outage(), 0
        while True:
            self._wake.clear()  # before the step, which may fail after the batch was cancelled
            try:
                if await step():
                    return
                outage.over()
                failures = 0
            except ApiError as error:
                if outage.should_log(error):
                    logger.warning("could not go on with a batch, trying again: %s: %s", self._id, error)
                failures += 1
                with suppress(TimeoutError):  # woken if the batch is cancelled: what failed may not be needed then
                    pause = min(_LOOK_SECONDS * 2.0 ** min(failures, 10), _LONGEST_PAUSE_SECONDS)
                    await asyncio.wait_for(self._wake.wait(), pause)

    async def _step(self) -> bool:
        """Do some work; return whether none is left."""
        batch = await self._batches.find(self._of, self._id)
        if batch is None or batch.status in ENDED_BATCH:
            await self._clean_up()
            return True
        self._lines = self._lines or self._lines_of(batch)
        if batch.open:
            await self._go_on(batch, self._lines)
        else:
            await self._cancel_lines(self._lines)
            await self._finalize(batch)
        return False

    async def _end_lines(self) -> bool:
        batch = await self._batches.find(self._of, self._id)
        if batch and not batch.open and batch.status not in ENDED_BATCH:
            await self._cancel_lines(self._lines_of(batch))
        return True

    async def _go_on(self, batch: Batch, lines: QueuedLines | AskedLines) -> None:
        """Check the input, or begin lines."""
        try:
            keys = await self._keys(batch)
            with self._acting_for(batch, keys):
                validating = batch.status == "validating"
                await self._while_open(self._validate(batch) if validating else self._advance(batch, lines))
        except _Broken as broken:
            await self._change(partial(_failed, [broken.problem], int(await self._batches.now())))

    @contextmanager
    def _acting_for(self, batch: Batch, keys: Json) -> Iterator[None]:
        """Work within the block as the batch's owner, with these keys and the owner's share."""
        share = self._parts.share_of(batch.owner)
        with self._parts.impl.access.acting_for(batch.owner, keys), working_for(share):
            yield

    async def _while_open(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, and drop it soon after the batch is cancelled or deleted: it may take or wait for minutes."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([task], timeout=_LOOK_SECONDS))[0]:
                batch = await self._batches.find(self._of, self._id)
                if batch is None or not batch.open:
                    return
            await task
        finally:
            await end_all([task])
            del task  # an exception's traceback has this frame, and the task the exception

    def _lines_of(self, batch: Batch) -> QueuedLines | AskedLines:
        if batch.endpoint == RESPONSES:
            return QueuedLines(self._parts)
        return AskedLines(self._parts, batch.endpoint, self.wake)

    async def _keys(self, batch: Batch) -> Json:
        try:
            return await self._parts.keys_of(batch)
        except Unopened as error:
            message = f"The keys stored with this batch cannot be decrypted. {error}"
            raise _Broken("server_error", message, None) from error

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
        checks = Checks(batch.endpoint, settings.lines, settings.line_bytes)
        found = await checked(source, checks, partial(self._batches.name, self._id))
        now = int(await self._batches.now())
        if found.errors:
            await self._change(partial(_failed, found.errors, now))
        else:
            await self._change(partial(_begun, found.count, found.model, now))

    async def _advance(self, batch: Batch, lines: QueuedLines | AskedLines) -> None:
        """Begin the next lines, and note those that have ended."""
        self._wake.clear()
        running = await self._batches.running(self._id)
        retries = await self._batches.retries(self._id)
        added = await self._batches.add_ended(self._of, self._id, batch.line, batch.offset)
        if added is None or added.status != "in_progress":
            return
        now = await self._batches.now()
        if now >= added.expires_at:
            await self._change(partial(_finalizing, "expired", int(now)))
            return
        if now >= self._looked_at + _LOST_SECONDS:
            self._looked_at = now
            await lines.end_lost(running)
        if added.completed + added.failed == added.total:
            await self._change(partial(_finalizing, "completed", int(now)))
            return
        due = [each for each in retries.values() if each.due <= now]
        left, begun = lines.left(running), running.keys() | retries.keys()
        # A line that has ended since `running` was read is counted twice. Counted too low, lines that have all begun
        # would have the input file opened, which may be deleted.
        if due or left or added.completed + added.failed + len(begun) < added.total:
            await self._begin_lines(added, lines, due, left, begun)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _LOOK_SECONDS)
            await asyncio.sleep(_GATHER_SECONDS)

    async def _begin_lines(
        self,
        batch: Batch,
        lines: QueuedLines | AskedLines,
        due: Sequence[Again],
        left: Sequence[Line],
        begun: Set[int],
    ) -> None:
        """Begin lines as far as there is room.

        Args:
            batch: the batch.
            lines: begins them.
            due: those that are to be tried again now.
            left: those that a dead server has left.
            begun: the numbers of those that are queued, run or are tried again.
        """
        order = await self._order_of(batch)
        try:
            for each in left:
                await lines.go_on(each, await order.text_of(each.number))
            for again in due:
                await lines.begin(again.line, await order.text_of(again.line.number), again.unchanged)
            await self._begin_new(batch, order, lines, begun)
        except InputChanged as error:
            raise _Broken("invalid_request", "The input file has changed.", "input_file_id") from error

    async def _order_of(self, batch: Batch) -> LineOrder:
        if self._order is None:
            source, settings = await self._input(batch), self._parts.settings
            self._order = LineOrder(source, settings.line_bytes, batch.model, Place(batch.line, batch.offset))
        return self._order

    async def _begin_new(
        self, batch: Batch, order: LineOrder, lines: QueuedLines | AskedLines, begun: Set[int]
    ) -> None:
        """Begin the next lines as far as there is room, and note which is the first that has not begun.

        Args:
            batch: the batch.
            order: the order of its lines.
            lines: begins them.
            begun: the numbers of those that are queued, run or are tried again.
        """

        async def known(numbers: Sequence[int]) -> Collection[int]:
            return begun | await self._batches.ended_of(self._id, numbers)

        try:
            room = await order.room(begun, self._parts.settings.ahead)
            async for some in order.take(room, known):
                for start in range(0, len(some), _TOGETHER):
                    await self._begin_together(lines, some[start : start + _TOGETHER])
        except BaseException:
            # What was taken may not have begun.
            self._order = None
            raise
        if order.first.number > batch.line:
            await self._batches.add_ended(self._of, self._id, *order.first)

    async def _begin_together(self, lines: QueuedLines | AskedLines, some: Sequence[RawLine]) -> None:
        """Begin lines at the same time."""
        begun = (lines.begin(Line(self._id, each.number), each.text) for each in some)
        for failure in await asyncio.gather(*begun, return_exceptions=True):
            if failure:
                raise failure

    async def _cancel_lines(self, lines: QueuedLines | AskedLines) -> None:
        """Cancel the lines that run, and wait until they have ended."""
        while running := await self._batches.running(self._id):
            await lines.cancel(running)

    async def _finalize(self, batch: Batch) -> None:
        """Write the files, and end the batch. Neither its input is needed for that, nor a key that can be opened."""
        added = await self._batches.add_ended(self._of, self._id, batch.line, batch.offset)
        if added is None:
            return
        keys: Json = {}
        with suppress(Unopened):
            keys = await self._parts.keys_of(batch)
        with self._acting_for(batch, keys):
            written = await self._parts.output.write(added) if added.total else added
        now = int(await self._batches.now())
        await self._change(partial(_ended, written, now))

    async def _clean_up(self) -> None:
        """Delete the rows of the lines, and the responses that were not to be stored."""
        while some := await self._batches.some_results(self._id):
            for _, result in some:
                if result.response and not result.stored:
                    await self._parts.forget(result.response)
            await self._batches.drop([line for line, _ in some])
        await self._batches.finish(self._id)


def _failed(errors: list[Json], now: int, batch: Batch) -> Batch | None:
    """Return a batch that fails: at once if no line has begun, and otherwise when its files are written."""
    if batch.status == "validating":
        return replace(batch, status="failed", errors=errors, times={**batch.times, "failed_at": now})
    failing = _finalizing("failed", now, batch)
    return failing and replace(failing, errors=errors)


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
