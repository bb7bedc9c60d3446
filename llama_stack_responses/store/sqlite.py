"""Records in one SQLite file, which several server processes may share."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from ..core.errors import ApiError
from ..logs import get_logger
from .records import Condition, Conflict, Delete, Ensure, Op, Put, Record, VersionIs, Write, after_prefix, writes_of
from .worker import Job, Worker

logger = get_logger(__name__)

SCHEMA: Final = 1
"""The layout below, kept in the file's `user_version`."""

# An ordinary table with its own row numbers: in a WITHOUT ROWID table, values of some 2 KB would each leave most of an
# overflow page empty. New rows go to the table's end, so its pages are full.
_SCHEMA: Final = """
CREATE TABLE records(
  id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, version INTEGER NOT NULL, expires_at REAL, value BLOB NOT NULL);
CREATE INDEX records_expiry ON records(expires_at) WHERE expires_at IS NOT NULL;
"""
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
_WAL_PAGES: Final = 256

_TROUBLE: Final = {
    sqlite3.SQLITE_BUSY: "The response store is busy: another process holds its lock.",
    sqlite3.SQLITE_LOCKED: "The response store is busy: another process holds its lock.",
    sqlite3.SQLITE_FULL: "The response store has no room left: its disk is full.",
    sqlite3.SQLITE_IOERR: "The response store cannot be read or written: its disk reports an error or is full.",
    sqlite3.SQLITE_CORRUPT: "The response store's file is damaged.",
    sqlite3.SQLITE_NOTADB: "The response store's file is damaged or not a database.",
    sqlite3.SQLITE_READONLY: "The response store's file cannot be written: it is read-only.",
    sqlite3.SQLITE_PERM: "The response store's file cannot be opened: permission denied.",
    sqlite3.SQLITE_CANTOPEN: "The response store's file cannot be opened.",
    sqlite3.SQLITE_PROTOCOL: "The response store is busy: another process holds its lock.",
}
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)


