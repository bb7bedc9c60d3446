"""The ways off the event loop: who waits for a thread, and whether the work may be refused.

- `in_thread_if_large` and `Computation`: work on JSON values of this server, such as those of the store and the model
  server, in a thread of the interpreter's pool. It is never refused, since a response is under way.
- `LargeWork` of `concurrency/large_work.py`: the same for what a client has sent, in two threads of which each user has
  a share. Work of a user who waits with too much is refused with a 429.
- `in_thread` and `in_thread_until_done`: work that takes long for another reason than its values, such as files.
  Users take turns for the threads of these and of the first (`concurrency/fair_threads.py`).
- `in_own_thread`: work that may never return. Foreign documents go to a worker process (`process_pool/`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import Any, Final

from ..core.json_values import is_large

_SWITCH_SECONDS: Final = 0.0005

INLINE_BYTES: Final = 32_768
"""Bytes that the event loop encodes, decodes or walks at a time; more is left to a thread."""

_INLINE_ITEMS: Final = 500
"""Items at whose fields the event loop looks at a time: about 0.1 ms."""


def shorten_switch_interval() -> None:
    """Let a thread keep the interpreter lock for half a millisecond, instead of five, while other threads wait for it.

    The event loop and SQLite give the lock up many times during one request, and wait for it each time while threads
    compute, such as those that check large requests.
    """
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))


async def in_thread[**Given, Result](
    call: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
) -> Result:
    """Return the result of a call in a thread. If this is cancelled, the thread works on."""
    return await asyncio.to_thread(call, *given, **named)


async def in_thread_until_done[Result](call: Callable[[], Result]) -> Result:
    """Return the result of a call in a thread. If this is cancelled, wait for its end: until then it holds memory."""
    work = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            # The cancel scopes of anyio cancel a task again in each iteration of the event loop.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.exception()  # asyncio logs an exception that is not retrieved
        raise
    finally:
        # An exception's traceback includes this frame, and the future the exception: the cycle would keep the values of
        # all callers until the cyclic garbage collector runs.
        del work


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


class Computation:
    """Several calls on the same JSON values, which are measured once.

    Args:
        of: the values.

    Attributes:
        is_large: whether the event loop leaves work on them to a thread.
    """

    __slots__ = ("is_large",)

    def __init__(self, *of: Any) -> None:
        self.is_large = is_large(of, INLINE_BYTES)

    async def run[Result](self, call: Callable[[], Result]) -> Result:
        """Return the result of a call on the values; run it in a thread if they are large."""
        return await in_thread(call) if self.is_large else call()


async def in_thread_if_large[Result](call: Callable[[], Result], *of: Any) -> Result:
    """Return the result of a call on these JSON values; run it in a thread if they are large."""
    return await in_thread(call) if is_large(of, INLINE_BYTES) else call()


async def in_thread_if_many[Result](call: Callable[[], Result], items: Sized) -> Result:
    """Return the result of a call that looks at fields of each of these items, but not into their values.

    However large the values are, a few items take no time, and need not be measured.
    """
    return await in_thread(call) if len(items) > _INLINE_ITEMS else call()


async def list_in_thread_if_large[Value](values: Iterable[Value], *of: Any) -> list[Value]:
    """Return the values of an iterable that computes them from these JSON values, as `in_thread_if_large` does."""
    return await in_thread(list_yielding_lock, values) if is_large(of, INLINE_BYTES) else list(values)


def taking[Value](values: list[Value]) -> Iterator[Value]:
    """Yield the values of a list in order, each taken out of it: no step frees all of them."""
    values.reverse()
    while values:
        yield values.pop()


def list_yielding_lock[Value](values: Iterable[Value]) -> list[Value]:
    """Return all values, from a thread that yields the interpreter lock after each.

    Otherwise the event loop would repeatedly wait for it, up to the switch interval of five milliseconds.
    """
    read = []
    for value in values:
        read.append(value)
        time.sleep(0)
    return read
