"""Work on JSON values that runs in a thread if they are large, so that it does not block the event loop.

Work on what clients send runs in threads of which each user has a share (`inputs/large_work.py`). What takes long for
another reason than its values, such as files and foreign documents, is left to `in_thread` or a worker process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from ..core.json_values import is_large

INLINE_BYTES: Final = 32_768
"""Bytes that the event loop encodes, decodes or walks at a time; more is left to a thread."""


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


class Computation:
    """Several calls on the same JSON values, which are measured once.

    Args:
        of: the values.
    """

    def __init__(self, *of: Any) -> None:
        self._large = is_large(of, INLINE_BYTES)

    async def run[Result](self, call: Callable[[], Result]) -> Result:
        """Return the result of a call on the values; run it in a thread if they are large."""
        return await in_thread(call) if self._large else call()


async def computed[Result](call: Callable[[], Result], *of: Any) -> Result:
    """Return the result of a call on these JSON values; run it in a thread if they are large."""
    return await Computation(*of).run(call)


async def computed_each[Value](values: Iterable[Value], *of: Any) -> list[Value]:
    """Return the values of an iterable that computes them from these JSON values, as `computed` does."""
    return await in_thread(list_yielding_lock, values) if is_large(of, INLINE_BYTES) else list(values)


def list_yielding_lock[Value](values: Iterable[Value]) -> list[Value]:
    """Return all values, from a thread that yields the interpreter lock after each.

    Otherwise the event loop would repeatedly wait for it, up to the switch interval of five milliseconds.
    """
    read = []
    for value in values:
        read.append(value)
        time.sleep(0)
    return read
