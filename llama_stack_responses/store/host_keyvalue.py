"""Records in a key-value store that has neither multi-key transactions nor conditions.

Keys under the prefix: `r:KEY`, a line for each record; `e:WHEN/KEY`, for each record that expires; `c:ID`, a commit in
progress (a write-ahead log of one entry); and `o:`, sample keys that reveal the store's key order.

A commit of several keys is first written as a whole, under one key. From then on it counts as committed. If the process
dies before all keys are written, the next process that opens the store finishes the commit.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import batched, takewhile
from string import ascii_lowercase
from typing import Final, NamedTuple, Protocol

from ..concurrency.loop_local import Closing, LoopLocal
from ..core.errors import ApiError
from ..logs import get_logger
from .records import (
    CLOSED,
    Condition,
    Conflict,
    Delete,
    Ensure,
    Op,
    Put,
    Record,
    Unanswered,
    VersionIs,
    Write,
    after_prefix,
    bytes_of,
    until,
    writes_of,
)

logger = get_logger(__name__)

_MAX_CONCURRENT_GETS: Final = 16
_GETS_PER_BATCH: Final = 4
_MAX_SWEPT: Final = 1000
_LAST: Final = "\x7f"
"""Sorts after every character of a key."""

_SAMPLES: Final = ("-", ".", "/", "0", ":", "Z", "_", "z", "z" * 40)


class KeyValue(Protocol):
    """The interface of the host's key-value backends.

    A range may be unordered, may repeat a value, may include its end, and may leave out keys that do not begin with its
    start.
    """

    async def get(self, key: str) -> str | None: ...

    async def set(self, key: str, value: str) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def values_in_range(self, start_key: str, end_key: str) -> list[str]: ...

    async def shutdown(self) -> None: ...


class _StoredRecord(NamedTuple):
    """A record with its key and, if it expires, the time."""

    key: str
    record: Record
    expires_at: float | None

    def text(self) -> str:
        expiry = "" if self.expires_at is None else repr(self.expires_at)
        return f"{self.record.version} {expiry} {b64encode(self.record.value).decode()} {self.key}"

    @staticmethod
    def read(text: str) -> _StoredRecord:
        version, expiry, value, key = text.split(" ", 3)
        return _StoredRecord(key, Record(b64decode(value), int(version)), float(expiry) if expiry else None)

    def is_live(self, now: float) -> bool:
        return self.expires_at is None or self.expires_at > now


@dataclass(slots=True)
class _Made:
    """A commit that is made, and may fail.

    Attributes:
        changes: the new value of each key of the store that it changes.
        applied: whether it was applied, as far as that is known.
    """

    changes: Mapping[str, str | None]
    applied: bool = False


@dataclass(slots=True)
class _Store:
    """The store in one event loop.

    Attributes:
        commit_lock: held by the commit in progress.
        several: limits the concurrent gets.
        unfinished: whether a commit may be logged but not completely applied.
        broken: whether the store has to be reconnected.
    """

    keys: KeyValue
    commit_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    several: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT_GETS))
    unfinished: bool = True
    broken: bool = False


class KeyValueRecords:
    """Records for one server process, over a store that can only get and set single keys.

    Commits of one process exclude each other. Commits of two processes do not: one may delete content for lack of
    references while the other begins to refer to it. A read may see a partial commit, with its keys written in the
    order of its ops.

    Args:
        connect: opens the store, in the event loop that then uses it.
        prefix: the prefix of all keys.
        clock: returns seconds since the epoch.
    """

    transactional: Final = False
    has_own_clock: Final = False

    def __init__(
        self,
        connect: Callable[[], Awaitable[KeyValue]],
        *,
        prefix: str = "responses:",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._prefix = prefix
        self._clock = clock
        self._id = secrets.token_hex(8)
        self._made = _Made({})
        self._store = LoopLocal(self._open)

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        records: list[tuple[str, Record]] = []
        # A value's size is known only after it was read, so few are read at a time if the size is limited.
        for some in [keys] if max_bytes is None else batched(keys, _GETS_PER_BATCH):
            with self._errors_as_503():
                lines = await self._get(await self._ready(), some)
            now = self._clock()
            records += [(key, line.record) for key, line in lines.items() if line.is_live(now)]
            if max_bytes is not None and bytes_of(record for _, record in records) >= max_bytes:
                break
        return dict(until(records, max_bytes))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        with self._errors_as_503():
            store = await self._ready()
            async with store.commit_lock:
                await self._finish(store)
                now = self._clock()
                writes = writes_of(ops)
                known = await self._get(store, {each.key for each in (*writes, *_versions(conditions))})
                if failed := [each for each in conditions if not await self._holds(store, each, known, now)]:
                    raise Conflict(failed)
                changes = self._changes(known, writes, now)
                # Part of the commit may be written when this fails; the next call finishes the logged commit.
                made = _Made(changes)
                with self._errors_as_503(lambda reason: Unanswered(reason, partial(self._settle, made))):
                    await self._make(store, made)

    async def _settle(self, made: _Made) -> bool:
        """Return whether a commit that failed was applied, or finish it."""
        with self._errors_as_503():
            store = await self._ready()
            async with store.commit_lock:
                await self._finish(store)
        return made.applied

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        # The backend reads the whole prefix: it has no narrower range.
        with self._errors_as_503():
            lines = await self._lines(await self._ready(), start, end)
        records = ((line.key, line.record) for line in (lines[::-1] if reverse else lines)[: max(limit, 0)])
        return list(until(records, max_bytes))

    def pubsub(self) -> None:
        """Return None: the store has no notifications."""

    async def now(self) -> float:
        return self._clock()

    async def sweep(self, now: float) -> int:
        with self._errors_as_503():
            store = await self._ready()
            rows = await store.keys.values_in_range(f"{self._prefix}e:", f"{self._prefix}e:{_LAST}")
            due = [row for row in rows if float(row.partition(" ")[0]) <= now][:_MAX_SWEPT]
            async with store.commit_lock:
                await self._finish(store)
                lines = await self._get(store, [row.partition(" ")[2] for row in due])
                expired = [Delete(line.key) for line in lines.values() if not line.is_live(now)]
                await self._make(store, _Made(self._changes(lines, expired, now)))
        return len(expired)

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        # Commits of another process would be seen in part: this store is for one process.
        for kind in ascii_lowercase:
            with self._errors_as_503():
                lines = await self._lines(await self._ready(), f"{kind}/", after_prefix(f"{kind}/"))
            yield [Put(line.key, line.record.value, line.expires_at) for line in lines]

    async def size(self) -> None:
        """Return None: the backends do not report it."""

    async def exists(self) -> bool:
        with self._errors_as_503():
            keys = await self._connect()
            try:
                return bool(await self._samples(keys))
            finally:
                await keys.shutdown()

    async def close(self) -> None:
        await self._store.close(lambda store: store.keys.shutdown())

    async def _ready(self) -> _Store:
        """Return the store in the running loop, with a live connection."""
        try:
            store = await self._store.get()
        except Closing as error:
            raise ApiError(503, CLOSED, retry_after=1) from error
        if store.broken:
            await self._mend(store)
        return store

    async def _mend(self, store: _Store) -> None:
        """Reconnect: the backend may not recover from a lost connection by itself."""
        async with store.commit_lock:
            if store.broken:
                store.keys = await self._connect()
                store.unfinished = True
                store.broken = False

    @contextmanager
    def _errors_as_503(
        self, error_of: Callable[[str], ApiError] = lambda reason: ApiError(503, reason, retry_after=1)
    ) -> Iterator[None]:
        """Convert any error of the store into a 503."""
        try:
            yield
        except (ApiError, Conflict):
            raise
        except Exception as error:
            if store := self._store.opened:
                store.broken = True
            message = f"The response store, a key-value backend of the stack, does not answer ({type(error).__name__})."
            logger.error("response store unavailable: %s (%s)", message, error)
            raise error_of(message) from error

    async def _open(self) -> _Store:
        store = _Store(await self._connect())
        if not await self._is_ordered(store):
            for sample in _SAMPLES:
                await store.keys.set(f"{self._prefix}o:{sample}", sample)
            if not await self._is_ordered(store):
                raise ApiError(
                    503,
                    "The response store's keys are not in the order of their bytes, as in a database with a locale "
                    "other than C: choose another backend, or the store 'postgres'.",
                )
        async with store.commit_lock:
            await self._finish(store)
        return store

    async def _is_ordered(self, store: _Store) -> bool:
        return set(await self._samples(store.keys)) == set(_SAMPLES)

    async def _samples(self, keys: KeyValue) -> list[str]:
        return await keys.values_in_range(f"{self._prefix}o:", f"{self._prefix}o:{_LAST}")

    async def _get(self, store: _Store, keys: Iterable[str]) -> dict[str, _StoredRecord]:
        """Return the stored lines of `keys`, expired or not."""

        async def get(key: str) -> str | None:
            async with store.several:
                return await store.keys.get(f"{self._prefix}r:{key}")

        texts = await asyncio.gather(*map(get, dict.fromkeys(keys)))
        lines = [_StoredRecord.read(text) for text in texts if text is not None]
        return {line.key: line for line in lines}

    async def _lines(self, store: _Store, start: str, end: str) -> list[_StoredRecord]:
        """Return the records with start <= key < end, ordered by key."""
        if start >= end:
            return []
        shared = f"{self._prefix}r:{_shared(start, end)}"
        texts = await store.keys.values_in_range(shared, shared + _LAST)
        now = self._clock()
        lines = {
            line.key: line for line in map(_StoredRecord.read, texts) if start <= line.key < end and line.is_live(now)
        }
        return [lines[key] for key in sorted(lines)]

    async def _holds(self, store: _Store, condition: Condition, known: Mapping[str, _StoredRecord], now: float) -> bool:
        if isinstance(condition, VersionIs):
            line = known.get(condition.key)
            return (line.record.version if line and line.is_live(now) else None) == condition.version
        lines = await self._lines(store, condition.prefix, after_prefix(condition.prefix))
        return all(line.key == condition.but for line in lines)

    def _changes(self, known: Mapping[str, _StoredRecord], ops: Sequence[Write], now: float) -> dict[str, str | None]:
        """Return the new value of each key of the store that the ops change; None for a key that is deleted."""
        lines: dict[str, _StoredRecord | None] = {}
        for op in ops:
            old = lines.get(op.key, known.get(op.key))
            live = old if old and old.is_live(now) else None
            lines[op.key] = live if isinstance(op, Ensure) and live else _written(op, live)
        changes: dict[str, str | None] = {}
        for key, line in lines.items():
            old = known.get(key)
            if line is old:
                continue
            if old and old.expires_at is not None:
                changes[self._expiry_row(old)] = None
            changes[f"{self._prefix}r:{key}"] = line.text() if line else None
            if line and line.expires_at is not None:
                changes[self._expiry_row(line)] = f"{line.expires_at!r} {key}"
        return changes

    def _expiry_row(self, line: _StoredRecord) -> str:
        return f"{self._prefix}e:{line.expires_at!r}/{line.key}"

    async def _make(self, store: _Store, made: _Made) -> None:
        self._made, store.unfinished = made, True
        is_logged = len(made.changes) > 1
        if is_logged:
            await store.keys.set(f"{self._prefix}c:{self._id}", json.dumps([self._id, made.changes]))
        await self._apply(store, made.changes)
        made.applied = True
        if is_logged:
            await store.keys.delete(f"{self._prefix}c:{self._id}")
        store.unfinished = False

    async def _apply(self, store: _Store, changes: Mapping[str, str | None]) -> None:
        for key, value in changes.items():
            if value is None:
                await store.keys.delete(key)
            else:
                await store.keys.set(key, value)

    async def _finish(self, store: _Store) -> None:
        """Apply the commits that were logged but not completely applied. This is idempotent."""
        if not store.unfinished:
            return
        for text in await store.keys.values_in_range(f"{self._prefix}c:", f"{self._prefix}c:{_LAST}"):
            of, changes = json.loads(text)
            await self._apply(store, changes)
            self._made.applied |= of == self._id  # no earlier one of this process is logged
            await store.keys.delete(f"{self._prefix}c:{of}")
        if len(self._made.changes) == 1:  # is not logged
            [(key, value)] = self._made.changes.items()
            self._made.applied = await store.keys.get(key) == value
        store.unfinished = False


def _written(op: Write, live: _StoredRecord | None) -> _StoredRecord | None:
    if isinstance(op, Delete):
        return None
    expires_at = None if op.expires_at is None or math.isinf(op.expires_at) else float(op.expires_at)
    return _StoredRecord(op.key, Record(op.value, live.record.version + 1 if live else 1), expires_at)


def _shared(start: str, end: str) -> str:
    """Return the common prefix of all keys between the two."""
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(start, end, strict=False)))


def _versions(conditions: Sequence[Condition]) -> list[VersionIs]:
    return [each for each in conditions if isinstance(each, VersionIs)]
