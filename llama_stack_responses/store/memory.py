"""Records in this process's memory, for tests and for stacks without durable storage."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from ..concurrency.offloading import in_thread
from ..core.owner import ANONYMOUS, Owner
from .eviction import Holdings, Identity
from .records import Condition, Conflict, Delete, Empty, Ensure, Op, Put, Record, VersionIs, Write, until, writes_of

_MAX_SWEPT = 1000
_MANY: Final = 1_000
"""Rows of a call above which a thread goes through them."""


@dataclass(frozen=True, slots=True)
class _Entry:
    record: Record
    expires_at: float | None


class MemoryRecords:
    """Records that end with the process, limited by number and size.

    At a limit, the owner who holds the most loses the records that were written first. A new record belongs to the user
    who is served; work that serves none adds to the owner of the records that it changes or relies on.

    Args:
        max_records: maximum number of records.
        max_bytes: maximum size of all keys and values in bytes.
        clock: returns seconds since the epoch.
        current_user: returns the user who is served.
    """

    transactional: Final = True
    has_own_clock: Final = False

    def __init__(
        self,
        max_records: int = 100_000,
        max_bytes: int = 256 * 1024 * 1024,
        *,
        clock: Callable[[], float] = time.time,
        current_user: Callable[[], Owner] = lambda: ANONYMOUS,
    ) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._clock = clock
        self._current_user = current_user
        self._holdings = Holdings()
        self._entries: dict[str, _Entry] = {}  # in the order of their writes
        self._keys: list[str] = []  # the same keys, sorted
        self._expiring: list[tuple[float, str]] = []  # sorted
        self._in_thread: asyncio.Task[Any] | None = None

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        return await self._run(partial(self._read, keys, max_bytes), len(keys))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        user = self._current_user()
        await self._run(partial(self._commit, ops, conditions, user), len(ops) + len(conditions))

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        read = partial(self._range, start, end, limit, reverse=reverse, max_bytes=max_bytes)
        return await self._run(read, min(limit, len(self._keys)))

    def pubsub(self) -> None:
        """Return None: no other process shares these records."""

    async def now(self) -> float:
        return self._clock()

    async def sweep(self, now: float) -> int:
        return await self._run(partial(self._sweep, now), _MAX_SWEPT)

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        yield await self._run(self._rows, len(self._keys))

    async def size(self) -> int | None:
        return self._holdings.size

    async def close(self) -> None:
        """Do nothing: the records live as long as the object."""

    async def _run[Result](self, call: Callable[[], Result], rows: int) -> Result:
        """Return the result of a call that goes through so many rows. Calls come one after the other."""
        while self._in_thread and not self._in_thread.done():
            await asyncio.wait([self._in_thread])
        if rows <= _MANY:
            return call()
        running = self._in_thread = asyncio.create_task(in_thread(call))
        running.add_done_callback(lambda task: task.cancelled() or task.exception())
        # The thread works on if this call is cancelled.
        return await asyncio.shield(running)

    def _read(self, keys: Sequence[str], max_bytes: int | None) -> dict[str, Record]:
        now = self._clock()
        records = ((key, self._live(key, now)) for key in dict.fromkeys(keys))
        return dict(until(((key, record) for key, record in records if record is not None), max_bytes))

    def _commit(self, ops: Sequence[Op], conditions: Sequence[Condition], user: Owner) -> None:
        now = self._clock()
        if failed := [condition for condition in conditions if not self._holds(condition, now)]:
            raise Conflict(failed)
        writes = writes_of(ops)
        owner = self._owner(user, writes, conditions)
        for op in writes:
            self._apply(op, owner, now)
        while len(self._entries) > self._max_records:
            self._remove(self._holdings.oldest_of_most_records())
        while self._holdings.size > self._max_bytes:
            self._remove(self._holdings.oldest_of_most_bytes())

    def _range(
        self, start: str, end: str, limit: int, *, reverse: bool, max_bytes: int | None
    ) -> list[tuple[str, Record]]:
        now = self._clock()
        first, last = bisect_left(self._keys, start), bisect_left(self._keys, end)
        keys = (self._keys[index] for index in (range(last - 1, first - 1, -1) if reverse else range(first, last)))
        records = ((key, record) for key in keys if (record := self._live(key, now)))
        return list(islice(until(records, max_bytes), max(limit, 0)))

    def _sweep(self, now: float) -> int:
        expired = [key for expires_at, key in self._expiring[:_MAX_SWEPT] if expires_at <= now]
        for key in expired:
            self._remove(key)
        return len(expired)

    def _rows(self) -> list[Put]:
        now = self._clock()
        rows = [Put(key, each.record.value, each.expires_at) for key, each in self._entries.items()]
        return [row for row in rows if row.expires_at is None or row.expires_at > now]

    def _live(self, key: str, now: float) -> Record | None:
        entry = self._entries.get(key)
        if entry is None or (entry.expires_at is not None and entry.expires_at <= now):
            return None
        return entry.record

    def _holds(self, condition: Condition, now: float) -> bool:
        if isinstance(condition, VersionIs):
            record = self._live(condition.key, now)
            return (record.version if record else None) == condition.version
        return self._is_empty(condition, now)

    def _is_empty(self, condition: Empty, now: float) -> bool:
        index = bisect_left(self._keys, condition.prefix)
        while index < len(self._keys) and self._keys[index].startswith(condition.prefix):
            if self._keys[index] != condition.but and self._live(self._keys[index], now):
                return False
            index += 1
        return True

    def _owner(self, owner: Owner, writes: Sequence[Write], conditions: Sequence[Condition]) -> Identity:
        """Return the owner of the records that a commit adds; `owner` is the user who is served."""
        if not owner.is_anonymous:
            return owner.identity
        keys = (each.key for each in (*conditions, *writes) if not isinstance(each, Empty))
        known = (self._holdings.owner_of(key) for key in keys)
        return next((each for each in known if each and each != owner.identity), owner.identity)

    def _apply(self, op: Write, owner: Identity, now: float) -> None:
        old = self._live(op.key, now)
        if isinstance(op, Ensure) and old:
            return
        owner = (self._holdings.owner_of(op.key) if old else None) or owner
        self._remove(op.key)
        if not isinstance(op, Delete):
            self._add(op.key, owner, _Entry(Record(op.value, old.version + 1 if old else 1), op.expires_at))

    def _add(self, key: str, owner: Identity, entry: _Entry) -> None:
        self._entries[key] = entry
        insort(self._keys, key)
        self._holdings.add(key, owner, len(key) + len(entry.record.value))
        if entry.expires_at is not None:
            insort(self._expiring, (entry.expires_at, key))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        del self._keys[bisect_left(self._keys, key)]
        self._holdings.remove(key)
        if entry.expires_at is not None:
            del self._expiring[bisect_left(self._expiring, (entry.expires_at, key))]
