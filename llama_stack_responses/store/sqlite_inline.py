"""Small reads and commits on an SQLite file, done in the event loop itself.

Each takes a tenth of a millisecond on data that the system has cached. A thread would take them off the loop, but under
a busy loop it waits for the interpreter lock, hundreds of times as long.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.errors import ApiError
from .sqlite_connection import WAL_BYTES, SqliteFile, is_locked
from .sqlite_threads import add_stored_sizes, run_in_transaction
from .thread_pool import ThreadPool, ThreadTask

_LARGE_BYTES: Final = 128 * 1024
SLOW_SECONDS: Final = 0.05
"""A call that takes longer shows a slow disk."""

_REST_SECONDS: Final = 1.0
_WAL_FACTOR: Final = 4
"""Multiple of its normal size to which the WAL may grow while it is moved."""


@dataclass(slots=True, eq=False)
class _Group:
    """The commits of one event loop iteration, and the size of their values in bytes."""

    loop: asyncio.AbstractEventLoop
    jobs: list[ThreadTask[sqlite3.Connection]] = field(default_factory=list)
    size: int = 0


class Inline:
    """A connection that event loops use, one at a time, without waiting.

    It leaves to the threads, which can wait and report errors: commits that write or free many bytes, any call while
    another process holds the lock or another loop the connection, and every call for a second after the disk failed or
    was slow.

    Args:
        file: a file that does not wait for locks.
        writer: takes the commits that cannot be written at once.
        clock: returns seconds.
        slow_seconds: a call that takes longer shows a slow disk.
    """

    def __init__(
        self,
        file: SqliteFile,
        writer: ThreadPool[sqlite3.Connection],
        clock: Callable[[], float],
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        self._slow_seconds = slow_seconds
        self._file = file
        self._writer = writer
        self._clock = clock
        self._used = threading.Lock()
        self._resting_until = 0.0
        self._group: _Group | None = None
        self._moving: asyncio.Future[None] | None = None

    def read(self, call: Callable[[sqlite3.Connection], list[Any]]) -> list[Any] | None:
        """Return the result of the call; None if it is left to the threads."""
        begun = self._clock()
        if begun < self._resting_until or not self._used.acquire(blocking=False):
            return None
        try:
            rows = call(self._file.connection())
        except Exception as error:  # noqa: BLE001 - the threads meet it again, and report it
            self._rest_after(error)
            return None
        finally:
            self._used.release()
        self._rest_if_slow(begun)
        return rows

    def commit(self, job: ThreadTask[sqlite3.Connection]) -> None:
        """Make the commit together with all others of this loop iteration."""
        group = self._of(job.future.get_loop())
        if group.size + job.size > _LARGE_BYTES:
            self._writer.put(job)
            return
        group.jobs.append(job)
        group.size += job.size

    def _of(self, loop: asyncio.AbstractEventLoop) -> _Group:
        group = self._group
        # If a loop closed before its iteration ended, its pending jobs are lost with it.
        if group is None or group.loop is not loop:
            self._group = group = _Group(loop)
            loop.call_soon(self._end, group)
        return group

    def _end(self, group: _Group) -> None:
        if self._group is group:
            self._group = None
        jobs, group.jobs = group.jobs, []
        if not jobs:
            return
        if self._committed(jobs):
            for job in jobs:
                job.answer()
        else:
            for job in jobs:
                self._writer.put(job)

    def _committed(self, jobs: list[ThreadTask[sqlite3.Connection]]) -> bool:
        begun = self._clock()
        if begun < self._resting_until or not self._used.acquire(blocking=False):
            return False
        try:
            self._file.begin()
            # Within the transaction: a read of its own would take and release the lock of readers once more.
            if add_stored_sizes(jobs, self._file.connection()) > _LARGE_BYTES or self._file.reserve.is_used():
                self._file.roll_back()
                return False
            run_in_transaction(jobs, self._file)
        except Exception as error:  # noqa: BLE001 - as above
            self._rest_after(error)
            return False
        finally:
            self._used.release()
        self._rest_if_slow(begun)
        self._keep_short()
        return True

    def _rest_after(self, error: Exception) -> None:
        if isinstance(error, (sqlite3.Error, OSError, ApiError)) and not is_locked(error):
            self._file.close()
            self._resting_until = self._clock() + _REST_SECONDS

    def _rest_if_slow(self, begun: float) -> None:
        now = self._clock()
        if now - begun > self._slow_seconds:
            self._resting_until = now + _REST_SECONDS

    def _keep_short(self) -> None:
        """Start moving the WAL into the file. If it still grows too long, leave commits to the thread for a while."""
        size = self._file.wal_size()
        if size > WAL_BYTES and not self._is_moving():
            self._moving = self._writer.submit(lambda _: None)
            # The thread has logged the error.
            self._moving.add_done_callback(lambda moved: moved.cancelled() or moved.exception())
        if size > _WAL_FACTOR * WAL_BYTES:
            self._resting_until = self._clock() + _REST_SECONDS

    def _is_moving(self) -> bool:
        # A closed loop never completes its futures.
        return self._moving is not None and not (self._moving.done() or self._moving.get_loop().is_closed())

    def close(self) -> None:
        """Commit what waits in the running loop; the next call opens the file again."""
        group = self._group
        if group is not None and group.loop is asyncio.get_running_loop():
            self._end(group)
        with self._used:
            self._file.close()
