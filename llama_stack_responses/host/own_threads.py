"""Threads for blocking work of the host that cannot be cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from llama_stack_responses.core.errors import ApiError


class OwnThreads:
    """Runs each call in its own thread. A call that never returns blocks neither a shared thread pool nor the shutdown.

    Args:
        most: maximum threads, including those whose result is no longer awaited.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._lock = threading.Lock()

    async def run[Result](self, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread, and return its result or raise its exception.

        Raises:
            ApiError: 503 if all threads are in use.
        """
        with self._lock:
            if self._running >= self._most:
                message = "The file processor of this stack is busy with other files. Try again later."
                raise ApiError(503, message, retry_after=60)
            self._running += 1
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        # The interpreter does not wait for daemon threads.
        threading.Thread(target=self._work, args=(work, loop, done), daemon=True).start()
        return await done

    def _work[Result](
        self, work: Callable[[], Result], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result]
    ) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (the waiting task raises it)
            self._end(loop, done, lambda error=error: done.set_exception(error))  # type: ignore[misc]
        else:
            self._end(loop, done, lambda: done.set_result(result))

    def _end[Result](
        self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result], settle: Callable[[], None]
    ) -> None:
        with self._lock:
            self._running -= 1
        # The loop may have been closed, and the waiting task may have been cancelled.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())
