"""A signal to end is heard in the loop, and by whoever heard it before."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
import uvicorn

from llama_stack_responses.lifecycle.signals import hear_end


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    chosen: signal.Signals = request.param
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield chosen
    for each, handler in before.items():
        signal.signal(each, handler)


async def test_both_are_told(number: signal.Signals) -> None:
    heard: list[str] = []
    told = asyncio.Event()
    signal.signal(number, lambda *_: heard.append("before"))
    hear_end(told.set, 1.0)
    for _ in range(2):
        os.kill(os.getpid(), number)
        await asyncio.wait_for(told.wait(), 60)
        told.clear()
    assert heard == ["before", "before"]


def test_a_loop_that_is_gone_is_not_told(number: signal.Signals) -> None:
    heard: list[str] = []
    signal.signal(number, lambda *_: heard.append("before"))

    async def listen() -> None:
        hear_end(lambda: heard.append("told"), 1.0)

    asyncio.run(listen())
    signal.raise_signal(number)
    assert heard == ["before"]


class Connection:
    """What uvicorn has of one, as far as it counts here."""

    def __init__(self) -> None:
        self.transport = self
        self.aborted = asyncio.Event()

    def abort(self) -> None:
        self.aborted.set()


async def test_uvicorns_connections_are_broken_off(number: signal.Signals) -> None:
    server, connection = uvicorn.Server(uvicorn.Config("app")), Connection()
    server.server_state.connections.add(connection)  # type: ignore[arg-type]
    signal.signal(number, server.handle_exit)
    hear_end(lambda: None, 0.01)
    assert not connection.aborted.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(connection.aborted.wait(), 60)
    assert server.should_exit


async def test_another_thread_hears_nothing_and_changes_nothing(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    await asyncio.to_thread(lambda: asyncio.run(_listen()))
    assert signal.getsignal(number) is before


async def _listen() -> None:
    hear_end(lambda: None, 1.0)


async def test_who_heard_it_before_hears_it_after_the_goodbye(number: signal.Signals) -> None:
    heard: list[str] = []
    told, goodbye = asyncio.Event(), asyncio.get_running_loop().create_future()
    signal.signal(number, lambda *_: heard.append("before"))

    def tell() -> asyncio.Future[None]:
        told.set()
        return goodbye

    hear_end(tell, 30.0)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(told.wait(), 60)
    await asyncio.sleep(0)
    assert heard == []
    goodbye.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert heard == ["before"]


async def test_a_goodbye_is_not_waited_for_for_ever(number: signal.Signals) -> None:
    heard = asyncio.Event()
    signal.signal(number, lambda *_: heard.set())
    hear_end(asyncio.get_running_loop().create_future, 0.01)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(heard.wait(), 60)
