"""Closing a stream of chunks before its end, down to the connection, so that the model server stops generating."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

_ENDED: Final = object()
_MAX_CHUNKS: Final = 1_000
"""Maximum number of chunks to read and drop because they have arrived already; one read of a socket brings fewer. After
that the stream is only closed: some generators never wait, and some model servers send faster than this loop reads."""


class ClosedStream:
    """Closes a stream at the end of a block, as `close_stream` does.

    Args:
        chunks: the stream.

    Attributes:
        has_ended: whether all of it was read, which the block has to say: then nothing is left to be closed.
    """

    __slots__ = ("_chunks", "has_ended")

    def __init__(self, chunks: AsyncGenerator[Any]) -> None:
        self._chunks = chunks
        self.has_ended = False

    async def __aenter__(self) -> AsyncGenerator[Any]:
        return self._chunks

    async def __aexit__(self, *_: object) -> None:
        if not self.has_ended:
            await close_stream(self._chunks)


async def close_stream(chunks: AsyncGenerator[Any]) -> None:
    """End a stream and all generators that it reads from, down to the connection.

    `aclose` on an async generator that is suspended at a `yield` leaves the generators that it iterates over open until
    they are garbage collected, and the hosts' streams are nested generators. So the stream is cancelled while it waits
    for its next chunk: the cancellation passes through all generators, from the one that waits for the connection.
    """
    for _ in range(_MAX_CHUNKS):
        reading = asyncio.ensure_future(anext(chunks, _ENDED))
        try:
            await asyncio.sleep(0)
        finally:
            waits = reading.cancel()
        await asyncio.wait([reading])
        if waits or reading.exception() is not None or reading.result() is _ENDED:
            return
    await chunks.aclose()
