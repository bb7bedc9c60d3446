"""Records in one SQLite file, which several server processes may share: its statements, and the size of a commit."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal

from ..concurrency.offloading import in_thread
from .records import (
    Condition,
    Conflict,
    Delete,
    Ensure,
    Op,
    PubSub,
    Put,
    Record,
    VersionIs,
    Write,
    after_prefix,
    until,
    woken_by,
    writes_of,
)
from .sqlite_clock import SqliteClock
from .sqlite_connection import OpenedFile, SqliteFile
from .sqlite_inline import SLOW_SECONDS, Inline
from .sqlite_inspection import inspect
from .sqlite_pubsub import SqliteNotifications
from .sqlite_reserve import Reserve
from .sqlite_search import SqliteSearch
from .sqlite_threads import ReadHandler, WriteHandler, key_list
from .thread_pool import Room, ThreadPool, ThreadTask, job_of

# {value}: the value, or NULL in place of a large one; SQLite knows its length without reading it.
_VALUE: Final = "value"
_SMALL_VALUE: Final = "CASE WHEN length(value) <= 65536 THEN value END"
_GET: Final = "SELECT key, {value}, version FROM records WHERE key = ? AND (expires_at IS NULL OR expires_at > ?)"
# json_each: one prepared statement serves any number of keys. The join keeps the order of the keys.
_GET_MANY: Final = """
SELECT records.key, {value}, version FROM (SELECT value AS key FROM json_each(?)) AS wanted CROSS JOIN records
ON records.key = wanted.key AND (expires_at IS NULL OR expires_at > ?)
"""
_VERSIONS: Final = """
SELECT key, version FROM records
WHERE key IN (SELECT value FROM json_each(?)) AND (expires_at IS NULL OR expires_at > ?)
"""
_RANGE: Final = """
SELECT key, {value}, version FROM records
WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key LIMIT ?
"""
_RANGE_REVERSE: Final = """
SELECT key, {value}, version FROM records
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
_EXPIRED: Final = "SELECT id, length(value) FROM records WHERE expires_at <= ? LIMIT 1000"
_SWEEP: Final = "DELETE FROM records WHERE id IN (SELECT value FROM json_each(?))"
_SWEPT_BYTES: Final = 4 * 2**20
"""Bytes of expired values that a transaction deletes."""

_ALL: Final = "SELECT key, value, expires_at FROM records WHERE expires_at IS NULL OR expires_at > ?"
_FETCHED_ROWS: Final = 64
"""Rows of a snapshot that are read at a time."""

_COMMITS_PER_GROUP: Final = 256
_FEW: Final = 32
_MANY: Final = 1_000
"""Ops of a commit above which a thread measures them."""
_INLINE_ROWS: Final = 128
"""Rows and conditions of a commit that the event loop makes itself: about a millisecond."""
_ROW_BYTES: Final = 64
"""Bytes whose cost equals that of finding a row."""
_FREEING_BYTES: Final = 4096
"""Bytes that a commit which frees room may write."""
_PRECEDING_BYTES: Final = 1024
_MOVING_BYTES: Final = 64 * 1024
"""Bytes that a commit which precedes a deletion may write, and how many of them only while the reserve is whole."""


