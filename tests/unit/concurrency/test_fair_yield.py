"""Streams that always have a delta ready take turns, and other tasks run in between."""

import asyncio

from llama_stack_responses.concurrency.fair_yield import FairYield


async def stream(fair_yield: FairYield, name: str, bursts: int, done: list[str]) -> None:
    """Record each of its bursts in `done`."""
    for _ in range(bursts):
        await fair_yield.wait_turn()
        done.append(name)


async def test_streams_continue_in_order_of_arrival() -> None:
    fair_yield, done = FairYield(), list[str]()
    await asyncio.gather(*(stream(fair_yield, name, 3, done) for name in "abc"))
    assert "".join(done) == "abcabcabc"


async def test_only_one_stream_continues_per_loop_iteration() -> None:
    fair_yield, done = FairYield(), list[str]()
    streams = [asyncio.ensure_future(stream(fair_yield, str(number), 5, done)) for number in range(50)]
    counts = []
    while not all(each.done() for each in streams):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) == 1
    assert counts[-1] == 250


async def test_single_stream_does_not_wait() -> None:
    fair_yield, done = FairYield(), list[str]()
    alone = asyncio.ensure_future(stream(fair_yield, "a", 10, done))
    for _ in range(40):
        await asyncio.sleep(0)
    assert alone.done()


async def test_cancelled_waiter_does_not_block_queue() -> None:
    fair_yield, done = FairYield(), list[str]()
    first, leaver, last = (asyncio.ensure_future(stream(fair_yield, name, 2, done)) for name in "abc")
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.wait([first, leaver, last])
    assert "".join(done) == "acac"
    await stream(fair_yield, "d", 1, done)
    assert done[-1] == "d"
