"""Users take turns, and a turn ends by itself."""

from __future__ import annotations

import asyncio

from llama_stack_responses.concurrency.turns import Turns
from tests.support.shares import as_user
from tests.support.waiting import turns as iterations


async def test_user_with_one_piece_of_work_comes_before_the_many_of_another() -> None:
    turns, begun = Turns(2, 2, 3600), list[str]()

    async def work(owner: str) -> None:
        with await turns.take():
            begun.append(owner)
            await asyncio.sleep(0)

    await asyncio.gather(*(as_user("many", work("many")) for _ in range(50)), as_user("one", work("one")))
    assert begun.index("one") <= 3
    assert len(begun) == 51


async def test_turn_that_waits_for_something_else_ends_by_itself() -> None:
    turns = Turns(1, 1, 0.001)
    slow = await as_user("slow", turns.take())
    async with asyncio.timeout(60):
        (await as_user("other", turns.take())).end()
    slow.end()
    assert turns.is_idle


async def test_turn_ends_once() -> None:
    turns = Turns(1, 1, 3600)
    first = await as_user("a", turns.take())
    first.end()
    first.end()
    with await as_user("b", turns.take()):
        waiting = as_user("c", turns.take())
        await iterations(3)
        assert not waiting.done()
    (await waiting).end()
    assert turns.is_idle


async def test_request_that_leaves_while_it_waits_takes_no_turn() -> None:
    turns = Turns(1, 1, 3600)
    with await as_user("a", turns.take()):
        waiting = as_user("b", turns.take())
        await iterations(2)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert turns.is_idle


async def test_turn_of_a_busy_loop_lasts_for_some_of_its_iterations() -> None:
    """A time alone would be over before the work has gone on."""
    turns = Turns(1, 1, 0)
    begins, waiting = as_user("a", turns.take()), as_user("b", turns.take())
    with await begins:
        await iterations(8)
        assert not waiting.done()
        await waiting
    waiting.result().end()
    assert turns.is_idle


async def test_turn_for_which_nothing_waits_ends_without_further_iterations() -> None:
    turns = Turns(2, 2, 0)
    await as_user("a", turns.take())
    await iterations(3)
    assert turns.is_idle


async def test_user_who_comes_while_another_has_many_turns_does_not_wait() -> None:
    turns = Turns(4, 2, 3600)
    many = [as_user("many", turns.take()) for _ in range(10)]
    await iterations(3)
    assert sum(each.done() for each in many) == 2
    (await asyncio.wait_for(as_user("one", turns.take()), 60)).end()
    assert sum(each.done() for each in many) == 2
    for each in many:
        (await each).end()
    assert turns.is_idle


async def test_while_one_user_begins_another_begins_no_more_than_two_of_many() -> None:
    """Also if their turns end by themselves, because they wait for a store or a model server."""
    turns, begun = Turns(8, 1, 0), list[str]()

    async def begin(user: str) -> None:
        with await turns.take():
            begun.append(user)
            await iterations(48)

    many = [as_user("many", begin("many")) for _ in range(20)]
    await iterations(3)
    await as_user("one", begin("one"))
    assert begun.count("many") <= 3, "one had begun before, and two meanwhile"
    await asyncio.gather(*many)


async def test_work_that_gives_way_goes_on_once_nothing_of_its_user_waits() -> None:
    turns, done = Turns(1, 1, 3600), list[str]()

    async def begin(name: str) -> None:
        with await turns.take():
            done.append(name)
            await asyncio.sleep(0)

    async def end(name: str) -> None:
        await turns.give_way(3600)
        done.append(name)

    with await as_user("a", turns.take()):
        first = as_user("a", begin("first"))
        await iterations(2)
        others = [as_user("a", work) for work in (end("end"), end("other end"), begin("second"))]
        await iterations(4)
        assert not done
    await asyncio.gather(first, *others)
    assert done == ["first", "second", "end", "other end"]
    assert turns.is_idle


async def test_nothing_gives_way_to_other_users_for_long() -> None:
    turns, begun = Turns(8, 1, 3600), list[str]()

    async def begin() -> None:
        with await turns.take():
            begun.append("many")
            await asyncio.sleep(0)

    many = [as_user("many", begin()) for _ in range(20)]
    await iterations(2)
    await as_user("one", turns.give_way(3600))
    assert len(begun) < 4
    await asyncio.gather(*many)


async def test_work_gives_way_for_some_time_at_most() -> None:
    turns = Turns(1, 1, 3600)
    with await as_user("a", turns.take()):
        waiting = as_user("a", turns.take())
        await iterations(2)
        async with asyncio.timeout(60):
            await as_user("a", turns.give_way(0.01))
        assert not waiting.done()
    (await waiting).end()
    assert turns.is_idle


async def test_work_that_is_cancelled_while_it_gives_way_leaves_no_turn() -> None:
    turns = Turns(1, 1, 3600)
    with await as_user("a", turns.take()):
        waiting, giving_way = as_user("a", turns.take()), as_user("a", turns.give_way(3600))
        await iterations(3)
        giving_way.cancel()
        await asyncio.wait([giving_way])
        assert giving_way.cancelled()
    (await waiting).end()
    assert turns.is_idle


async def test_work_gives_way_to_nothing_at_once() -> None:
    turns = Turns(1, 1, 3600)
    with await as_user("a", turns.take()):
        coroutine = turns.give_way(3600)
        try:
            coroutine.send(None)
        except StopIteration:
            return
    raise AssertionError("it waited")
