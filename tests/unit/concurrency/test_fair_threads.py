"""Users take turns for the threads of the event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from llama_stack_responses.concurrency.fair_threads import FairThreads
from llama_stack_responses.concurrency.fair_yield import FairYield
from llama_stack_responses.store.connection_slots import ConnectionSlots
from tests.support.memory import no_garbage_collection
from tests.support.shares import as_user
from tests.support.waiting import turns, until


async def test_call_of_one_user_comes_before_the_many_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.process_cpu_count", lambda: 1, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    asyncio.get_running_loop().set_default_executor(threads := FairThreads())
    began, may_end = list[str](), threading.Event()

    def work(user: str) -> str:
        began.append(user)
        assert may_end.wait(60)
        return user

    first = [as_user("many", asyncio.to_thread(work, "many")) for _ in range(40)]
    await until(lambda: len(began) == threads._max_workers)
    one = as_user("one", asyncio.to_thread(work, "one"))
    await turns(3)
    may_end.set()
    assert await one == "one"
    await asyncio.gather(*first)
    assert began.index("one") < 2 * threads._max_workers
    assert len(began) == 41


async def test_result_error_and_cancellation_are_those_of_an_executor() -> None:
    threads, entered, may_end = FairThreads(), threading.Event(), threading.Event()
    assert isinstance(threads, ThreadPoolExecutor)
    assert threads.submit(divmod, 7, 2).result(60) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(60)

    def wait() -> None:
        entered.set()
        assert may_end.wait(60)

    held = [threads.submit(wait) for _ in range(threads._max_workers)]
    cancelled = threads.submit(wait)
    assert cancelled.cancel()
    may_end.set()
    threads.shutdown()
    assert all(each.done() for each in held)
    with pytest.raises(RuntimeError):
        threads.submit(wait)


def test_error_keeps_nothing_that_the_call_was_given() -> None:
    """A cycle would keep large values until the cyclic garbage collector runs."""

    class Value:
        pass

    def fail(value: Value) -> None:
        raise ValueError(type(value).__name__)

    with no_garbage_collection():
        threads, value = FairThreads(), Value()
        kept, failed = weakref.ref(value), threads.submit(fail, value)
        del value
        threads.shutdown()
        assert isinstance(failed.exception(), ValueError)
        del failed
        assert kept() is None


async def test_stream_of_one_user_continues_as_often_as_all_of_another() -> None:
    fair_yield, done = FairYield(), list[str]()

    async def stream(user: str) -> None:
        for _ in range(10):
            await fair_yield.wait_turn()
            done.append(user)

    many = [as_user("many", stream("many")) for _ in range(20)]
    one = as_user("one", stream("one"))
    await one
    assert done.count("many") <= 12
    await asyncio.gather(*many)


async def test_call_of_one_user_gets_a_connection_before_the_many_of_another() -> None:
    slots, served = ConnectionSlots(1, 60.0), list[str]()

    async def call(user: str) -> None:
        async with slots.taken():
            served.append(user)
            await asyncio.sleep(0)

    many = [as_user("many", call("many")) for _ in range(20)]
    await turns(2)
    await as_user("one", call("one"))
    assert served.index("one") <= 3
    await asyncio.gather(*many)
    await slots.close()


async def test_calls_of_one_user_leave_connections_to_others() -> None:
    slots, going, end = ConnectionSlots(16, 60.0), Counter[str](), asyncio.Event()

    async def call(user: str) -> None:
        async with slots.taken():
            going[user] += 1
            await end.wait()

    calls = [as_user("many", call("many")) for _ in range(200)]
    await turns(2)
    calls += [as_user("one", call("one")) for _ in range(4)]
    await turns(2)
    assert going == {"many": 12, "one": 4}
    end.set()
    await asyncio.gather(*calls)
    await slots.close()
