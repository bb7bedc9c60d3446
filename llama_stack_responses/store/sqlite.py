"""Records in one SQLite file, which several server processes may share."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from .records import Condition, Conflict, Delete, Ensure, Op, Put, Record, VersionIs, Write, after_prefix, writes_of
from .sqlite_file import File
from .sqlite_inline import Inline
from .sqlite_threads import Reader, Writer
from .worker import Worker, job_of

_GET: Final = "SELECT key, value, version FROM records WHERE key = ? AND (expires_at IS NULL OR expires_at > ?)"
# json_each: one statement for any number of keys stays prepared.
_GET_MANY: Final = """
SELECT key, value, version FROM records
WHERE key IN (SELECT value FROM json_each(?)) AND (expires_at IS NULL OR expires_at > ?)
"""
_VERSIONS: Final = """
SELECT key, version FROM records
WHERE key IN (SELECT value FROM json_each(?)) AND (expires_at IS NULL OR expires_at > ?)
"""
_RANGE: Final = """
SELECT key, value, version FROM records
WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key LIMIT ?
"""
_RANGE_REVERSE: Final = """
SELECT key, value, version FROM records
WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key DESC LIMIT ?
"""
_EXISTS: Final = """
SELECT 1 FROM records
WHERE key >= ? AND key < ? AND key IS NOT ? AND (expires_at IS NULL OR expires_at > ?) LIMIT 1
"""
_PUT: Final = """
INSERT INTO records(key, value, expires_at, version) VALUES (?, ?, ?, 1) ON CONFLICT(key) DO UPDATE SET
value = excluded.value, expires_at = excluded.expires_at,
version = CASE WHEN expires_at <= ? THEN 1 ELSE version + 1 END
"""
_ENSURE: Final = """
INSERT INTO records(key, value, expires_at, version) VALUES (?, ?, ?, 1) ON CONFLICT(key) DO UPDATE SET
value = excluded.value, expires_at = excluded.expires_at, version = 1 WHERE expires_at <= ?
"""
_DELETE: Final = "DELETE FROM records WHERE key = ?"
_SWEEP: Final = "DELETE FROM records WHERE id IN (SELECT id FROM records WHERE expires_at <= ? LIMIT 1000)"

_GROUP: Final = 256
_FEW: Final = 32
_ROW: Final = 64
"""Bytes that take as long as it takes to find a row."""


class SqliteRecords:
    """Records in an SQLite file, in WAL mode.

    What is small is done in the event loop itself, the commits of one turn of it as one transaction. For the rest there
    are threads: one writes, and makes one transaction of all commits that wait; a few read. Who reads sees whatever was
    committed before it asked. Threads and files are made on first use.

    Args:
        path: the file; it and its folder are created if need be, readable by this user alone.
        synchronous: "normal" keeps every acknowledged commit when a process dies, and may lose the last ones with the
            power; "full" keeps them then too, for one fsync a group of commits, which all are the thread's then.
        busy_timeout: seconds to wait for another process's lock.
        readers: how many threads read.
        clock: seconds since the epoch.
    """

    transactional: Final = True

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout: float = 5.0,
        readers: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        file = partial(File, Path(path), synchronous)
        self._clock = clock
        self._waits_for_disk = synchronous == "full"
        self._writer = Worker("records-writer", lambda: Writer(file(busy_timeout)), threads=1, group=_GROUP)
        self._readers = Worker("records-reader", lambda: Reader(file(busy_timeout)), threads=readers, group=4)
        self._inline = Inline(file(0), self._writer, time.monotonic)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        if not keys:
            return {}
        rows = await self._read(partial(_get_many, keys, self._clock()), len(keys))
        return {key: Record(value, version) for key, value, version in rows}

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        writes = writes_of(ops)
        job = job_of(partial(_commit, writes, conditions, self._clock()))
        if self._waits_for_disk:
            self._writer.put(job)
        else:
            self._inline.commit(job, _size(writes) + _ROW * len(conditions))
        await job.future

    async def range(self, start: str, end: str, *, limit: int, reverse: bool = False) -> list[tuple[str, Record]]:
        sql = _RANGE_REVERSE if reverse else _RANGE
        rows = await self._read(partial(_select, sql, (start, end, self._clock(), limit)), limit)
        return [(key, Record(value, version)) for key, value, version in rows]

    async def _read(self, call: Callable[[sqlite3.Connection], list[tuple[Any, ...]]], most: int) -> list[Any]:
        """The rows that the call finds, `most` of them at most."""
        rows = self._inline.read(call) if most <= _FEW else None
        return await self._readers.submit(call) if rows is None else rows

    def watch(self) -> None:
        """The file tells nobody of a change: to look into it is quick."""

    async def now(self) -> float:
        return self._clock()

    async def sweep(self, now: float) -> int:
        swept: int = await self._writer.submit(partial(_sweep, now))
        return swept

    async def close(self) -> None:
        self._inline.close()
        # The last connection to go moves the WAL into the file and removes it: that should be the writer's.
        await self._readers.stop()
        await self._writer.stop()


def _size(writes: Sequence[Write]) -> int:
    return sum(_ROW if isinstance(write, Delete) else _ROW + len(write.value) for write in writes)


def _select(sql: str, parameters: tuple[Any, ...], connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters).fetchall()


def _get_many(keys: Sequence[str], now: float, connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    if len(keys) == 1:
        return _select(_GET, (keys[0], now), connection)
    return _select(_GET_MANY, (json.dumps(keys), now), connection)


def _commit(ops: Sequence[Write], conditions: Sequence[Condition], now: float, connection: sqlite3.Connection) -> None:
    if failed := _failed(conditions, now, connection):
        raise Conflict(failed)
    for kind, batch in _batches(ops, now):
        connection.executemany(kind, batch)


def _failed(conditions: Sequence[Condition], now: float, connection: sqlite3.Connection) -> list[Condition]:
    keys = [condition.key for condition in conditions if isinstance(condition, VersionIs)]
    versions = dict(_select(_VERSIONS, (json.dumps(keys), now), connection)) if keys else {}
    failed: list[Condition] = []
    for condition in conditions:
        if isinstance(condition, VersionIs):
            holds = versions.get(condition.key) == condition.version
        else:
            end = after_prefix(condition.prefix)
            holds = not _select(_EXISTS, (condition.prefix, end, condition.but, now), connection)
        if not holds:
            failed.append(condition)
    return failed


def _batches(ops: Sequence[Write], now: float) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """The statements for `ops`, in their order; neighbours of one kind share one."""
    batches: list[tuple[str, list[tuple[Any, ...]]]] = []
    for op in ops:
        sql, row = _statement(op, now)
        if not batches or batches[-1][0] != sql:
            batches.append((sql, []))
        batches[-1][1].append(row)
    return batches


def _statement(op: Write, now: float) -> tuple[str, tuple[Any, ...]]:
    match op:
        case Put(key, value, expires_at):
            return _PUT, (key, value, expires_at, now)
        case Ensure(key, value, expires_at):
            return _ENSURE, (key, value, expires_at, now)
        case Delete(key):
            return _DELETE, (key,)


def _sweep(now: float, connection: sqlite3.Connection) -> int:
    swept = connection.execute(_SWEEP, (now,)).rowcount
    # What deletes left free goes back to the file system, a bounded part of it at a time.
    connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()
    return swept
