"""Open, prepare and repair a connection to the SQLite file of the records."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..core.errors import ApiError
from ..logs import get_logger
from .records import NoRoom
from .sqlite_reserve import Reserve
from .thread_pool import ThreadTask

logger = get_logger(__name__)

SCHEMA: Final = 1
"""Version of the layout below, stored in the file's `user_version`."""

# An ordinary rowid table: in a WITHOUT ROWID table, values of about 2 KB would each leave most of an overflow page
# empty. New rows go to the table's end, so its pages are full.
_SCHEMA: Final = """
CREATE TABLE records(
  id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, version INTEGER NOT NULL, expires_at REAL, value BLOB NOT NULL);
CREATE INDEX records_expiry ON records(expires_at) WHERE expires_at IS NOT NULL;
"""
WAL_BYTES: Final = 4 * 1024 * 1024
"""Size of the WAL in bytes above which it is moved into the file."""

_BUSY_MILLISECONDS: Final = 50
"""Milliseconds that all writers may wait until the WAL restarts."""

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
_MOVED: Final = "it was moved, deleted or replaced while it was open; put it back, or restart the servers"
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
_FAST: Final = 2
_REGAINED_PAGES: Final = 500
"""Pages that a deletion on a full disk returns to it. Moving them writes as many, into a part of the reserve."""


@dataclass(slots=True)
class OpenedFile:
    """The file that a store has opened.

    Attributes:
        identity: its device and number; None before it was opened.
        damage: what a call has found damaged; empty if none has.
    """

    identity: tuple[int, int] | None = None
    damage: str = ""

    def check(self, path: str) -> None:
        """Check that the path names this file.

        Raises:
            OSError: it does not.
        """
        try:
            identity = _identity(path)
        except FileNotFoundError:
            identity = None
        if identity != self.identity:
            raise OSError(errno.ESTALE, _MOVED)


@dataclass(slots=True)
class SqliteFile:
    """A connection to the file, opened on demand and reopened after an error; used by one thread at a time.

    The system keeps a deleted file as long as it is open, and what is written to it then is lost. So each call checks
    that the path still names the file that is open. A file that replaced it is not opened either: the WAL next to
    it belongs to the earlier file, and would be applied to it.

    Attributes:
        busy_timeout: seconds to wait for another connection's lock.
        opened: the file that the connections of the store have open.
        reserve: room on the disk for deletions.
    """

    path: Path
    synchronous: str
    busy_timeout: float
    opened: OpenedFile = field(default_factory=OpenedFile)
    _connection: sqlite3.Connection | None = None
    _name: str = field(init=False)
    _wal: str = field(init=False)
    reserve: Reserve = field(init=False)

    def __post_init__(self) -> None:
        # Every call reads the file's status, which takes several times as long for a `Path`.
        self._name = str(self.path)
        self._wal = f"{self.path}-wal"
        self.reserve = Reserve(self.path)

    def connection(self) -> sqlite3.Connection:
        """Return the open connection.

        Raises:
            OSError: the file cannot be opened, or is no longer at its path.
        """
        if self._connection is None:
            self._connection = self._open()
        elif not self._connection.in_transaction:
            self.opened.check(self._name)
        return self._connection

    def begin(self) -> None:
        """Take the writer lock."""
        self.connection().execute("BEGIN IMMEDIATE")

    def wal_size(self) -> int:
        """Return the bytes in the WAL; bytes that were moved into the file count until the next write."""
        try:
            return os.stat(self._wal).st_size  # noqa: PTH116 - a string
        except OSError:
            return 0

    def move_wal(self) -> bool:
        """Move the WAL into the file and restart it; return False if other connections prevented the restart."""
        connection = self.connection()
        # This blocks no other connection.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        # The WAL restarts once all of it is in the file and unread. Under continuous writes this needs a pause of all
        # writers, and the end of all reads. A short pause is acceptable, but a backup of the file reads for minutes.
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}").fetchall()
        try:
            [(busy, _, _)] = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout={round(self.busy_timeout * 1000)}").fetchall()
        return not busy

    @contextlib.contextmanager
    def quick_deletion(self) -> Iterator[None]:
        """Delete in few bytes: some builds of SQLite write all that is deleted once more, as zeros."""
        connection = self.connection()
        [(as_built,)] = connection.execute("PRAGMA secure_delete").fetchall()
        connection.execute("PRAGMA secure_delete=FAST").fetchall()
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"PRAGMA secure_delete={'FAST' if as_built == _FAST else as_built}").fetchall()

    def regain_room(self) -> None:
        """Return room that a deletion has freed to the disk, as much as it has, and hold the reserve again."""
        connection = self.connection()
        with contextlib.suppress(sqlite3.Error):
            connection.execute(f"PRAGMA incremental_vacuum({_REGAINED_PAGES})").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.reserve.fill()

    def roll_back(self) -> None:
        assert self._connection is not None
        try:
            # Some errors, such as a full disk, have rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def fail(self, jobs: Sequence[ThreadTask[sqlite3.Connection]], error: Exception) -> None:
        """Fail `jobs` with 503 if the file or its disk is the cause, otherwise with the error itself."""
        message = _sentence(error)
        if message is None:
            for job in jobs:
                job.error = error
            return
        logger.error("response store unavailable: %s (%s: %s)", message, self.path, error)
        if isinstance(error, sqlite3.Error) and _primary(error) not in _PASSING:
            self.close()
            if _primary(error) in _DAMAGE:
                self.opened.damage = self.opened.damage or str(error)
        is_full = isinstance(error, sqlite3.Error) and _primary(error) == sqlite3.SQLITE_FULL
        for job in jobs:
            job.error = (NoRoom if is_full else ApiError)(503, message, retry_after=1)
            job.error.__cause__ = error

    def _open(self) -> sqlite3.Connection:
        if self.opened.identity is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _make_private(self.path)
        else:
            self.opened.check(self._name)
        try:
            connection = self._connect()
        except sqlite3.Error as error:
            if not lacks_room(error):
                raise
            # Even a file that is only read needs some room beside it.
            self.reserve.release()
            connection = self._connect()
        self.opened.identity = _identity(self._name)
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self.busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, self.synchronous, self.busy_timeout)
        except BaseException:
            connection.close()
            raise
        return connection


