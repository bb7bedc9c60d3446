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
