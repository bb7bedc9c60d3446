"""A connection to the SQLite file that holds records: how it is made, prepared and mended."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..core.errors import ApiError
from ..logs import get_logger
from .worker import Job

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
WAL_BYTES: Final = 4 * 1024 * 1024
"""How long the WAL may grow before it is moved into the file."""

_MOMENT: Final = 50
"""Milliseconds that all writers may wait until the WAL begins again."""

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


@dataclass(slots=True)
class File:
    """A connection to the file, opened when it is needed and again after it broke; one thread at a time uses it.

    Attributes:
        busy_timeout: seconds to wait for another's lock.
    """

    path: Path
    synchronous: str
    busy_timeout: float
    _connection: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def begin(self) -> None:
        """Gives the connection the lock that a writer needs."""
        self.connection().execute("BEGIN IMMEDIATE")

    def wal_size(self) -> int:
        """Bytes in the WAL; what was moved into the file counts until the next write."""
        try:
            return Path(f"{self.path}-wal").stat().st_size
        except OSError:
            return 0

    def move_wal(self) -> bool:
        """Move the WAL into the file, so that it begins again; whether nobody was in the way for long."""
        connection = self.connection()
        # Nobody has to wait for this.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        # A WAL begins again once nothing in it is new. Writers that never pause have to, for what came meanwhile, and
        # for whoever reads it: for a moment they can, but who makes a copy of the file reads for minutes.
        connection.execute(f"PRAGMA busy_timeout={_MOMENT}").fetchall()
        try:
            [(busy, _, _)] = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout={round(self.busy_timeout * 1000)}").fetchall()
        return not busy

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


def is_locked(error: Exception) -> bool:
    """Whether another process, or another connection of this one, has the lock that was needed."""
    return isinstance(error, sqlite3.Error) and _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


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
    # Who commits does not wait for the WAL to be moved into the file: the writer's thread does that between commits.
    connection.execute("PRAGMA wal_autocheckpoint=0")
    # A WAL that begins again is cut to nothing: its size tells what is in it.
    connection.execute("PRAGMA journal_size_limit=0")
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
