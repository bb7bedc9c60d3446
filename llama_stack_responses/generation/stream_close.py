"""How a stream of chunks is left before its end, so that the model server hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

_ENDED: Final = object()
_AT_HAND: Final = 1_000
"""Chunks that are read because they came already, more than one look at a socket brings. After that the stream is only
closed: there are generators that never wait, and model servers that send faster than this is read."""


@asynccontextmanager
async def hanging_up(chunks: AsyncGenerator[Any]) -> AsyncIterator[AsyncGenerator[Any]]:
    """Leaves the stream with the block, and the model server with it."""
    try:
        yield chunks
    finally:
        await hang_up(chunks)


async def hang_up(chunks: AsyncGenerator[Any]) -> None:
    """Ends a stream and all that it reads from, down to the connection.

    A generator that is closed between two chunks leaves open what it reads from itself, until memory is collected,
    and those of the hosts read from one another. So the stream is not closed but cancelled while it waits for its
    next chunk: that goes through all of them, beginning with the one that waits for the connection.
    """
    for _ in range(_AT_HAND):
        reading = asyncio.ensure_future(anext(chunks, _ENDED))
        try:
            await asyncio.sleep(0)
        finally:
            waits = reading.cancel()
        await asyncio.wait([reading])
        if waits or reading.exception() is not None or reading.result() is _ENDED:
            return
    await chunks.aclose()