class SqliteRecords:
    """Records in an SQLite file, in WAL mode.

    One thread writes: it takes all commits that wait and makes them one transaction. A few threads read, and see
    whatever was committed before they were asked. Threads and files are made on first use.

    Args:
        path: the file; it and its folder are created if need be, readable by this user alone.
        synchronous: "normal" keeps every acknowledged commit when a process dies, and may lose the last ones with the
            power; "full" keeps them then too, for one fsync a group of commits.
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
        file = partial(_File, Path(path), synchronous, busy_timeout)
        self._clock = clock
        self._writer = Worker("records-writer", lambda: _Writer(file()), threads=1, group=_GROUP)
        self._readers = Worker("records-reader", lambda: _Reader(file()), threads=readers, group=4)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        if not keys:
            return {}
        rows = await self._readers.submit(partial(_get_many, keys, self._clock()))
        return {key: Record(value, version) for key, value, version in rows}

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await self._writer.submit(partial(_commit, writes_of(ops), conditions, self._clock()))

    async def range(self, start: str, end: str, *, limit: int, reverse: bool = False) -> list[tuple[str, Record]]:
        sql = _RANGE_REVERSE if reverse else _RANGE
        rows = await self._readers.submit(partial(_select, sql, (start, end, self._clock(), limit)))
        return [(key, Record(value, version)) for key, value, version in rows]

    def watch(self) -> None:
        """The file tells nobody of a change: to look into it is quick."""

    async def now(self) -> float:
        return self._clock()

    async def sweep(self, now: float) -> int:
        swept: int = await self._writer.submit(partial(_sweep, now))
        return swept

    async def close(self) -> None:
        # The last connection to go moves the WAL into the file and removes it: that should be the writer's.
        await self._readers.stop()
        await self._writer.stop()


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


class _Reader:
    def __init__(self, file: _File) -> None:
        self._file = file

    def handle(self, jobs: list[Job[sqlite3.Connection]]) -> None:
        for job in jobs:
            try:
                job.result = job.call(self._file.connection())
            except Exception as error:  # noqa: BLE001 - whoever waits for the job gets it
                self._file.fail([job], error)

    def close(self) -> None:
        self._file.close()


class _Writer:
    def __init__(self, file: _File) -> None:
        self._file = file

    def handle(self, jobs: list[Job[sqlite3.Connection]]) -> None:
        if not self._transaction(jobs):
            # One of them may be to blame: the others shall not pay for it.
            for job in jobs:
                self._transaction([job])

    def _transaction(self, jobs: list[Job[sqlite3.Connection]]) -> bool:
        """Whether the jobs have their results and errors; if not, nothing was written."""
        begun = False
        try:
            connection = self._file.connection()
            connection.execute("BEGIN IMMEDIATE")
            begun = True
            for job in jobs:
                _run(job, connection)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whoever waits for the job gets it
            if begun:
                self._file.roll_back()
                if len(jobs) > 1:
                    return False
            self._file.fail(jobs, error)
        return True

    def close(self) -> None:
        # What cannot be moved into the file now stays in the WAL, and is found there by the next to open it.
        with contextlib.suppress(Exception):
            self._file.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._file.close()


def _run(job: Job[sqlite3.Connection], connection: sqlite3.Connection) -> None:
    job.error = None
    try:
        job.result = job.call(connection)
    except Conflict as conflict:
        # Raised before anything is written: the transaction goes on.
        job.error = conflict


@dataclass(slots=True)
class _File:
    """One thread's connection to the file, opened when it is needed and again after it broke."""

    path: Path
    synchronous: str
    busy_timeout: float
    _connection: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def roll_back(self) -> None:
        assert self._connection is not None
        try:
            # Some errors, a full disk among them, have rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def fail(self, jobs: Sequence[Job[sqlite3.Connection]], error: Exception) -> None:
        """Answer `jobs` with 503 if the file or its disk is to blame, else with the error itself."""
        message = _trouble(error)
        if message is None:
            for job in jobs:
                job.error = error
            return
        logger.error("%s %s: %s", message, self.path, error)
        if isinstance(error, sqlite3.Error) and _primary(error) not in _PASSING:
            self.close()
        for job in jobs:
            job.error = ApiError(503, message, retry_after=1)
            job.error.__cause__ = error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _make_private(self.path)
        connection = sqlite3.connect(
            self.path, timeout=self.busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, self.synchronous, self.busy_timeout)
        except BaseException:
            connection.close()
            raise
        return connection


def _make_private(path: Path) -> None:
    """Make an empty file that only this user may read, unless it is there."""
    if path.exists():
        return
    # The file itself is never opened but by SQLite: closing it would drop all locks that this process has on it.
    made, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    os.close(made)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)  # noqa: PTH108 - a name, as mkstemp gives it


def _trouble(error: Exception) -> str | None:
    """The sentence for a file or disk in trouble; None for any other error."""
    if isinstance(error, OSError):
        return f"The response store's file cannot be opened: {(error.strerror or str(error)).lower()}."
    return _TROUBLE.get(_primary(error)) if isinstance(error, sqlite3.Error) else None


def _primary(error: sqlite3.Error) -> int:
    """SQLite's result code without what an extended one adds; 0 if the error is Python's own."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _prepare(connection: sqlite3.Connection, synchronous: str, busy_timeout: float) -> None:
    if _version(connection) == 0:
        # It can be chosen only while the file is empty, which it is no longer once it is in WAL mode.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    _enter_wal_mode(connection, time.monotonic() + busy_timeout)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit={_WAL_PAGES * 4096}")
    if _version(connection) == 0:
        _create(connection)
    if _version(connection) > SCHEMA:
        raise ApiError(
            503,
            f"The response store was written by a newer version of this software (schema {_version(connection)}; "
            f"this one reads up to {SCHEMA}).",
        )


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _enter_wal_mode(connection: sqlite3.Connection, deadline: float) -> None:
    """Waits itself: two processes that both change the mode of a new file get "locked" at once, without the timeout."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have come first.
        if _version(connection) == 0:
            for statement in _SCHEMA.strip().split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
