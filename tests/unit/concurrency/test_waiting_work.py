"""Users take turns by what they hold and by their weights, and the work of one user goes by its precedence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.concurrency.fair_budget import FairBudget, QueueFull
from llama_stack_responses.concurrency.share import Share, current_share
from llama_stack_responses.concurrency.waiting_work import Precedence, WaitingWork
from tests.support.shares import as_user
from tests.support.waiting import turns


def taken(works: WaitingWork[Any], count: int) -> list[Any]:
    """Take out so many pieces of work, and return them."""
    found = []
    for _ in range(count):
        turn = works.next()
        assert turn
        works.take(turn[0].user)
        found.append(turn[1])
    return found


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0, 2.0, 7.0])
def test_users_have_as_many_turns_as_their_weights_say(weight: float) -> None:
    works: WaitingWork[str] = WaitingWork()
    for _ in range(400):
        works.add("heavy", Share("a", weight))
        works.add("light", Share("b"))
    turns = Counter(taken(works, 400))
    assert turns["heavy"] / turns["light"] == pytest.approx(weight, rel=0.05)


def test_user_who_comes_late_is_next() -> None:
    works: WaitingWork[str] = WaitingWork()
    for number in range(200):
        works.add(f"many {number}", Share("a"))
    taken(works, 50)
    works.add("one", Share("b"))
    assert "one" in taken(works, 2)


def test_new_users_do_not_starve_the_second_piece_of_another() -> None:
    works: WaitingWork[str] = WaitingWork()
    works.add("first", Share("a"))
    works.add("second", Share("a"))
    served = list[str]()
    for number in range(5):
        works.add(f"new {number}", Share(number))
        works.add(f"newer {number}", Share(-1 - number))
        served += taken(works, 1)
    assert "second" in served


def test_user_who_holds_least_for_their_weight_is_next() -> None:
    works: WaitingWork[str] = WaitingWork()
    held: dict[Hashable, int] = {"a": 4, "b": 3, "c": 9}
    for user, weight in (("a", 1.0), ("b", 1.0), ("c", 4.0)):
        works.add(user, Share(user, weight))
    assert works.next(held.__getitem__) == (Share("c", 4.0), "c")
    held["c"] = 13
    assert works.next(held.__getitem__) == (Share("b"), "b")


def test_work_of_a_user_goes_by_its_precedence() -> None:
    works: WaitingWork[str] = WaitingWork()
    for precedence in (Precedence.LATER, Precedence.NEW, Precedence.BEGUN):
        for number in range(2):
            works.add(f"{precedence.name} {number}", Share("a"), precedence)
    assert taken(works, 6) == ["BEGUN 0", "BEGUN 1", "NEW 0", "NEW 1", "LATER 0", "LATER 1"]


def test_precedence_gives_a_user_no_more_turns() -> None:
    works: WaitingWork[str] = WaitingWork()
    for _ in range(10):
        works.add("begun", Share("a"), Precedence.BEGUN)
        works.add("later", Share("b"), Precedence.LATER)
    assert Counter(taken(works, 10)) == {"begun": 5, "later": 5}


def test_work_of_a_user_that_waits_longest_goes_now_and_then() -> None:
    works: WaitingWork[str] = WaitingWork()
    works.add("later", Share("a"), Precedence.LATER)
    for _ in range(20):
        works.add("new", Share("a"))
    assert "later" in taken(works, 8)


def test_work_that_leaves_is_not_taken() -> None:
    works: WaitingWork[str] = WaitingWork()
    works.add("gone", Share("a"))
    works.add("other", Share("b"))
    assert works.remove("gone", "a")
    assert not works.remove("gone", "a")
    assert taken(works, 1) == ["other"]
    assert not works
    assert works.next() is None


async def test_work_beyond_the_budget_does_not_wait_and_is_counted() -> None:
    budget = FairBudget(1)
    first = await as_user("a", budget.enter())
    with_summary = await as_user("a", turn_beyond(budget))
    waiting = as_user("b", budget.enter())
    await turns(3)
    assert (budget.left, budget.waiting) == (-1, 1)
    budget.leave(with_summary)
    await turns(3)
    assert not waiting.done()
    budget.leave(first)
    await waiting
    assert (budget.left, budget.waiting) == (0, 0)


async def turn_beyond(budget: FairBudget) -> Share:
    return budget.enter_beyond()


async def test_work_that_may_not_be_refused_waits_in_a_full_queue() -> None:
    budget = FairBudget(1, waiting_per_user=0)
    share = await as_user("a", budget.enter())
    with pytest.raises(QueueFull):
        await as_user("a", budget.enter())
    waiting = as_user("a", budget.enter(may_refuse=False))
    await turns(3)
    budget.leave(share)
    await waiting


async def test_share_is_that_of_the_task_and_of_those_it_creates() -> None:
    async def child() -> Share:
        return await asyncio.create_task(own())

    async def own() -> Share:
        return current_share()

    assert await as_user("a", child(), 2.0) == Share("a", 2.0)
    assert current_share() == Share(None)


class Works:
    """Work of three users at a budget, as a client of the budget sees it.

    Args:
        weights: of the users.
    """

    def __init__(self, budget: FairBudget, per_user: int, weights: dict[str, float]) -> None:
        self.budget, self._per_user, self._weights = budget, per_user, weights
        self._tasks: list[tuple[asyncio.Task[Share], str, int]] = []

    def enter(self, user: str, units: int) -> None:
        self._tasks.append((as_user(user, self.budget.enter(units), self._weights[user]), user, units))

    def leave(self, user: str) -> None:
        """End the first work of a user that holds units."""
        for each in self.holding():
            if each[1] == user:
                self.budget.leave(each[0].result(), each[2])
                self._tasks.remove(each)
                return

    def cancel(self, user: str, number: int) -> None:
        """Cancel one piece of a user's work that does not run yet, whether it waits or has just been granted."""
        waiting = [task for task, of, _ in self.waiting() if of == user]
        if waiting:
            waiting[number % len(waiting)].cancel()

    def cancel_large(self) -> None:
        """Cancel all work for which too few units are left, whoever waits behind it."""
        for task, _, units in self.waiting():
            if units > self.budget.left:
                task.cancel()

    def pass_on(self, user: str) -> None:
        """Give units back, and in the same iteration cancel the work that gets them, with all that waits."""
        self.leave(user)
        for task, *_ in self.waiting():
            task.cancel()

    def waiting(self) -> list[tuple[asyncio.Task[Share], str, int]]:
        return [each for each in self._tasks if not each[0].done()]

    def holding(self) -> list[tuple[asyncio.Task[Share], str, int]]:
        self._tasks = [each for each in self._tasks if not (each[0].done() and failed(each[0]))]
        return [each for each in self._tasks if each[0].done()]

    async def settle(self) -> None:
        """Let all go on that can, and check that the budget has counted right and keeps nobody waiting for nothing."""
        await turns(6)
        held: Counter[str] = Counter()
        for _, user, units in self.holding():
            held[user] += min(units, self.budget.total)
        left = self.budget.total - held.total()
        assert (self.budget.left, self.budget.waiting) == (left, len(self.waiting()))
        assert left >= 0
        first = {user: units for _, user, units in reversed(self.waiting())}
        may_go = [min(units, self.budget.total) for user, units in first.items() if self._may_hold(user, units, held)]
        assert not may_go or max(may_go) > left, "work waits although there is room for it, whoever is next"

    def _may_hold(self, user: str, units: int, held: Counter[str]) -> bool:
        return not held[user] or held[user] + units <= self._per_user

    async def end(self) -> None:
        """Let all work have its units and end."""
        while self._tasks:
            await self.settle()
            assert self.holding() or not self._tasks, "work waits although nothing is held"
            for user in self._weights:
                self.leave(user)


