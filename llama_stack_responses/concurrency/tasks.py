"""Tasks of the event loop: several at a time, one in the background, a check with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any

from ..core.errors import ApiError


async def gather_or_cancel[Result](works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all coroutines concurrently, and return their results. On the first error, cancel those that still run."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_all(tasks)
        # An exception whose traceback includes this frame would otherwise keep the tasks and their data alive until the
        # cyclic garbage collector runs.
        tasks.clear()


async def answers_of[Result](calls: Iterable[Awaitable[Result]]) -> list[Result | ApiError]:
    """Make all calls at the same time, and return the result of each one, or the `ApiError` that it raised.

    Once all have ended, the first other error is raised.
    """
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for each in answers:
        if isinstance(each, BaseException) and not isinstance(each, ApiError):
            raise each
    return answers  # type: ignore[return-value]


@asynccontextmanager
async def half_of_the_time() -> AsyncGenerator[None]:
    """Leave other tasks as much time after the block as it took, unless it raises an error."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    await asyncio.sleep(loop.time() - began)


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel those of these tasks that still run, and wait until all have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that is not retrieved


class LoopTask:
    """A background task of the running event loop, such as a periodic deletion.

    It runs without the user and the trace of the request that may have started it: it works for all users.

    Args:
        run: what the task runs until it has ended or is cancelled.
    """

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, unless it runs in this event loop already. A task of another loop may never end."""
        if self._running() is None:
            self._task = asyncio.create_task(self._run(), context=Context())

    async def wait(self) -> None:
        """Wait until the task has ended, if it runs in this event loop."""
        if task := self._running():
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Cancel the task, and wait until it has ended, if it runs in this event loop."""
        if task := self._running():
            task.cancel()
            await asyncio.wait([task])

    def _running(self) -> asyncio.Task[None] | None:
        task = self._task
        return task if task and not task.done() and task.get_loop() is asyncio.get_running_loop() else None


class LimitedCheck[Result]:
    """A check that ends within a time limit, also where its cancellation takes longer.

    A driver that is cancelled asks its server to cancel the query, and waits for that as well.

    Args:
        check: what is checked. While a cancelled check has not ended, no other one is started.
        seconds: the limit.
    """

    def __init__(self, check: Callable[[], Awaitable[Result]], seconds: float) -> None:
        self._check = check
        self._seconds = seconds
        self._task: asyncio.Future[Result] | None = None
        self._cancelled = False

    async def run(self) -> Result:
        """Return the result of the check, or raise its error.

        Raises:
            TimeoutError: it has not ended in time.
        """
        task = self._task
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._task = asyncio.ensure_future(self._check())
            # asyncio would log the error of a check that nothing waits for any more.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._cancelled = False
        await asyncio.wait([task], timeout=self._seconds)
        if not task.done() or self._cancelled:
            # Once: a second cancellation would break off the driver's own end.
            if not self._cancelled:
                self._cancelled = task.cancel()
            raise TimeoutError
        return task.result()
