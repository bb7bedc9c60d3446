"""What the threads of an SQLite store do with their jobs: commits in groups, reads, and the WAL's way into the file."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final

from ..logs import get_logger
from .records import Conflict
from .sqlite_file import WAL_BYTES, File
from .worker import Job

logger = get_logger(__name__)

_PAUSE: Final = 1.0
"""Seconds between two attempts to move the WAL into the file while somebody reads what is in it."""


def work_off(jobs: Sequence[Job[sqlite3.Connection]], file: File) -> None:
    """Does the jobs and commits, or rolls back and raises; the file's connection has begun."""
    connection = file.connection()
    try:
        for job in jobs:
            _do(job, connection)
        connection.execute("COMMIT")
    except BaseException:
        file.roll_back()
        raise


def _do(job: Job[sqlite3.Connection], connection: sqlite3.Connection) -> None:
    job.error = None
    if job.future.cancelled():
        # Whoever asked has gone, and may have had the loop commit something else since, which this would undo.
        return
    try:
        job.result = job.call(connection)
    except Conflict as conflict:
        # Raised before anything is written: the transaction goes on.
        job.error = conflict


class Reader:
    """Works off each job by itself."""

    def __init__(self, file: File) -> None:
        self._file = file

    def handle(self, jobs: list[Job[sqlite3.Connection]]) -> None:
        for job in jobs:
            try:
                job.result = job.call(self._file.connection())
            except Exception as error:  # noqa: BLE001 - whoever waits for the job gets it
                self._file.fail([job], error)

    def close(self) -> None:
        self._file.close()


class Writer:
    """Makes one transaction of all jobs that wait, and then moves the WAL into the file if it has become long.

    Args:
        clock: seconds.
    """

    def __init__(self, file: File, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._moves_again = 0.0

    def handle(self, jobs: list[Job[sqlite3.Connection]]) -> None:
        if not self._transaction(jobs):
            # One of them may be to blame: the others shall not pay for it.
            for job in jobs:
                self._transaction([job])
        if self._file.wal_size() > WAL_BYTES and self._clock() >= self._moves_again:
            self._checkpoint()

    def _transaction(self, jobs: list[Job[sqlite3.Connection]]) -> bool:
        """Whether the jobs have their results and errors; if not, nothing was written."""
        begun = False
        try:
            self._file.begin()
            begun = True
            work_off(jobs, self._file)
        except Exception as error:  # noqa: BLE001 - whoever waits for the job gets it
            if begun and len(jobs) > 1:
                return False
            self._file.fail(jobs, error)
        return True

    def _checkpoint(self) -> None:
        try:
            done = self._file.move_wal()
        except Exception as error:  # noqa: BLE001 - the commits are made; the next one tries again
            logger.warning("the WAL of the response store cannot be moved into its file: %s", error)
            return
        if not done:
            self._moves_again = self._clock() + _PAUSE

    def close(self) -> None:
        # What cannot be moved into the file now stays in the WAL, and is found there by the next to open it.
        with contextlib.suppress(Exception):
            self._file.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._file.close()
