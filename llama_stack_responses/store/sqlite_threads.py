"""Jobs of an SQLite store's threads: group commits, reads, and moving the WAL into the file."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

from ..core.json_blocks import dumps
from ..logs import get_logger
from .records import Conflict
from .sqlite_connection import WAL_BYTES, SqliteFile, full_disk, lacks_room
from .thread_pool import Room, ThreadTask

logger = get_logger(__name__)

_PAUSE_SECONDS: Final = 1.0
"""Seconds between two attempts to move the WAL into the file while others read it."""

_GROWTH_BYTES: Final = WAL_BYTES // 2
"""Bytes by which the WAL may grow until the next attempt in any case."""


_ALONE_BYTES: Final = 2**20
"""Bytes from which a commit has a transaction of its own."""

_GROUP_BYTES: Final = 4 * 2**20
"""Bytes up to which smaller commits share a transaction."""

# SQLite knows the length of a value without reading it.
_STORED: Final = """
SELECT key, length(value) FROM records WHERE key IN (SELECT value FROM json_each(?)) AND length(value) > 4096
"""


def key_list(keys: Sequence[str]) -> str:
    """Return the keys as a JSON array, the parameter of a statement with `json_each`."""
    return dumps(keys).decode()


def add_stored_sizes(jobs: Sequence[ThreadTask[sqlite3.Connection]], connection: sqlite3.Connection) -> int:
    """Add to the size of each commit what it replaces or deletes, and return the size of all.

    SQLite frees a large value page by page, which takes as long as writing it.
    """
    keys = [key for job in jobs for key in job.keys]
    sizes = dict(connection.execute(_STORED, (key_list(keys),)).fetchall()) if keys else {}
    for job in jobs:
        if sizes:
            job.size += sum(sizes.get(key, 0) for key in job.keys)
        job.keys = ()
    return sum(job.size for job in jobs)


def run_in_transaction(jobs: Sequence[ThreadTask[sqlite3.Connection]], file: SqliteFile) -> None:
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

    def handle(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> list[ThreadTask[sqlite3.Connection]]:
        for job in jobs:
            try:
                job.result = job.call(self._file.connection())
            except Exception as error:  # noqa: BLE001 - passed to the waiting caller
                self._file.fail([job], error)
        return []

    def close(self) -> None:
        self._file.close()


class WriteHandler:
    """Runs small waiting jobs in one transaction, and then moves the WAL into the file if it is long.

    A large job has a transaction of its own, and the small ones that wait run before it. So a small commit waits for
    one large commit at most, however many one user makes. Users take turns, as many as their weights say, and so do
    large commits of theirs (self-clocked fair queueing; Golestani, INFOCOM 1994).

    Args:
        clock: returns seconds.
    """

    def __init__(self, file: SqliteFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._moves_again = 0.0
        self._moves_again_at = 0
        self._large_next = False
        self._time = 0.0  # virtual
        self._last_turns: dict[Hashable, float] = {}

    def handle(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> list[ThreadTask[sqlite3.Connection]]:
        chosen, left = self._chosen(self._in_turns(jobs))
        self._time = max(self._time, *(job.turn for job in chosen))
        chosen = self._with_room(chosen)
        if chosen and not self._transaction(chosen):
            # One job may be the cause: run each by itself so that the others succeed.
            for job in chosen:
                self._transaction([job])
        size = self._file.wal_size()
        if size > WAL_BYTES and (self._clock() >= self._moves_again or size >= self._moves_again_at):
            self._checkpoint(size)
        return left

    def _in_turns(self, jobs: Sequence[ThreadTask[sqlite3.Connection]]) -> list[ThreadTask[sqlite3.Connection]]:
        """Return the jobs in the order of their turns; those of one user keep theirs."""
        last = self._last_turns = {user: turn for user, turn in self._last_turns.items() if turn > self._time}
        for job in jobs:
            if not job.turn:
                user, weight = job.share.user, job.share.weight
                job.turn = last[user] = last.get(user, self._time) + 1 / weight
        return sorted(jobs, key=attrgetter("turn"))

    def _chosen(
        self, jobs: list[ThreadTask[sqlite3.Connection]]
    ) -> tuple[list[ThreadTask[sqlite3.Connection]], list[ThreadTask[sqlite3.Connection]]]:
        """Return the jobs of the next transaction, and the others: small ones and a large one take turns."""
        with contextlib.suppress(Exception):  # the transaction meets the same error, and reports it
            add_stored_sizes(jobs, self._file.connection())
        small = [job for job in jobs if job.size <= _ALONE_BYTES]
        large = [job for job in jobs if job.size > _ALONE_BYTES]
        if large and (self._large_next or not small):
            self._large_next = False
            return large[:1], [*small, *large[1:]]
        self._large_next = True
        ends = accumulate(job.size for job in small)
        count = max(1, sum(end <= _GROUP_BYTES for end in ends))
        return small[:count], [*small[count:], *large]

    def _transaction(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> bool:
        """Return whether the jobs have their results and errors; if not, nothing was written."""
        begun = False
        try:
            self._file.begin()
            begun = True
            run_in_transaction(jobs, self._file)
        except Exception as error:  # noqa: BLE001 - passed to the waiting caller
            if begun and len(jobs) > 1:
                return False
            if lacks_room(error) and all(self._may_use_reserve(job) for job in jobs):
                self._free(jobs)
            else:
                self._file.fail(jobs, error)
        return True

    def _with_room(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> list[ThreadTask[sqlite3.Connection]]:
        """Return the jobs that may run; on a disk whose reserve was used, these are those that free room."""
        with contextlib.suppress(Exception):  # the transaction meets the same error, and reports it
            self._file.connection()
            if self._file.reserve.is_used() and not self._file.reserve.fill():
                self._file.fail([job for job in jobs if job.room is not Room.USED], full_disk())
                return [job for job in jobs if job.room is Room.USED]
        return jobs

    def _may_use_reserve(self, job: ThreadTask[sqlite3.Connection]) -> bool:
        return job.room is Room.USED or (job.room is Room.WHOLE and not self._file.reserve.is_used())

    def _free(self, jobs: Sequence[ThreadTask[sqlite3.Connection]]) -> None:
        """Run jobs that free room on a full disk."""
        self._file.reserve.release()
        try:
            with self._file.quick_deletion():
                self._file.begin()
                run_in_transaction(jobs, self._file)
        except Exception as error:  # noqa: BLE001 - passed to the waiting caller
            self._file.fail(jobs, error)
        with contextlib.suppress(Exception):  # the next commit tries again
            self._file.regain_room()

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
