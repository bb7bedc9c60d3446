"""Users take turns by what they hold and by their weights, and the work of one user goes by its precedence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from itertools import chain
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


_STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "cancel"]), st.sampled_from("abc"), st.integers(0, 9)), max_size=60
)


@given(
    total=st.integers(1, 4),
    per_user=st.integers(1, 4),
    steps=_STEPS,
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=3, max_size=3),
)
def test_no_unit_is_lost_whatever_enters_leaves_and_is_cancelled(
    total: int, per_user: int, steps: list[tuple[str, str, int]], weights: list[float]
) -> None:
    asyncio.run(_enter_and_leave(FairBudget(total, per_user, 5), steps, dict(zip("abc", weights, strict=True))))


async def _enter_and_leave(budget: FairBudget, steps: list[tuple[str, str, int]], weights: dict[str, float]) -> None:
    tasks: dict[str, list[asyncio.Task[Share]]] = {user: [] for user in weights}
    for what, user, number in steps:
        of_user = tasks[user]
        if what == "enter":
            of_user.append(as_user(user, budget.enter(1 + number % 2), weights[user]))
            of_user[-1].set_name(str(1 + number % 2))
        elif of_user and what == "leave":
            leave_one(budget, of_user)
        elif of_user:
            # At any time: before it has run, while it waits, and between its grant and its next step.
            of_user[number % len(of_user)].cancel()
        for _ in range(number % 3):
            await asyncio.sleep(0)
        assert budget.left <= budget.total
    while any(tasks.values()):
        await turns(4)
        for of_user in tasks.values():
            of_user[:] = [each for each in of_user if not (each.done() and (each.cancelled() or each.exception()))]
            leave_one(budget, of_user)
        done = [each for each in chain(*tasks.values()) if each.done()]
        assert done or budget.left < budget.total or not any(tasks.values()), "somebody waits although all is free"
    assert (budget.left, budget.waiting, budget.is_idle) == (budget.total, 0, True)


def leave_one(budget: FairBudget, of_user: list[asyncio.Task[Share]]) -> None:
    for task in of_user:
        if task.done() and not task.cancelled() and not task.exception():
            budget.leave(task.result(), int(task.get_name()))
            of_user.remove(task)
            return
