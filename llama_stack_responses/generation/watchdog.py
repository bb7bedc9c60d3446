"""An idle timeout that is cheap to reset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from ..chat.chunks import ChunkReader
from ..core.errors import ApiError, Upstream
from ..stream.deltas import Delta
from .shared_timer import SharedTimer


class Watchdog:
    """Cancels the task that created it after `seconds` without a `reset`; the block then ends with a 504.

    `asyncio.timeout` would need a new timer for every chunk. The watchdog keeps a single timeout. When that ends, it
    checks how long ago the last `reset` was.

    Args:
        seconds: the time.
        timer: has the timeouts of other streams too.

    Attributes:
        last: the time of the event loop at which the timeout was restarted.
    """

    __slots__ = ("_loop", "_paused", "_seconds", "_task", "_timed_out", "_timeout", "_timer", "last")

    def __init__(self, seconds: float, timer: SharedTimer) -> None:
        self._seconds = seconds
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.last = self._loop.time()
        self._timed_out = False
        self._paused = False
        self._timeout = self._timer.plan(self.last + seconds, self)

    def reset(self) -> None:
        """Restart the timeout."""
        self.last = self._loop.time()

    def read(self, reader: ChunkReader, chunk: Any) -> list[Delta] | Iterator[Delta]:
        """Return the deltas of a chunk, and restart the timeout if the chunk says something.

        Raises:
            OutputLimitReached: the round has exceeded a limit.
            ApiError: the chunk is invalid.
        """
        # Asked before the chunk too: chunks that only extend a text advance it without this method.
        before = reader.progress
        deltas = reader.read(chunk)
        if deltas or reader.progress > before:
            self.last = self._loop.time()
        return deltas

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the timeout during the block, and restart it afterwards."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
            self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timeout.cancel()
        # Otherwise the traceback of a cancellation, which the task keeps, would be in a cycle with this object.
        task, self._task = self._task, None
        # Undo the cancellation, also if the block turned it into another exception: the timeout was its cause.
        if self._timed_out and task and task.uncancel() == 0 and error is not None:
            message = f"The inference provider sent nothing for {self._seconds:g} seconds."
            raise ApiError(504, message, upstream=Upstream("timeout")) from error

    def expire(self) -> None:
        """Cancel the task after too long a silence, or wait for the rest of the time."""
        now = self._loop.time()
        silent = 0.0 if self._paused else now - self.last
        if silent < self._seconds:
            self._timeout = self._timer.plan(now + self._seconds - silent, self)
        elif self._task:
            self._timed_out = True
            self._task.cancel()
