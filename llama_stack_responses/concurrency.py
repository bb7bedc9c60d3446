"""Helpers for concurrent tasks and threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

_TURN_SECONDS: Final = 0.0005


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
    sys.setswitchinterval(min(_TURN_SECONDS, sys.getswitchinterval()))


class LoopTask:
    """A background task of the running event loop, such as a periodic deletion.

    Args:
        run: what the task runs until it is cancelled.
    """

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start in the running event loop; do nothing if the task was started in it before."""
        if self._task is None or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Cancel the task, and wait until it has ended."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])


class LoopLocal[Resource]:
    """A resource of the running event loop, such as a connection pool: one of another loop may never answer.

    It is opened by the first call, and again after an opening that failed or when the loop has changed.

    Args:
        open: opens the resource.
    """

    def __init__(self, open: Callable[[], Coroutine[Any, Any, Resource]]) -> None:  # noqa: A002 - as a context has it
        self._open = open
        self._opening: asyncio.Task[Resource] | None = None

    async def get(self) -> Resource:
        """Return the resource of the running loop; raise what opening it raised."""
        loop, opening = asyncio.get_running_loop(), self._opening
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
        if opening is None or opening.get_loop() is not asyncio.get_running_loop():
            return
        with suppress(Exception):
            await close(await opening)


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
        _settle(loop, done, lambda error=error: done.set_exception(error))  # type: ignore[misc]
    else:
        _settle(loop, done, lambda: done.set_result(result))


def _settle[Result](loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result], settle: Callable[[], None]) -> None:
    # The loop may have been closed, and the waiting task may have been cancelled.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if done.done() else settle())
