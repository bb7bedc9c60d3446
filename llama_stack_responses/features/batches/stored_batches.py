"""The batches in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from ...concurrency.offloading import in_thread, in_thread_if_large
from ...core.errors import ApiError, not_in_list
from ...core.statuses import ENDED_BATCH
from ...store.conflict_retry import ConflictRetry
from ...store.content_names import Hasher
from ...store.object_events import ObjectEvent, ObjectEvents
from ...store.records import (
    Condition,
    Conflict,
    Delete,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    committed,
    pages_of,
)
from .rows import (
    WORK,
    Batch,
    Counted,
    Expiring,
    Line,
    Named,
    Result,
    Retry,
    batch_key,
    counter_key,
    ended_ops,
    lease_key,
    line_of,
    line_rows,
    open_key,
    retry_ops,
)

_AT_ONCE: Final = 500
"""Ends of lines that are added to a batch in one commit."""

_NAMES_AT_ONCE: Final = 8
"""Rows with custom ids that are read together: one has up to half a megabyte."""

_ENDS_AT_ONCE: Final = 128
"""Lines that end in one commit."""


class Again(NamedTuple):
    """A line that is tried again.

    Attributes:
        line: the try that it will be.
        due: when, in seconds since the epoch.
        unchanged: the condition that it waits for this try.
    """

    line: Line
    due: float
    unchanged: VersionIs


Running = Mapping[int, tuple[Line, VersionIs]]
"""Lines that are queued or run, by number, each with the condition that it still does."""


class StoredBatches:
    """The batches, and the rows of their lines.

    Args:
        records: the store.
        kept_seconds: how long a batch is kept after its end.
        events: what other features record of the end of a batch.
    """

    def __init__(self, records: Records, kept_seconds: float = 0.0, events: ObjectEvents | None = None) -> None:
        self._records, self._kept_seconds, self._events = records, kept_seconds, events or ObjectEvents()

    async def now(self) -> float:
        """Return the time of the store's clock, in seconds since the epoch."""
        return await self._records.now()

    async def create(self, batch: Batch, most: int, claim: tuple[Sequence[Put], VersionIs] | None = None) -> None:
        """Store a new batch, unless its owner has `most` that have not ended.

        Args:
            batch: the batch.
            most: how many its owner may have.
            claim: the ops that claim the Idempotency-Key of its request, and the condition that the key is free.

        Raises:
            ApiError: 429, the owner has too many.
            Conflict: another request took the key.
        """
        of, retry = Hasher(batch.owner).owner, ConflictRetry()
        counter = counter_key(of)
        while True:
            await retry.wait()
            known = await self._records.get_many([counter, *([claim[1].key] if claim else ())])
            if claim and claim[1].key in known:
                raise Conflict([claim[1]])
            prefix = open_key(of, "")
            if len(await self._records.range(prefix, after_prefix(prefix), limit=most)) >= most:
                message = f"You have {most} batches that have not ended: wait until one has, or cancel one."
                raise ApiError(429, message, code="rate_limit_exceeded", retry_after=60)
            unchanged = VersionIs(counter, known[counter].version if counter in known else None)
            ops: list[Op] = [
                Put(batch_key(of, batch.id), batch.encode()),
                Put(f"{WORK}{batch.id}", of.encode()),
                Put(open_key(of, batch.id), b""),
                Put(counter, b""),
            ]
            conditions = [unchanged]
            if claim:
                ops += claim[0]
                conditions.append(claim[1])
            if await committed(self._records, ops, conditions):
                return

    async def find(self, of: str, batch_id: str) -> Batch | None:
        """Return a batch of the owner with this hash."""
        found = await self._found(of, batch_id)
        return Batch.decode(found.value) if found else None

    async def counted(self, of: str, batch_id: str) -> tuple[Batch, list[Counted]] | None:
        """Return a batch of an owner, and the lines that have ended and are not added to it yet."""
        retry = ConflictRetry()
        while found := await self._found(of, batch_id):
            await retry.wait()
            ended = [Counted.decode(row.value) async for rows in self._pages("n", batch_id) for _, row in rows]
            again = await self._found(of, batch_id)
            if again and again.version == found.version:
                return Batch.decode(found.value), ended
        return None

    async def page(self, of: str, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        """Return batches of an owner, newest first, older than `after`, and whether there are more.

        Raises:
            ApiError: 400, the owner has no batch `after`.
        """
        if after and await self._found(of, after) is None:
            raise not_in_list(after[:80])
        prefix = batch_key(of, "")
        end = batch_key(of, after) if after else after_prefix(prefix)
        rows = await self._records.range(prefix, end, limit=limit + 1, reverse=True)
        return [Batch.decode(row.value) for _, row in rows[:limit]], len(rows) > limit

    async def every(self, of: str) -> list[Batch]:
        """Return all batches of an owner, oldest first."""
        return [Batch.decode(row.value) async for rows in pages_of(self._records, batch_key(of, "")) for _, row in rows]

    async def change(self, of: str, batch_id: str, change: Callable[[Batch], Batch | None]) -> Batch | None:
        """Change a batch, and return it; None if it does not exist.

        Args:
            change: returns the batch as it shall be; None to leave it as it is.
        """
        retry = ConflictRetry()
        while found := await self._found(of, batch_id):
            await retry.wait()
            old = Batch.decode(found.value)
            new = change(old)
            if new is None:
                return old
            if await self._replace(of, old, new, found.version):
                return new
        return None

    async def add_ended(self, of: str, batch_id: str, line: int, offset: int) -> Batch | None:
        """Add the lines that have ended to a batch, and note which line is queued next; return the batch."""
        retry, prefix = ConflictRetry(), line_rows("n", batch_id)
        while found := await self._found(of, batch_id):
            await retry.wait()
            rows = await self._records.range(prefix, after_prefix(prefix), limit=_AT_ONCE)
            old = Batch.decode(found.value)
            new = _with(old, [Counted.decode(row.value) for _, row in rows])
            new = replace(new, line=line, offset=offset) if line > new.line else new
            if new == old:
                return old
            conditions = [VersionIs(key, row.version) for key, row in rows]
            if await self._replace(of, old, new, found.version, [Delete(key) for key, _ in rows], conditions):
                retry = ConflictRetry()
                if len(rows) < _AT_ONCE:
                    return new
        return None

    async def name(self, batch_id: str, some: Sequence[Named]) -> None:
        """Store the custom ids of lines that follow each other, unless the batch queues no lines any more."""
        put = await in_thread(Named.put, batch_id, some)
        await committed(self._records, [put], [_queues(batch_id)])

    async def named(self, batch_id: str) -> AsyncIterator[list[Named]]:
        """Yield the lines of a batch with their custom ids, in order, some at a time."""
        async for rows in pages_of(self._records, line_rows("i", batch_id), _NAMES_AT_ONCE):
            for _, row in rows:
                yield await in_thread(Named.decode, row.value)

    async def running(self, batch_id: str) -> Running:
        """Return the lines of a batch that are queued or run."""
        found = {}
        async for rows in self._pages("r", batch_id):
            for key, row in rows:
                line = line_of(key, int(row.value))
                found[line.number] = line, VersionIs(key, row.version)
        return found

    async def retries(self, batch_id: str) -> dict[int, Again]:
        """Return the lines of a batch that are tried again, by number."""
        found = {}
        async for rows in self._pages("t", batch_id):
            for key, row in rows:
                again = Retry.decode(row.value)
                line = line_of(key, again.attempt)
                found[line.number] = Again(line, again.due, VersionIs(key, row.version))
        return found

    def queued(self, line: Line, waits: VersionIs | None = None) -> tuple[list[Op], list[Condition]]:
        """Return what the commit that queues a try of a line writes, and on which conditions.

        Args:
            line: the try.
            waits: the condition that the line waits for this try; None if it was never begun.
        """
        ops: list[Op] = [Put(line.key("r"), str(line.attempt).encode())]
        if waits:
            ops.append(Delete(line.key("t")))
        return ops, _unbegun(line, waits)

    async def begun(self, line: Line, waits: VersionIs | None = None) -> bool:
        """Note that a try of a line runs that has no job, as `queued`; return False if the line has ended, or runs."""
        return await committed(self._records, *self.queued(line, waits))

    async def begin_later(self, line: Line, due: float, waits: VersionIs | None = None) -> bool:
        """Note that a try of a line, as of `queued`, begins at a time; return False if the line has ended, or runs."""
        return await committed(self._records, [Retry(line.attempt, due).put(line)], _unbegun(line, waits))

    async def ended_of(self, batch_id: str, numbers: Sequence[int]) -> set[int]:
        """Return which of these lines of a batch have ended."""
        keys = {Line(batch_id, number).key("d"): number for number in numbers}
        return {keys[key] for key in await self._records.get_many(list(keys))}

    async def answered(self, line: Line, result: Result, counted: Counted) -> bool:
        """Store what a line ended with that runs and has no job; return False if it has ended."""
        ops = await in_thread_if_large(partial(ended_ops, line, result, counted), result.body)
        return await committed(self._records, ops, [VersionIs(line.key("r"), 1)])

    async def again(self, line: Line, due: float) -> bool:
        """Have a line tried again that runs and has no job; return False if it has ended."""
        return await committed(self._records, retry_ops(line, due), [VersionIs(line.key("r"), 1)])

    async def end(self, line: Line, result: Result, runs: VersionIs | None = None) -> bool:
        """Store what a line ended with that has no job; return False if it has ended.

        Args:
            line: the try.
            result: what it ended with.
            runs: the condition that the line runs; None if it shall not.
        """
        conditions = [VersionIs(line.key("d"), None), runs] if runs else _free(line)
        ops = [*ended_ops(line, result, Counted(result.status == 200)), Delete(line.key("t"))]
        return await committed(self._records, ops, conditions)

    async def end_together(self, running: Running, result: Result) -> None:
        """Store what lines ended with that run and have no job. It is stored for none of some that share a commit if
        one of them has ended meanwhile."""
        lines = list(running.values())
        for start in range(0, len(lines), _ENDS_AT_ONCE):
            some = lines[start : start + _ENDS_AT_ONCE]
            ops = [op for line, _ in some for op in ended_ops(line, result, Counted(result.status == 200))]
            await committed(self._records, ops, [unchanged for _, unchanged in some])

    async def results(self, lines: Sequence[Line]) -> dict[int, Result]:
        """Return what lines ended with, by their numbers."""
        keys = {line.key("d"): line.number for line in lines}
        found = await self._records.get_many(list(keys)) if keys else {}
        return {keys[key]: Result.decode(row.value) for key, row in found.items()}

    async def some_results(self, batch_id: str) -> list[tuple[Line, Result]]:
        """Return what some lines of a batch ended with that are not dropped; none if there are no more."""
        prefix = line_rows("d", batch_id)
        rows = await self._records.range(prefix, after_prefix(prefix), limit=_AT_ONCE)
        return [(line_of(key), Result.decode(row.value)) for key, row in rows]

    async def drop(self, lines: Sequence[Line]) -> None:
        """Delete the rows of lines of a batch that has ended."""
        kinds: Any = ("r", "t", "d", "n")
        await self._records.commit([Delete(line.key(kind)) for line in lines for kind in kinds])

    async def finish(self, batch_id: str) -> None:
        """Note that there is nothing left to do for a batch that has ended."""
        await self._delete_lines(batch_id, "rtni")
        await self._records.commit([Delete(f"{WORK}{batch_id}"), Delete(lease_key(batch_id))])

    async def delete(self, of: str, batch_id: str) -> None:
        """Delete a batch with all its rows."""
        await self._delete_lines(batch_id, "rtdni")
        keys = (batch_key(of, batch_id), open_key(of, batch_id), f"{WORK}{batch_id}")
        await self._records.commit([Delete(key) for key in keys])

    async def _delete_lines(self, batch_id: str, kinds: str) -> None:
        for kind in kinds:
            async for rows in self._pages(kind, batch_id):
                await self._records.commit([Delete(key) for key, _ in rows])

    async def forget(self, of: str) -> None:
        """Delete what is kept of an owner beside their batches."""
        await self._records.commit([Delete(counter_key(of))])

    async def _found(self, of: str, batch_id: str) -> Record | None:
        key = batch_key(of, batch_id)
        return (await self._records.get_many([key])).get(key)

    async def _replace(
        self,
        of: str,
        old: Batch,
        batch: Batch,
        version: int,
        ops: Sequence[Op] = (),
        conditions: Sequence[Condition] = (),
    ) -> bool:
        """Store a batch in place of the old one, which has this version; return False if it has another by now."""
        key = batch_key(of, batch.id)
        if old.open and not batch.open:
            ops = [*ops, Put(f"{WORK}{batch.id}", of.encode())]
        now = await self._records.now()
        put = Put(key, batch.encode(), now + self._kept_seconds if batch.status in ENDED_BATCH else None)
        event = ObjectEvent(f"batch.{batch.status}", batch.id, batch.owner, now)
        ends = batch.status in ENDED_BATCH and old.status not in ENDED_BATCH
        ops = [put, *ops, *([*_end_ops(of, batch, now), *self._events.ops(event)] if ends else ())]
        applied = await committed(self._records, ops, [VersionIs(key, version), *conditions])
        if applied and ends:
            self._events.written(event)
        return applied

    def _pages(self, kind: str, batch_id: str) -> Any:
        return pages_of(self._records, line_rows(kind, batch_id))


def _unbegun(line: Line, waits: VersionIs | None) -> list[Condition]:
    """Return the conditions that a line is free and waits for a try, or was never begun if `waits` is None."""
    return [*_free(line), waits or VersionIs(line.key("t"), None)]


def _free(line: Line) -> list[Condition]:
    """Return the conditions that a line has not ended and does not run, and that its batch still queues lines.

    Without the last one, a commit that comes late would leave rows of a batch that has ended.
    """
    ended, runs = VersionIs(line.key("d"), None), VersionIs(line.key("r"), None)
    return [ended, runs, _queues(line.batch)]


def _queues(batch_id: str) -> Condition:
    """Return the condition that a batch still queues lines."""
    return VersionIs(f"{WORK}{batch_id}", 1)


def _end_ops(of: str, batch: Batch, now: float) -> list[Op]:
    """Return the further ops of the end of a batch."""
    ops: list[Op] = [Delete(open_key(of, batch.id))]
    files = [each for each in (batch.output_file_id, batch.error_file_id) if each]
    if files and batch.output_seconds is not None:
        ops.append(Expiring(batch.owner, files).put(batch.id, now + batch.output_seconds))
    return ops


def no_batch(batch_id: str) -> ApiError:
    """Return the error for a batch that does not exist."""
    return ApiError(404, f"No batch found with id '{batch_id[:80]}'.", param="batch_id", code="batch_not_found")


def cancelled(now: float, batch: Batch) -> Batch | None:
    """Return a batch that is being cancelled; None if it is already.

    Raises:
        ApiError: 409, it has ended.
    """
    if batch.status in ("cancelling", "cancelled"):
        return None
    if batch.status in ENDED_BATCH or batch.status == "finalizing":
        message = f"Cannot cancel a batch with status '{batch.status}'."
        raise ApiError(409, message, code="invalid_batch_status")
    times: Mapping[str, int] = {**batch.times, "cancelling_at": int(now)}
    return replace(batch, status="cancelling", end="cancelled", times=times)


def _with(batch: Batch, ended: Sequence[Counted]) -> Batch:
    completed = sum(each.completed for each in ended)
    return replace(
        batch,
        completed=batch.completed + completed,
        failed=batch.failed + len(ended) - completed,
        usage=[sum(tokens) for tokens in zip(batch.usage, *(each.usage for each in ended), strict=True)],
    )
