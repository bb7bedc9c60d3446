"""Work on what a client has sent, in threads of which each user has a share, if it is large.

The threads share the interpreter lock with the event loop, which waits for it the longer, the more threads compute.
There are therefore few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ..core.errors import too_many_open
from ..core.json_values import is_large
from .fair_budget import WAITING_PER_USER, FairBudget, QueueFull
from .offloading import INLINE_BYTES

_MAX_THREADS: Final = 2
_PER_USER: Final = 1


class LargeWork:
    """Runs the work on requests."""

    def __init__(self) -> None:
        self._queue = FairBudget(_MAX_THREADS, _PER_USER, WAITING_PER_USER)
        self._threads: ThreadPoolExecutor | None = None

    async def run[Result](self, work: Callable[[], Result], *of: Any) -> Result:
        """Return the result of work on these JSON values, which must not change meanwhile.

        Raises:
            ApiError: 429, too many large requests of this user wait; or as from `work`.
        """
        return await self.run_in_thread(work) if is_large(of, INLINE_BYTES) else work()

    def on(self, *of: Any) -> WorkOnValues:
        """Return what runs several pieces of work on the same JSON values, which are measured once."""
        return WorkOnValues(self if is_large(of, INLINE_BYTES) else None)

    async def run_in_thread[Result](self, work: Callable[[], Result]) -> Result:
        """Return the result of work that takes long for another reason than large values.

        Raises:
            ApiError: as from `run`.
        """
        try:
            share = await self._queue.enter()
        except QueueFull:
            raise too_many_open("large requests", retry_after=1) from None
        self._threads = self._threads or ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="large-requests")
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        # If this task is cancelled, the thread works on.
        working.add_done_callback(lambda _: self._queue.leave(share))
        return await asyncio.shield(working)

    def close(self) -> None:
        """End the threads when their present work has ended."""
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)


class WorkOnValues:
    """Work on JSON values that were measured.

    Args:
        large_work: does the work; None if the values are small.
    """

    __slots__ = ("_large_work",)

    def __init__(self, large_work: LargeWork | None) -> None:
        self._large_work = large_work

    async def run[Result](self, work: Callable[[], Result]) -> Result:
        """Return the result of work on the values.

        Raises:
            ApiError: as from `LargeWork.run`.
        """
        return await self._large_work.run_in_thread(work) if self._large_work else work()
