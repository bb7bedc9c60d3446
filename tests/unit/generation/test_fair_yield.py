"""Streams that always have something to do take turns, and whatever else there is comes in between."""

import asyncio

from llama_stack_responses.generation.fair_yield import Turnstile


async def stream(turnstile: Turnstile, name: str, bursts: int, done: list[str]) -> None:
    """Notes each of its bursts."""
    for _ in range(bursts):
        await turnstile.through()
        done.append(name)


async def test_one_after_another_in_the_order_in_which_they_came() -> None:
    turnstile, done = Turnstile(), list[str]()
    await asyncio.gather(*(stream(turnstile, name, 3, done) for name in "abc"))
    assert "".join(done) == "abcabcabc"


async def test_in_a_turn_of_the_loop_no_more_than_one_goes_on() -> None:
    turnstile, done = Turnstile(), list[str]()
    streams = [asyncio.ensure_future(stream(turnstile, str(number), 5, done)) for number in range(50)]
    counts = []
    while not all(each.done() for each in streams):
        await asyncio.sleep(0)
        counts.append(len(done))
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) == 1
    assert counts[-1] == 250


async def test_one_alone_waits_for_nobody() -> None:
    turnstile, done = Turnstile(), list[str]()
    alone = asyncio.ensure_future(stream(turnstile, "a", 10, done))
    for _ in range(40):
        await asyncio.sleep(0)
    assert alone.done()


async def test_who_leaves_the_queue_holds_nobody_up() -> None:
    turnstile, done = Turnstile(), list[str]()
    first, leaver, last = (asyncio.ensure_future(stream(turnstile, name, 2, done)) for name in "abc")
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.wait([first, leaver, last])
    assert "".join(done) == "acac"
    await stream(turnstile, "d", 1, done)
    assert done[-1] == "d"
