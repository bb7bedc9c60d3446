"""Threads for blocking work of the host that cannot be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..concurrency.threads import in_own_thread
from ..core.errors import ApiError


class OwnThreads:
    """Runs each call in its own thread. A call that never returns blocks neither a shared thread pool nor the shutdown.

    Args:
        max_threads: maximum threads, including those whose result is no longer awaited.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._running = 0
        self._lock = threading.Lock()

    async def run[Result](self, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread, and return its result or raise its exception.

        Raises:
            ApiError: 503 if all threads are in use.
        """
        with self._lock:
            if self._running >= self._max_threads:
                message = "The file processor of this stack is busy with other files. Try again later."
                raise ApiError(503, message, retry_after=60)
            self._running += 1

        def counted() -> Result:
            try:
                return work()
            finally:
                with self._lock:
                    self._running -= 1

        return await in_own_thread(counted)