class SqliteRecords:
    """Records in an SQLite file, in WAL mode.

    Small reads and commits run in the event loop itself; the commits of one loop iteration share a transaction. Threads
    do the rest: one writes, with one transaction for all waiting commits; a few read. A read sees everything that was
    committed before it was requested. Threads and files are opened on first use.

    Args:
        path: the file; it and its folder are created if needed, readable by this user alone.
        synchronous: "normal" keeps every acknowledged commit when a process dies, and may lose the last ones in a power
            failure; "full" keeps them then too, for one fsync per group of commits, and all commits then run in the
            thread.
        busy_timeout: seconds to wait for another process's lock.
        readers: number of threads that read.
        clock: returns seconds since the epoch; None for the clock that all processes with the file share.
    """

    transactional: Final = True
    has_own_clock: Final = False

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout: float = 5.0,
        readers: int = 2,
        clock: Callable[[], float] | None = None,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self._path = Path(path)
        self._opened = OpenedFile()
        file = partial(SqliteFile, self._path, synchronous, opened=self._opened)
        self._file = file
        self._reserve = Reserve(self._path)
        self._inspected = False
        self._shared_clock = SqliteClock(self._path)
        self._clock = clock or self._shared_clock
        self._notifications = SqliteNotifications(self._path)
        self._waits_for_disk = synchronous == "full"
        self._writer = ThreadPool(
            "records-writer", lambda: WriteHandler(file(busy_timeout)), threads=1, group=_COMMITS_PER_GROUP
        )
        self._readers = ThreadPool("records-reader", lambda: ReadHandler(file(busy_timeout)), threads=readers, group=4)
        self._searchers = ThreadPool("records-search", lambda: ReadHandler(file(busy_timeout)), threads=1, group=1)
        self._search = SqliteSearch(self._writer, self._readers, self._searchers, self._clock)
        self._inline = Inline(file(0), self._writer, time.monotonic, slow_seconds)

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        if not keys:
            return {}
        if len(keys) > _FEW:
            found: dict[str, Record] = await self._readers.submit(partial(_get_many, keys, self._clock(), max_bytes))
            return found
        unique = list(dict.fromkeys(keys))
        if len(unique) == 1:
            return dict(await self._read(_GET, (unique[0], self._clock()), 1, max_bytes))
        return dict(await self._read(_GET_MANY, (key_list(unique), self._clock()), len(unique), max_bytes))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        measure = partial(_measured, ops, conditions)
        writes, woken, keys, size, room = await in_thread(measure) if len(ops) > _MANY else measure()
        job = job_of(partial(_commit, writes, conditions, self._clock()))
        job.size = size + _ROW_BYTES * len(conditions)
        job.keys, job.room = keys, room
        if self._waits_for_disk or len(writes) + len(conditions) > _INLINE_ROWS:
            self._writer.put(job)
        else:
            self._inline.commit(job)
        await job.future
        self._notifications.send(woken)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        sql = _RANGE_REVERSE if reverse else _RANGE
        return await self._read(sql, (start, end, self._clock(), limit), limit, max_bytes)

    async def _read(
        self, sql: str, parameters: tuple[Any, ...], count: int, max_bytes: int | None
    ) -> list[tuple[str, Record]]:
        """Return the records that the statement finds, at most `count`; a few small ones are read without a thread."""
        if count <= _FEW:
            small = self._inline.read(partial(_select, sql.format(value=_SMALL_VALUE), parameters))
            if small is not None:
                rows = [(key, Record(value, version)) for key, value, version in small if value is not None]
                if len(rows) == len(small):
                    return rows if max_bytes is None else list(until(rows, max_bytes))
        records: list[tuple[str, Record]] = await self._readers.submit(
            partial(_select_until, sql.format(value=_VALUE), parameters, max_bytes)
        )
        return records

    def pubsub(self) -> AbstractAsyncContextManager[PubSub]:
        return self._notifications.opened()

    async def now(self) -> float:
        return self._clock()

    def search_index(self) -> SqliteSearch:
        return self._search

    async def sweep(self, now: float) -> int:
        # Servers call this when they start: a store that is only written by a command needs no reserve.
        job = job_of(partial(_sweep, now, self._reserve))
        job.room = Room.USED
        self._writer.put(job)
        swept: int = await job.future
        return swept

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        # One long read on a separate connection: others keep writing, into the WAL.
        now, file, job = (
            self._clock(),
            self._file(5.0),
            ThreadTask[sqlite3.Connection](lambda _: None, asyncio.get_running_loop().create_future()),
        )
        try:
            rows = await in_thread(lambda: file.connection().execute(_ALL, (now,)))
            while page := await in_thread(rows.fetchmany, _FETCHED_ROWS):
                yield [Put(*row) for row in page]
        except (sqlite3.Error, OSError) as error:
            file.fail([job], error)
            raise job.error or error from error
        finally:
            await in_thread(file.close)

    async def size(self) -> int | None:
        size: int = await self._readers.submit(_file_size)
        return size

    async def free(self) -> int:
        return await in_thread(partial(_free_bytes, self._path.parent))

    async def damage(self) -> str:
        if not self._inspected:
            self._inspected = True
            self._opened.damage = self._opened.damage or await inspect(self._path)
        return self._opened.damage

    async def exists(self) -> bool:
        return self._path.exists()

    async def close(self) -> None:
        self._inline.close()
        # The last connection to close moves the WAL into the file and deletes it: that should be the writer's.
        await self._readers.stop()
        await self._searchers.stop()
        await self._writer.stop()
        self._notifications.close()
        self._shared_clock.close()
        self._opened.identity = None


def _file_size(connection: sqlite3.Connection) -> int:
    """Return the bytes of the file, without the WAL."""
    [(size,)] = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchall()
    return int(size)


