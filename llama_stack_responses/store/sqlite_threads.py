"""Jobs of an SQLite store's threads: group commits, reads, and moving the WAL into the file."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final

from ..logs import get_logger
from .records import Conflict
from .sqlite_file import WAL_BYTES, SqliteFile
from .thread_pool import ThreadTask

logger = get_logger(__name__)

_PAUSE_SECONDS: Final = 1.0
"""Seconds between two attempts to move the WAL into the file while others read it."""

_GROWTH_BYTES: Final = WAL_BYTES // 2
"""Bytes by which the WAL may grow until the next attempt in any case."""


def work_off(jobs: Sequence[ThreadTask[sqlite3.Connection]], file: SqliteFile) -> None:
    """Run the jobs and commit, or roll back and raise; the connection is inside a transaction."""
    connection = file.connection()
    try:
        for job in jobs:
            _do(job, connection)
        connection.execute("COMMIT")
    except BaseException:
        file.roll_back()
        raise


def _do(job: ThreadTask[sqlite3.Connection], connection: sqlite3.Connection) -> None:
    job.error = None
    if job.future.cancelled():
        # The caller is gone. The event loop may have written a later commit, which this one would undo.
        return
    try:
        job.result = job.call(connection)
    except Conflict as conflict:
        # It is raised before any write: the transaction continues.
        job.error = conflict


class ReadHandler:
    """Runs each job by itself."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def handle(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> None:
        for job in jobs:
            try:
                job.result = job.call(self._file.connection())
            except Exception as error:  # noqa: BLE001 - passed to the waiting caller
                self._file.fail([job], error)

    def close(self) -> None:
        self._file.close()


class WriteHandler:
    """Runs all waiting jobs in one transaction, and then moves the WAL into the file if it is long.

    Args:
        clock: returns seconds.
    """

    def __init__(self, file: SqliteFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._moves_again = 0.0
        self._moves_again_at = 0

    def handle(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> None:
        if not self._transaction(jobs):
            # One job may be the cause: run each by itself so that the others succeed.
            for job in jobs:
                self._transaction([job])
        size = self._file.wal_size()
        if size > WAL_BYTES and (self._clock() >= self._moves_again or size >= self._moves_again_at):
            self._checkpoint(size)

    def _transaction(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> bool:
        """Return whether the jobs have their results and errors; if not, nothing was written."""
        begun = False
        try:
            self._file.begin()
            begun = True
            work_off(jobs, self._file)
        except Exception as error:  # noqa: BLE001 - passed to the waiting caller
            if begun and len(jobs) > 1:
                return False
            self._file.fail(jobs, error)
        return True

    def _checkpoint(self, size: int) -> None:
        try:
            done = self._file.move_wal()
        except Exception as error:  # noqa: BLE001 - the commits are written; the next one tries again
            logger.warning("could not checkpoint the WAL of the response store: %s", error)
            return
        if not done:
            self._moves_again = self._clock() + _PAUSE_SECONDS
            self._moves_again_at = size + _GROWTH_BYTES

    def close(self) -> None:
        # What cannot be moved into the file now stays in the WAL, where the next connection finds it.
        with contextlib.suppress(Exception):
            self._file.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._file.close()
