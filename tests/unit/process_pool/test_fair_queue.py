"""Places go round the owners."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import pytest

from llama_stack_responses.process_pool.fair_queue import FairQueue, QueueFull


class Guests:
    """Tasks that hold a place until they are let go.

    Attributes:
        entered: who got a place, in their order.
    """

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.entered: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        """Each asks for a place; the first letter of a name is its owner."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stay(name[0], name))
            await asyncio.sleep(0)

    async def go(self, name: str) -> None:
        """One leaves, and who may enters."""
        self.ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _stay(self, owner: Hashable, name: str) -> None:
        await self.queue.enter(owner)
        self.entered.append(name)
        await self.ends[name].wait()
        self.queue.leave(owner)


async def test_owner_with_flood_leaves_places_to_others() -> None:
    guests = Guests(FairQueue(2, per_owner=1, waiting_per_owner=10))
    await guests.come("a1", "a2", "a3", "b1")
    assert guests.entered == ["a1", "b1"]


async def test_waiting_owners_are_served_in_turn() -> None:
    guests = Guests(FairQueue(1, per_owner=1, waiting_per_owner=10))
    await guests.come("a1", "a2", "a3", "b1", "b2", "c1")
    for name in ("a1", "a2", "b1", "c1", "a3"):
        assert guests.entered[-1] == name
        await guests.go(name)
    assert guests.entered == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_owner_over_bound_waits_though_places_are_free() -> None:
    guests = Guests(FairQueue(3, per_owner=2, waiting_per_owner=10))
    await guests.come("a1", "a2", "a3")
    assert guests.entered == ["a1", "a2"]
    await guests.go("a1")
    assert guests.entered == ["a1", "a2", "a3"]


async def test_full_queue_of_owner_refuses_only_this_owner() -> None:
    guests = Guests(FairQueue(1, per_owner=1, waiting_per_owner=1))
    await guests.come("a1", "a2", "a3", "b1")
    with pytest.raises(QueueFull):
        await guests.tasks["a3"]
    await guests.go("a1")
    await guests.go("a2")
    assert guests.entered == ["a1", "a2", "b1"]


async def test_cancelled_waiter_leaves_the_queue() -> None:
    guests = Guests(FairQueue(1, per_owner=1, waiting_per_owner=10))
    await guests.come("a1", "b1", "c1")
    guests.tasks["b1"].cancel()
    await guests.go("a1")
    assert guests.entered == ["a1", "c1"]


async def test_waiter_cancelled_as_its_turn_comes_passes_the_place_on() -> None:
    queue = FairQueue(1, per_owner=1, waiting_per_owner=10)
    guests = Guests(queue)
    await queue.enter("a")
    await guests.come("b1", "c1")
    queue.leave("a")
    # The place is given to b1, whose task has not run since.
    guests.tasks["b1"].cancel()
    await asyncio.wait([guests.tasks["b1"]])
    await asyncio.sleep(0)
    assert guests.entered == ["c1"]
    await guests.go("c1")
    assert queue.is_idle


async def test_only_owner_has_all_places() -> None:
    guests = Guests(FairQueue(2, per_owner=1, waiting_per_owner=10, only_owner="a"))
    await guests.come("a1", "a2", "a3")
    assert guests.entered == ["a1", "a2"]
