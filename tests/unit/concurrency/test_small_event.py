"""Events for objects that are many."""

from __future__ import annotations

import asyncio

from llama_stack_responses.concurrency.small_event import SmallEvent
from tests.support.waiting import turns


async def test_small_event_wakes_all_that_wait() -> None:
    event = SmallEvent(is_set=False)
    waiting = [asyncio.create_task(event.wait()) for _ in range(2)]
    await turns(2)
    assert not any(each.done() for each in waiting)
    event.set()
    event.clear()
    assert [await each for each in waiting] == [True, True]


async def test_small_event_can_be_waited_for_again() -> None:
    event = SmallEvent(is_set=True)
    assert await event.wait()
    for _ in range(2):
        event.clear()
        assert not event.is_set()
        waiting = asyncio.create_task(event.wait())
        await turns(2)
        assert not waiting.done()
        event.set()
        assert await waiting
