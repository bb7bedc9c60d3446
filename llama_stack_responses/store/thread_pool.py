"""Threads that take jobs from one queue and return results to the event loop that submitted them.

An executor would wake the loop for every job and run each alone. Here a thread takes all waiting jobs, runs them as one
group, and wakes the loop once, so a group of commits costs one transaction. A handler may leave jobs for its next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty as NothingWaits
from queue import SimpleQueue
from typing import Any, Protocol

from ..concurrency.offloading import in_thread
from ..concurrency.share import Share, current_share


class Room(Enum):
    """What room a commit may use on a full disk.

    Attributes:
        FREE: none.
        WHOLE: the reserve for deletions, as long as it is whole.
        USED: also what is left of it.
    """

    FREE = 0
    WHOLE = 1
    USED = 2


@dataclass(slots=True, eq=False)
class ThreadTask[C]:
    """One call and its outcome.

    Attributes:
        call: gets the handler's resource, such as a connection.
        future: waits for the outcome.
        size: bytes that a commit writes, and, once they were looked up, those that it replaces or deletes.
        keys: the records that it writes or deletes, as long as their stored size was not looked up.
        room: what room a commit may use on a full disk.
        share: that of the user who made the call.
        turn: when the turn of a commit is, in virtual time; 0 before it was determined.
    """

    call: Callable[[C], Any]
    future: asyncio.Future[Any]
    size: int = 0
    keys: Sequence[str] = ()
    room: Room = Room.FREE
    share: Share = field(default_factory=current_share)
    turn: float = field(default=0.0, init=False)
    result: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)

    def answer(self) -> None:
        """Settle the future, in its loop; do nothing if the caller is gone."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def job_of[C](call: Callable[[C], Any]) -> ThreadTask[C]:
    """Return a job whose future belongs to the running loop."""
    return ThreadTask(call, asyncio.get_running_loop().create_future())


class Handler[C](Protocol):
    """Runs the jobs of one thread. It is created, used and closed in that thread."""

    def handle(self, jobs: list[ThreadTask[C]]) -> list[ThreadTask[C]]:
        """Set the `result` or `error` of at least one job.

        Returns:
            The other jobs. They are passed again, before those that have come in the meantime.
        """

    def close(self) -> None:
        """Release the handler's resources."""


class ThreadPool[C]:
    """Daemon threads over one queue; each starts once a job waits that no other has taken, and they end with `stop`.

    Args:
        name: the threads' name.
        make: creates a thread's handler; must not fail.
        threads: maximum number of threads.
        group: maximum number of jobs that a handler gets at once.
    """

    def __init__(self, name: str, make: Callable[[], Handler[C]], *, threads: int, group: int) -> None:
        self._name = name
        self._make = make
        self._size = threads
        self._group = group
        self._queue: SimpleQueue[ThreadTask[C] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[[C], Any]) -> asyncio.Future[Any]:
        """Queue a call; the future belongs to the running loop."""
        job = job_of(call)
        self.put(job)
        return job.future

    def put(self, job: ThreadTask[C]) -> None:
        """Queue a job."""
        if not self._threads:
            # Each set of threads has its own queue, so that stopping one set cannot stop the next.
            self._queue = SimpleQueue()
            self._start()
        elif len(self._threads) < self._size and not self._queue.empty():
            self._start()
        self._queue.put(job)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, args=(self._queue,), name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    async def stop(self) -> None:
        """Finish the queued jobs and end the threads."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            await in_thread(thread.join)

    def _run(self, queue: SimpleQueue[ThreadTask[C] | None]) -> None:
        handler = self._make()
        left: list[ThreadTask[C]] = []
        running = True
        while running or left:
            taken, running = _take(queue, self._group, wait=not left) if running else ([], False)
            if jobs := [*left, *taken]:
                left = handler.handle(jobs)
                waits = set(left)
                _answer([job for job in jobs if job not in waits])
        handler.close()


def _take[C](queue: SimpleQueue[ThreadTask[C] | None], limit: int, *, wait: bool) -> tuple[list[ThreadTask[C]], bool]:
    """Return the queued jobs, at most `limit`, and whether the thread continues; `wait` for the first one."""
    jobs: list[ThreadTask[C]] = []
    try:
        while len(jobs) < limit:
            job = queue.get(block=wait and not jobs)
            if job is None:
                return jobs, False
            jobs.append(job)
    except NothingWaits:
        pass
    return jobs, True


def _answer[C](jobs: list[ThreadTask[C]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[ThreadTask[C]]] = {}
    for job in jobs:
        by_loop.setdefault(job.future.get_loop(), []).append(job)
    for loop, of_loop in by_loop.items():
        # A loop that was closed meanwhile has no waiting caller.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer_all, of_loop)


def _answer_all[C](jobs: list[ThreadTask[C]]) -> None:
    for job in jobs:
        job.answer()
