"""Threads for work of the host's that blocks and cannot be ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from llama_stack_responses.core.errors import ApiError


class OwnThreads:
    """Runs each work in a thread of its own, so that work without end takes no thread from others, nor from the end.

    Args:
        most: how many there may be, those included whose result nobody waits for any more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._lock = threading.Lock()

    async def run[Result](self, work: Callable[[], Result]) -> Result:
        """What the work returns or raises.

        Raises:
            ApiError: 503, all threads are taken.
        """
        with self._lock:
            if self._running >= self._most:
                message = "The file processor of this stack is busy with other files. Try again later."
                raise ApiError(503, message, retry_after=60)
            self._running += 1
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        # The interpreter does not wait for a daemon.
        threading.Thread(target=self._work, args=(work, loop, done), daemon=True).start()
        return await done

    def _work[Result](
        self, work: Callable[[], Result], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result]
    ) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (the task that waits raises it)
            self._end(loop, done, lambda error=error: done.set_exception(error))  # type: ignore[misc]
        else:
            self._end(loop, done, lambda: done.set_result(result))

    def _end[Result](
        self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result], settle: Callable[[], None]
    ) -> None:
        with self._lock:
            self._running -= 1
        # The loop may have ended since, and the task that waits may have been cancelled.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())
