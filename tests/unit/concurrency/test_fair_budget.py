"""Pieces of work hold no more units together than the budget has, in the order of their requests."""

from __future__ import annotations

import asyncio

import pytest

from llama_stack_responses.concurrency.fair_budget import FairBudget


class BudgetedTask:
    """A piece of work that holds units until a test ends it."""

    def __init__(self, budget: FairBudget, size: int) -> None:
        self._budget = budget
        self._size = size
        self._ends = asyncio.Event()
        self.runs = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._budget.hold(self._size):
            self.runs = True
            await self._ends.wait()
        self.runs = False

    async def end(self) -> None:
        self._ends.set()
        await self.task
        await settled()


async def settled() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def begin(budget: FairBudget, *sizes: int) -> list[BudgetedTask]:
    works = [BudgetedTask(budget, size) for size in sizes]
    await settled()
    return works


async def test_work_beyond_the_budget_waits() -> None:
    budget = FairBudget(10)
    works = await begin(budget, 4, 4, 4)
    assert [work.runs for work in works] == [True, True, False]
    assert not budget.has_room(1)  # work waits before it
    await works[0].end()
    assert [work.runs for work in works] == [False, True, True]
    for work in works[1:]:
        await work.end()
    assert budget.left == 10


async def test_waiting_work_is_admitted_in_order() -> None:
    budget = FairBudget(10)
    works = await begin(budget, 8, 6, 1)
    assert [work.runs for work in works] == [True, False, False]
    await works[0].end()
    assert [work.runs for work in works] == [False, True, True]
    for work in works[1:]:
        await work.end()


async def test_work_larger_than_the_budget_runs_alone() -> None:
    budget = FairBudget(10)
    works = await begin(budget, 1, 50, 1)
    assert [work.runs for work in works] == [True, False, False]
    await works[0].end()
    assert [work.runs for work in works] == [False, True, False]
    await works[1].end()
    await works[2].end()
    assert budget.left == 10


@pytest.mark.parametrize("admitted", [False, True])
async def test_cancelled_work_gives_its_place_to_the_next(admitted: bool) -> None:
    budget = FairBudget(10)
    works = await begin(budget, 10, 10, 10)
    if admitted:
        works[0]._ends.set()
        await works[0].task  # the second has its turn, and its task has not run since
    works[1].task.cancel()
    await settled()
    if not admitted:
        assert not works[2].runs
        await works[0].end()
    assert works[2].runs
    await works[2].end()
    assert budget.left == 10


async def test_large_work_is_not_overtaken_by_small_work() -> None:
    works = await begin(FairBudget(64), 10, 60, 10)
    assert [work.runs for work in works] == [True, False, False]
    for work in works:
        await work.end()


async def test_many_pieces_of_work_stay_within_the_budget() -> None:
    budget, held, most = FairBudget(128), 0, 0

    async def work(size: int) -> None:
        nonlocal held, most
        async with budget.hold(size):
            held += size
            most = max(most, held)
            await asyncio.sleep(0)
            held -= size

    await asyncio.gather(*(work(1 + 7 * number % 64) for number in range(200)))
    assert 64 < most <= 128
    assert (held, budget.left) == (0, 128)