def _identity(path: str) -> tuple[int, int]:
    """Return the device and number of the file at this path."""
    status = os.stat(path)  # noqa: PTH116 - a string
    return status.st_dev, status.st_ino


def _make_private(path: Path) -> None:
    """Create an empty file that only this user may read, unless it exists."""
    if path.exists():
        return
    # Only SQLite may open the file itself: closing another descriptor would drop this process's POSIX locks on it.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    os.close(descriptor)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)  # noqa: PTH108 - a string, as mkstemp returns it


def is_locked(error: Exception) -> bool:
    """Return whether another process, or another connection of this one, holds the lock."""
    return isinstance(error, sqlite3.Error) and _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def lacks_room(error: Exception) -> bool:
    """Return whether the disk is full."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) in _NO_ROOM


def full_disk() -> sqlite3.Error:
    """Return the error of a commit for which the disk has no room."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def _sentence(error: Exception) -> str | None:
    """Return the message for an error of the file or disk; None for any other error."""
    if isinstance(error, OSError):
        return f"The response store's file cannot be opened: {(error.strerror or str(error)).lower()}."
    return _TROUBLE.get(_primary(error)) if isinstance(error, sqlite3.Error) else None


def _primary(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, without the bits of an extended one; 0 if the error is Python's own."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _prepare(connection: sqlite3.Connection, synchronous: str, busy_timeout: float) -> None:
    if _version(connection) == 0:
        # This must be set while the file is empty; entering WAL mode writes to it.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    _enter_wal_mode(connection, time.monotonic() + busy_timeout)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    # Commits do not wait for a checkpoint: the writer's thread runs it between commits.
    connection.execute("PRAGMA wal_autocheckpoint=0")
    # What is deleted stays in no page that is still used; `sweep` returns the others to the file system.
    if connection.execute("PRAGMA secure_delete").fetchone() == (0,):
        connection.execute("PRAGMA secure_delete=FAST").fetchall()
    # Truncate a WAL when it restarts, so that its size shows how much it holds.
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
    """Enter WAL mode, with retries: SQLite's timeout does not apply when two processes change a new file's mode."""
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
        # Another process may have created it first.
        if _version(connection) == 0:
            for statement in _SCHEMA.strip().split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