def failed(task: asyncio.Task[Share]) -> bool:
    return task.cancelled() or task.exception() is not None


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "enter", "leave", "cancel", "cancel large", "pass on"]),
        st.sampled_from("abc"),
        st.integers(0, 9),
        st.sampled_from([0, 0, 1, 2, None]),
    ),
    min_size=8,
    max_size=60,
)


@given(
    total=st.integers(1, 4),
    per_user=st.integers(1, 4),
    steps=_STEPS,
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=3, max_size=3),
)
def test_no_unit_is_lost_whatever_enters_leaves_and_is_cancelled(
    total: int, per_user: int, steps: list[tuple[str, str, int, int | None]], weights: list[float]
) -> None:
    asyncio.run(_enter_and_leave(total, per_user, steps, dict(zip("abc", weights, strict=True))))


async def _enter_and_leave(
    total: int, per_user: int, steps: list[tuple[str, str, int, int | None]], weights: dict[str, float]
) -> None:
    budget = FairBudget(total, per_user, 5)
    works = Works(budget, per_user, weights)
    for what, user, number, iterations in steps:
        match what:
            case "enter":
                works.enter(user, 1 + number % 2)
            case "leave":
                works.leave(user)
            case "cancel":
                works.cancel(user, number)
            case "cancel large":
                works.cancel_large()
            case _:
                works.pass_on(user)
        if iterations is None:
            await works.settle()
        else:
            await turns(iterations)
    await works.end()
    assert (budget.left, budget.waiting, budget.is_idle) == (total, 0, True)