def _free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk that has this folder."""
    return shutil.disk_usage(folder).free


def _measured(
    ops: Sequence[Op], conditions: Sequence[Condition]
) -> tuple[list[Write], list[str], list[str], int, Room]:
    """Return what a commit writes, notifies and replaces, about how many bytes it writes, and what room it may use.

    What may be replaced are the keys that are written in any case, and that need not be absent.
    """
    writes = writes_of(ops)
    written = [len(write.value) for write in writes if not isinstance(write, Delete)]
    size = _ROW_BYTES * len(writes) + sum(written)
    absent = {each.key for each in conditions if isinstance(each, VersionIs) and each.version is None}
    replaced = [write.key for write in writes if not isinstance(write, Ensure) and write.key not in absent]
    return writes, woken_by(ops), replaced, size, _room_for(ops, len(writes), written)


def _room_for(ops: Sequence[Op], writes: int, written: Sequence[int]) -> Room:
    """Return what room a commit may use: that of the reserve, if it deletes as much as it writes, or precedes that.

    What precedes deletions must leave them the most of it, however many such commits there are.

    Args:
        writes: the number of rows that it writes or deletes.
        written: the bytes of each that it writes.
    """
    size = sum(written)
    if 2 * len(written) <= writes and size <= _FREEING_BYTES:
        return Room.USED
    if size > _MOVING_BYTES or not any(isinstance(op, Put) and op.uses_reserve for op in ops):
        return Room.FREE
    return Room.USED if size <= _PRECEDING_BYTES else Room.WHOLE


def _select(sql: str, parameters: tuple[Any, ...], connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute(sql, parameters).fetchall()


def _get_many(
    keys: Sequence[str], now: float, max_bytes: int | None, connection: sqlite3.Connection
) -> dict[str, Record]:
    parameters = (key_list(list(dict.fromkeys(keys))), now)
    return dict(_select_until(_GET_MANY.format(value=_VALUE), parameters, max_bytes, connection))


def _select_until(
    sql: str, parameters: tuple[Any, ...], max_bytes: int | None, connection: sqlite3.Connection
) -> list[tuple[str, Record]]:
    """Return records until their values reach `max_bytes` in total; read no further value."""
    cursor = connection.execute(sql, parameters)
    try:
        return list(until(_records(cursor), max_bytes))
    finally:
        cursor.close()


def _records(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Record]]:
    return ((key, Record(value, version)) for key, value, version in rows)


def _commit(ops: Sequence[Write], conditions: Sequence[Condition], now: float, connection: sqlite3.Connection) -> None:
    if failed := _failed(conditions, now, connection):
        raise Conflict(failed)
    for kind, batch in _batches(ops, now):
        connection.executemany(kind, batch)


def _failed(conditions: Sequence[Condition], now: float, connection: sqlite3.Connection) -> list[Condition]:
    keys = [condition.key for condition in conditions if isinstance(condition, VersionIs)]
    versions = dict(_select(_VERSIONS, (key_list(keys), now), connection)) if keys else {}
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


def _batches(ops: Sequence[Write], now: float) -> Iterable[tuple[str, list[tuple[Any, ...]]]]:
    """Return the statements for `ops`, each with its rows: those of one kind share a statement."""
    statements = [_statement(op, now) for op in ops]
    if len({row[0] for _, row in statements}) < len(statements):
        return [(sql, [row]) for sql, row in statements]  # the order of the ops of one key counts
    batches: dict[str, list[tuple[Any, ...]]] = {}
    for sql, row in statements:
        batches.setdefault(sql, []).append(row)
    return batches.items()


def _statement(op: Write, now: float) -> tuple[str, tuple[Any, ...]]:
    # Every write passes here: a match of patterns takes twice as long.
    if isinstance(op, Delete):
        return _DELETE, (op.key,)
    return _PUT if isinstance(op, Put) else _ENSURE, (op.key, op.value, op.expires_at, now)


def _sweep(now: float, reserve: Reserve, connection: sqlite3.Connection) -> int:
    expired = connection.execute(_EXPIRED, (now,)).fetchall()
    sizes = accumulate(size for _, size in expired)
    count = 1 + sum(size <= _SWEPT_BYTES for size in sizes)
    swept = connection.execute(_SWEEP, (key_list([row for row, _ in expired[:count]]),)).rowcount
    # Return pages that deletions freed to the file system, a limited number at a time.
    connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()
    if not reserve.is_used():
        reserve.fill()
    return swept
