"""Records in this process's memory, for tests and for stacks without durable storage."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from .records import Condition, Conflict, Delete, Empty, Ensure, Op, Put, Record, VersionIs, Write, until, writes_of

_SWEEP = 1000


@dataclass(frozen=True, slots=True)
class _Entry:
    record: Record
    expires_at: float | None


class MemoryRecords:
    """Records that end with the process, limited by number and size; the oldest written are evicted first.

    Args:
        max_records: maximum number of records.
        max_bytes: maximum size of all keys and values in bytes.
        clock: returns seconds since the epoch.
    """

    transactional: Final = True

    def __init__(
        self,
        max_records: int = 100_000,
        max_bytes: int = 256 * 1024 * 1024,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: dict[str, _Entry] = {}  # in the order of their writes
        self._keys: list[str] = []  # the same keys, sorted
        self._expiring: list[tuple[float, str]] = []  # sorted
        self._bytes = 0

    async def get_many(self, keys: Sequence[str], *, most: int | None = None) -> dict[str, Record]:
        now = self._clock()
        found = ((key, self._live(key, now)) for key in dict.fromkeys(keys))
        return dict(until(((key, record) for key, record in found if record is not None), most))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        now = self._clock()
        if failed := [condition for condition in conditions if not self._holds(condition, now)]:
            raise Conflict(failed)
        for op in writes_of(ops):
            self._apply(op, now)
        while len(self._entries) > self._max_records or self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, most: int | None = None
    ) -> list[tuple[str, Record]]:
        now = self._clock()
        first, last = bisect_left(self._keys, start), bisect_left(self._keys, end)
        keys = (self._keys[index] for index in (range(last - 1, first - 1, -1) if reverse else range(first, last)))
        found = ((key, record) for key in keys if (record := self._live(key, now)))
        return list(islice(until(found, most), max(limit, 0)))

    def watch(self) -> None:
        """Return None: no other process shares these records."""

    async def now(self) -> float:
        return self._clock()

    async def sweep(self, now: float) -> int:
        expired = [key for expires_at, key in self._expiring[:_SWEEP] if expires_at <= now]
        for key in expired:
            self._remove(key)
        return len(expired)

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        now = self._clock()
        rows = [Put(key, each.record.value, each.expires_at) for key, each in self._entries.items()]
        yield [row for row in rows if row.expires_at is None or row.expires_at > now]

    async def size(self) -> int | None:
        return self._bytes

    async def close(self) -> None:
        """Do nothing: the records live as long as the object."""

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

    def _apply(self, op: Write, now: float) -> None:
        old = self._live(op.key, now)
        if isinstance(op, Ensure) and old:
            return
        self._remove(op.key)
        if not isinstance(op, Delete):
            self._add(op.key, _Entry(Record(op.value, old.version + 1 if old else 1), op.expires_at))

    def _add(self, key: str, entry: _Entry) -> None:
        self._entries[key] = entry
        insort(self._keys, key)
        self._bytes += len(key) + len(entry.record.value)
        if entry.expires_at is not None:
            insort(self._expiring, (entry.expires_at, key))

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        del self._keys[bisect_left(self._keys, key)]
        self._bytes -= len(key) + len(entry.record.value)
        if entry.expires_at is not None:
            del self._expiring[bisect_left(self._expiring, (entry.expires_at, key))]
