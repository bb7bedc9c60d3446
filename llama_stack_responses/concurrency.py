"""Helpers for concurrent tasks and threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

_SWITCH_SECONDS: Final = 0.0005


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently. On the first error, cancel those that are still running."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
        # An exception whose traceback includes this frame would otherwise keep the tasks and their data alive until the
        # cyclic garbage collector runs.
        tasks.clear()


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def shorten_switch_interval() -> None:
    """Let a thread keep the interpreter lock for half a millisecond, instead of five, while other threads wait for it.

    The event loop and SQLite give the lock up many times during one request, and wait for it each time while threads
    compute, such as those that check large requests.
    """
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))


class SmallEvent:
    """An `asyncio.Event` without a deque of waiters, for objects that are many and hardly ever waited for.

    Args:
        is_set: whether it is set at first.
    """

    __slots__ = ("_is_set", "_waited")

    def __init__(self, *, is_set: bool) -> None:
        self._is_set = is_set
        self._waited: asyncio.Event | None = None

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._is_set = True
        if self._waited:
            self._waited.set()

    def clear(self) -> None:
        """Reset it."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    async def wait(self) -> bool:
        """Wait until it is set."""
        if not self._is_set:
            if self._waited is None or self._waited.is_set():
                self._waited = asyncio.Event()
            await self._waited.wait()
        return True


class LoopTask:
    """A background task of the running event loop, such as a periodic deletion.

    Args:
        run: what the task runs until it has ended or is cancelled.
    """

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, unless it runs in this event loop already. A task of another loop may never end."""
        if self._running() is None:
            self._task = asyncio.create_task(self._run())

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


class FairYield:
    """Lets one waiting stream continue in each iteration of the event loop, first come, first served.

    The streams of a fast model server always have data to process. If all of them continued in every iteration of the
    loop, a new request, which takes about ten iterations until its first token, would wait for all of them ten times.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_turn(self) -> None:
        """Wait until the caller may continue."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._let_one_through)
        granted = loop.create_future()
        self._waiting.append(granted)
        await granted

    def _let_one_through(self) -> None:
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_one_through)


class Closing(Exception):  # noqa: N818 - not an error of the resource
    """A `LoopLocal` resource is being closed."""


class LoopLocal[Resource]:
    """A resource of the running event loop, such as a connection pool: one of another loop may never answer.

    It is opened by the first call, and again after an opening that failed, after `close`, or when the loop has changed.

    Args:
        open: opens the resource.
    """

    def __init__(self, open: Callable[[], Coroutine[Any, Any, Resource]]) -> None:  # noqa: A002 - as a context has it
        self._open = open
        self._opening: asyncio.Task[Resource] | None = None
        self._closing: asyncio.AbstractEventLoop | None = None

    async def get(self) -> Resource:
        """Return the resource of the running loop; raise what opening it raised, or `Closing` while it closes."""
        loop, opening = asyncio.get_running_loop(), self._opening
        if self._closing is loop:
            raise Closing
        if opening is None or opening.get_loop() is not loop or _has_failed(opening):
            opening = self._opening = loop.create_task(self._open())
        return await asyncio.shield(opening)

    @property
    def opened(self) -> Resource | None:
        """The resource, if it has been opened."""
        opening = self._opening
        return opening.result() if opening and opening.done() and not _has_failed(opening) else None

    async def close(self, close: Callable[[Resource], Coroutine[Any, Any, Any]]) -> None:
        """Close the resource and forget it. An error is ignored, and so is a resource of another loop."""
        opening, self._opening = self._opening, None
        loop = asyncio.get_running_loop()
        if opening is None or opening.get_loop() is not loop:
            return
        # A task that still works with the resource must not open another one, which nothing would close.
        self._closing = loop
        try:
            with suppress(Exception):
                await close(await opening)
        finally:
            self._closing = None


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def in_own_thread[Result](work: Callable[[], Result]) -> Result:
    """Run `work`, which may never return, in its own thread; return its result or raise its exception.

    It blocks neither a shared thread pool nor the shutdown. If the task is cancelled, the thread runs on.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()
    # The interpreter does not wait for daemon threads.
    threading.Thread(target=_run, args=(work, loop, done), daemon=True).start()
    return await done


def _run[Result](work: Callable[[], Result], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 (the waiting task raises it)
        _resolve(loop, done, lambda error=error: done.set_exception(error))  # type: ignore[misc]
    else:
        _resolve(loop, done, lambda: done.set_result(result))


def _resolve[Result](
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result], resolve: Callable[[], None]
) -> None:
    # The loop may have been closed, and the waiting task may have been cancelled.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if done.done() else resolve())
