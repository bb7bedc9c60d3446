"""Resources of one event loop."""

from __future__ import annotations

import asyncio

import pytest

from llama_stack_responses.concurrency.loop_local import LoopLocal


class Opener:
    """Opens numbered resources, after the given number of failures.

    Attributes:
        opened: how often it was called.
        closed: the numbers of the closed resources.
    """

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.opened = 0
        self.closed: list[int] = []

    async def __call__(self) -> int:
        self.opened += 1
        await asyncio.sleep(0)
        if self.opened <= self.failures:
            raise OSError("refused")
        return self.opened

    async def close(self, number: int) -> None:
        self.closed.append(number)


async def test_concurrent_calls_share_one_resource() -> None:
    resource = LoopLocal(Opener())
    first, second = await asyncio.gather(resource.get(), resource.get())
    assert (first, second) == (1, 1)
    assert resource.opened == 1


async def test_failed_opening_is_repeated() -> None:
    resource = LoopLocal(Opener(failures=1))
    with pytest.raises(OSError, match="refused"):
        await resource.get()
    assert resource.opened is None
    assert await resource.get() == 2


async def test_cancelled_call_leaves_opening_to_the_others() -> None:
    resource = LoopLocal(Opener())
    first, second = asyncio.create_task(resource.get()), asyncio.create_task(resource.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


def test_resource_of_another_loop_is_opened_again_and_not_closed() -> None:
    opener = Opener()
    resource = LoopLocal(opener)
    assert asyncio.run(resource.get()) == 1
    assert asyncio.run(resource.get()) == 2
    asyncio.run(resource.close(opener.close))
    assert opener.closed == []


async def test_closed_resource_is_opened_again() -> None:
    opener = Opener()
    resource = LoopLocal(opener)
    await resource.get()
    await resource.close(opener.close)
    assert (opener.closed, await resource.get()) == ([1], 2)
