"""One timer of the event loop for many timeouts: an open stream has several, and a timer takes half a kilobyte."""

from __future__ import annotations

import asyncio
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

_FEW: Final = 64
"""Cancelled timeouts that are kept until they are due, however many others there are."""
_SHORTEST_SECONDS: Final = 0.001
"""Shortest time until the next check."""


class Expires(Protocol):
    """An object that has a timeout."""

    def expire(self) -> None:
        """Act on the end of the time; must not raise."""
        ...


class Timeout:
    """A timeout that is planned.

    Args:
        at: the time of the event loop at which it ends.
        timer: ends it.
        target: what has the timeout.
    """

    __slots__ = ("_target", "_timer", "at")

    def __init__(self, at: float, timer: SharedTimer, target: Expires) -> None:
        self.at = at
        self._timer = timer
        self._target: Expires | None = target

    def __lt__(self, other: Timeout) -> bool:
        return self.at < other.at

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, or has ended."""
        return self._target is None

    def end(self) -> None:
        """Tell the target, unless the timeout was cancelled."""
        target, self._target = self._target, None
        if target is not None:
            target.expire()

    def cancel(self) -> None:
        """Cancel it; this has no effect after its end."""
        if self._target is not None:
            self._target = None
            self._timer.count_cancelled()


class SharedTimer:
    """The timeouts of one event loop. Those of another loop, which has ended, are dropped."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drop()

    def _drop(self) -> None:
        self._timeouts: list[Timeout] = []  # a heap
        self._cancelled = 0
        self._timer: asyncio.TimerHandle | None = None

    def plan(self, at: float, target: Expires) -> Timeout:
        """Have `target` told at this time of the event loop; return the timeout."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._drop()
        timeout = Timeout(at, self, target)
        heappush(self._timeouts, timeout)
        if self._timeouts[0] is timeout:
            self._start(loop)
        return timeout

    def count_cancelled(self) -> None:
        """Count a timeout that was cancelled; drop all of these if they are more than the others."""
        self._cancelled += 1
        if self._cancelled > max(_FEW, len(self._timeouts) // 2):
            self._timeouts = [each for each in self._timeouts if not each.is_cancelled]
            heapify(self._timeouts)
            self._cancelled = 0

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer:
            self._timer.cancel()
        # uvloop rounds times to milliseconds, and would check again at once for a part of one.
        at = max(self._timeouts[0].at, loop.time() + _SHORTEST_SECONDS)
        # Without a context of its own, the timer would hold that of one of the streams.
        self._timer = loop.call_at(at, self._check, context=Context())

    def _check(self) -> None:
        """End the timeouts that are due, and wait for the next one."""
        loop = asyncio.get_running_loop()
        self._timer, now = None, loop.time()
        while self._timeouts and (self._timeouts[0].at <= now or self._timeouts[0].is_cancelled):
            timeout = heappop(self._timeouts)
            self._cancelled -= timeout.is_cancelled
            timeout.end()
        if self._timeouts:
            self._start(loop)
