"""The time before a shutdown in which running responses may finish, and connections bring a last request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

_CHECK_SECONDS: Final = 0.05
_IDLE_SECONDS: Final = 6.0
"""Time after which a client has closed its idle connections, or uvicorn has (5 seconds)."""


class Finishing:
    """Waits until nothing runs any more, and until clients have closed their connections.

    A connection that the server closes may have a request on its way, which would be lost.

    Args:
        running: what runs now; it changes.
        seconds: how long to wait at most.
        accepting_seconds: how long to wait at least, and in addition: connections are accepted in this time.

    Attributes:
        begun: whether a shutdown was requested.
    """

    def __init__(self, running: Collection[object], seconds: float, accepting_seconds: float = 0) -> None:
        self.begun = False
        self._running = running
        self._seconds = seconds + accepting_seconds
        self._accepting_seconds = accepting_seconds
        self._accepts_until: float | None = None

    @property
    def refuses(self) -> bool:
        """Whether the time is over in which requests are accepted."""
        return self._accepts_until is not None and asyncio.get_running_loop().time() >= self._accepts_until

    def begin(self, connections: Callable[[], int] = lambda: 0) -> asyncio.Future[None] | None:
        """Return a future that is done once nothing runs, and cancelled after the time limit.

        None if nothing runs, the time limit is 0, or a shutdown was requested before.

        Args:
            connections: returns the number of open connections. They are waited for while nothing runs, for six
                seconds at most: some clients keep them.
        """
        before, self.begun = self.begun, True
        loop = asyncio.get_running_loop()
        if not before:
            self._accepts_until = loop.time() + self._accepting_seconds
        if before or not self._seconds or not (self._accepting_seconds or self._running or connections()):
            return None
        done = loop.create_future()
        loop.call_later(self._seconds, done.cancel)
        loop.call_later(self._accepting_seconds, self._check, done, connections, None)
        return done

    def _check(self, done: asyncio.Future[None], connections: Callable[[], int], idle_since: float | None) -> None:
        """End the wait if nothing runs, or check again."""
        if done.done():
            return
        loop = asyncio.get_running_loop()
        idle_since = None if self._running else idle_since or loop.time()
        if idle_since and (not connections() or loop.time() - idle_since > _IDLE_SECONDS):
            done.set_result(None)
        else:
            loop.call_later(_CHECK_SECONDS, self._check, done, connections, idle_since)
