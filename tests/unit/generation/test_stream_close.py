"""Closing a stream early closes the streams that it reads from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from llama_stack_responses.generation.stream_close import ClosedStream, close_stream


class Connection:
    """Emit numbers and keep itself alive, as streams of clients do. The first `at_hand` numbers come at once."""

    def __init__(self, at_hand: int = 3, end: int = 1_000_000) -> None:
        self.open = True
        self.sent = 0
        self._at_hand = at_hand
        self._end = end
        self.numbers = self._numbers()

    async def _numbers(self) -> AsyncGenerator[int]:
        try:
            while self.sent < self._end:
                if self.sent >= self._at_hand:
                    await asyncio.Event().wait()
                self.sent += 1
                yield self.sent
        finally:
            self.open = False
            await asyncio.sleep(0)  # closing a connection takes a moment


async def hosted(connection: Connection) -> AsyncGenerator[int]:
    """Read from another generator, as hosts do."""

    async def inner() -> AsyncGenerator[int]:
        async for number in connection.numbers:
            yield number

    async for number in inner():
        yield number


async def test_stream_left_between_chunks_closes_connection() -> None:
    connection = Connection()
    async with ClosedStream(hosted(connection)) as chunks:
        assert await anext(chunks) == 1
    assert not connection.open
    assert connection.sent == 3


async def test_stream_left_before_first_chunk_closes_connection() -> None:
    connection = Connection()
    await close_stream(hosted(connection))
    assert not connection.open


async def test_cancelled_stream_closes_connection() -> None:
    connection = Connection(at_hand=0)
    chunks = hosted(connection)

    async def read() -> None:
        async with ClosedStream(chunks):
            await anext(chunks)

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert not connection.open


async def test_stream_ending_during_close_is_read_to_end() -> None:
    connection = Connection(at_hand=9, end=9)
    async with ClosedStream(hosted(connection)) as chunks:
        await anext(chunks)
    assert not connection.open


async def test_error_during_close_is_ignored() -> None:
    async def failing() -> AsyncGenerator[int]:
        yield 1
        raise ConnectionError

    async with ClosedStream(failing()) as chunks:
        await anext(chunks)


async def test_generator_that_never_waits_is_closed() -> None:
    connection = Connection(at_hand=1_000_000)
    await close_stream(connection.numbers)
    assert not connection.open
    assert connection.sent < 2_000


async def test_hang_up_can_be_cancelled() -> None:
    connection = Connection(at_hand=0)
    leaving = asyncio.ensure_future(close_stream(hosted(connection)))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    for _ in range(5):
        await asyncio.sleep(0)
    assert not connection.open


async def test_stream_that_was_read_to_its_end_is_not_asked_again() -> None:
    asked = 0

    class Counted(AsyncGenerator[int, None]):
        """A stream without chunks."""

        async def asend(self, _: object) -> int:
            nonlocal asked
            asked += 1
            raise StopAsyncIteration

        async def athrow(self, *_: object) -> int:
            raise AssertionError("nothing has to be closed")

    closing = ClosedStream(Counted())
    async with closing as chunks:
        async for _ in chunks:
            pass
        closing.has_ended = True
    assert asked == 1
