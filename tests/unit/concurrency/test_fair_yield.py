"""Streams that always have a delta ready take turns, and other tasks run in between."""

import asyncio

from llama_stack_responses.concurrency.fair_yield import FairYield
from llama_stack_responses.concurrency.share import Share
from tests.support.waiting import turns


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


async def test_request_that_arrives_alone_does_not_wait() -> None:
    arrivals, done = FairYield(), list[str]()
    for number in range(3):
        request = arrive(arrivals, str(number), done)
        await asyncio.sleep(0)
        assert request.done()
        await turns(2)


async def test_request_that_arrives_behind_many_of_another_user_is_the_second_to_go_on() -> None:
    arrivals, done = FairYield(), list[str]()
    requests = [arrive(arrivals, user, done) for user in ["many"] * 200 + ["one"]]
    await turns(4)
    assert "one" in done[:3]
    assert len(done) <= 4, "one goes on in each iteration"
    await asyncio.gather(*requests)
    assert done.count("many") == 200


async def test_requests_of_one_user_leave_iterations_to_what_others_have_begun() -> None:
    arrivals, done = FairYield(pause=10), list[str]()
    requests = [arrive(arrivals, user, done) for user in ["many"] * 20 + ["one", "other", "one"]]
    await turns(6)
    assert sorted(done) == ["many", "one", "other"]
    await turns(20)
    assert (done.count("many"), done.count("one")) == (3, 2)
    await asyncio.gather(*requests)
    assert not arrivals._waiting
    await turns(2)
    assert not arrivals._pauses_until, "nothing is kept of users without requests"


async def test_turns_go_on_in_another_event_loop() -> None:
    """The loop in which the host creates its providers ends before the first request."""
    arrivals = FairYield()

    async def wait() -> None:
        await arrivals.wait_behind_others(Share("a"))
        await arrivals.wait_behind_others(Share("a"))

    for _ in range(2):
        await asyncio.wait_for(asyncio.to_thread(asyncio.run, wait()), 60)


def arrive(arrivals: FairYield, user: str, done: list[str]) -> asyncio.Task[None]:
    """Start a request, which notes its user once it goes on."""

    async def request() -> None:
        await arrivals.wait_behind_others(Share(user))
        done.append(user)

    return asyncio.create_task(request())
