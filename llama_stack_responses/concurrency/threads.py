"""Threads beside the event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_SWITCH_SECONDS: Final = 0.0005


def shorten_switch_interval() -> None:
    """Let a thread keep the interpreter lock for half a millisecond, instead of five, while other threads wait for it.

    The event loop and SQLite give the lock up many times during one request, and wait for it each time while threads
    compute, such as those that check large requests.
    """
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))


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
