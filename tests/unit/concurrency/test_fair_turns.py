"""Places are given to the owners in turn."""

from __future__ import annotations

import asyncio

import pytest

from llama_stack_responses.concurrency.fair_budget import FairBudget, QueueFull
from llama_stack_responses.core.owner import ANONYMOUS
from tests.support.shares import as_user


class Waiters:
    """Tasks that hold a place until they are released.

    Attributes:
        entered: the names of the tasks that got a place, in order.
    """

    def __init__(self, queue: FairBudget) -> None:
        self.queue = queue
        self.entered: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def enter(self, *names: str) -> None:
        """Let each of these tasks ask for a place. The first letter of a name is its owner."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = as_user(name[0], self._stay(name))
            await asyncio.sleep(0)

    async def release(self, name: str) -> None:
        """Release one task, and let the next one enter."""
        self.ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _stay(self, name: str) -> None:
        share = await self.queue.enter()
        self.entered.append(name)
        await self.ends[name].wait()
        self.queue.leave(share)


async def test_owner_with_many_tasks_leaves_places_to_others() -> None:
    waiters = Waiters(FairBudget(2, per_user=1, waiting_per_user=10))
    await waiters.enter("a1", "a2", "a3", "b1")
    assert waiters.entered == ["a1", "b1"]


async def test_waiting_owners_are_served_round_robin() -> None:
    waiters = Waiters(FairBudget(1, per_user=1, waiting_per_user=10))
    await waiters.enter("a1", "a2", "a3", "b1", "b2", "c1")
    for name in ("a1", "a2", "b1", "c1", "a3"):
        assert waiters.entered[-1] == name
        await waiters.release(name)
    assert waiters.entered == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_owner_over_its_limit_waits_despite_free_places() -> None:
    waiters = Waiters(FairBudget(3, per_user=2, waiting_per_user=10))
    await waiters.enter("a1", "a2", "a3")
    assert waiters.entered == ["a1", "a2"]
    await waiters.release("a1")
    assert waiters.entered == ["a1", "a2", "a3"]


async def test_full_queue_of_one_owner_refuses_only_this_owner() -> None:
    waiters = Waiters(FairBudget(1, per_user=1, waiting_per_user=1))
    await waiters.enter("a1", "a2", "a3", "b1")
    with pytest.raises(QueueFull):
        await waiters.tasks["a3"]
    await waiters.release("a1")
    await waiters.release("a2")
    assert waiters.entered == ["a1", "a2", "b1"]


async def test_cancelled_waiter_leaves_queue() -> None:
    waiters = Waiters(FairBudget(1, per_user=1, waiting_per_user=10))
    await waiters.enter("a1", "b1", "c1")
    waiters.tasks["b1"].cancel()
    await waiters.release("a1")
    assert waiters.entered == ["a1", "c1"]


async def test_waiter_cancelled_at_its_turn_passes_place_on() -> None:
    queue = FairBudget(1, per_user=1, waiting_per_user=10)
    waiters = Waiters(queue)
    share = await as_user("a", queue.enter())
    await waiters.enter("b1", "c1")
    queue.leave(share)
    # b1 has been given the place, but its task has not run since.
    waiters.tasks["b1"].cancel()
    await asyncio.wait([waiters.tasks["b1"]])
    await asyncio.sleep(0)
    assert waiters.entered == ["c1"]
    await waiters.release("c1")
    assert queue.is_idle


async def test_only_owner_may_use_all_places() -> None:
    queue = FairBudget(2, per_user=1, waiting_per_user=10)
    tasks = [as_user(ANONYMOUS.identity, queue.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, True, False]
    queue.leave(tasks[0].result())
    await tasks[2]


async def test_units_of_one_owner_are_bounded_by_their_weight() -> None:
    budget = FairBudget(10, per_user=6)
    first = await as_user("a", budget.enter(4))
    heavy, light = (as_user("a", budget.enter(units)) for units in (4, 2))
    other = as_user("b", budget.enter(5))
    await asyncio.sleep(0)
    # The owner's own work keeps its order, and that of others goes on.
    assert (heavy.done(), light.done(), other.done(), budget.left) == (False, False, True, 1)
    budget.leave(first, 4)
    await asyncio.sleep(0)
    assert (heavy.done(), light.done(), budget.left) == (True, False, 1)
    budget.leave(other.result(), 5)
    await light
    assert budget.left == 4


async def test_cancelled_head_of_the_queue_lets_lighter_work_go_on() -> None:
    budget = FairBudget(10)
    await as_user("a", budget.enter(6))
    heavy, light = as_user("b", budget.enter(8)), as_user("c", budget.enter(3))
    await asyncio.sleep(0)
    assert not light.done()
    heavy.cancel()
    await light
    assert budget.left == 1
