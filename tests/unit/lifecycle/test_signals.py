"""A termination signal is handled in the event loop, and by the previous handler."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
import uvicorn

from llama_stack_responses.lifecycle.signals import Connections, install_signal_handlers
from tests.support.waiting import until


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    chosen: signal.Signals = request.param
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield chosen
    for each, handler in before.items():
        signal.signal(each, handler)


async def test_signal_reaches_new_and_previous_handler(number: signal.Signals) -> None:
    received: list[str] = []
    notified = asyncio.Event()
    signal.signal(number, lambda *_: received.append("before"))
    install_signal_handlers(notified.set, 1.0)
    for _ in range(2):
        os.kill(os.getpid(), number)
        await asyncio.wait_for(notified.wait(), 60)
        notified.clear()
    assert received == ["before", "before"]


def test_signal_after_loop_closed_reaches_previous_handler_only(number: signal.Signals) -> None:
    received: list[str] = []
    signal.signal(number, lambda *_: received.append("before"))

    async def listen() -> None:
        install_signal_handlers(lambda: received.append("signal"), 1.0)

    asyncio.run(listen())
    signal.raise_signal(number)
    assert received == ["before"]


class Connection:
    """The part of a uvicorn connection that these tests use."""

    def __init__(self) -> None:
        self.transport = self
        self.aborted = asyncio.Event()

    def abort(self) -> None:
        self.aborted.set()


async def test_signal_aborts_uvicorn_connections(number: signal.Signals) -> None:
    server, connection = uvicorn.Server(uvicorn.Config("app")), Connection()
    server.server_state.connections.add(connection)  # type: ignore[arg-type]
    signal.signal(number, server.handle_exit)
    install_signal_handlers(lambda: None, 0.01)
    assert not connection.aborted.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(connection.aborted.wait(), 60)
    assert server.should_exit


async def test_install_in_other_thread_changes_no_handler(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    await asyncio.to_thread(lambda: asyncio.run(_listen()))
    assert signal.getsignal(number) is before


async def _listen() -> None:
    install_signal_handlers(lambda: None, 1.0)


async def test_previous_handler_waits_for_goodbye(number: signal.Signals) -> None:
    received: list[str] = []
    notified, goodbye = asyncio.Event(), asyncio.get_running_loop().create_future()
    signal.signal(number, lambda *_: received.append("before"))

    def notify() -> asyncio.Future[None]:
        notified.set()
        return goodbye

    install_signal_handlers(notify, 30.0)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(notified.wait(), 60)
    await asyncio.sleep(0)
    assert received == []
    goodbye.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert received == ["before"]


async def test_wait_for_goodbye_times_out(number: signal.Signals) -> None:
    received = asyncio.Event()
    signal.signal(number, lambda *_: received.set())
    install_signal_handlers(asyncio.get_running_loop().create_future, 0.01)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(received.wait(), 60)


@pytest.mark.parametrize("second", [False, True])
async def test_shutdown_begins_after_the_work_or_a_second_signal(number: signal.Signals, second: bool) -> None:
    received: list[str] = []
    requested, ended, work = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop().create_future()
    signal.signal(number, lambda *_: ended.set())

    def finish() -> asyncio.Future[None]:
        requested.set()
        return work

    install_signal_handlers(lambda: received.append("begun"), 30.0, finish)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(requested.wait(), 60)
    await asyncio.sleep(0)
    assert not received
    if second:
        os.kill(os.getpid(), number)
    else:
        work.set_result(None)
    await asyncio.wait_for(ended.wait(), 60)
    assert received == ["begun"]


async def test_signal_closes_listening_sockets_and_connections_after_their_answers(number: signal.Signals) -> None:
    class HttpConnection(Connection):
        def __init__(self) -> None:
            super().__init__()
            self.closes = asyncio.Event()

        def close_after_answer(self) -> None:
            self.closes.set()

    server, connection = uvicorn.Server(uvicorn.Config("app")), HttpConnection()
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    server.servers = [listening]
    server.server_state.connections.add(connection)  # type: ignore[arg-type]
    signal.signal(number, server.handle_exit)
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    install_signal_handlers(lambda: None, 60.0, lambda: finished)
    assert Connections(server.handle_exit).requesting == 1
    os.kill(os.getpid(), number)
    await asyncio.wait_for(connection.closes.wait(), 60)
    async with asyncio.timeout(60):
        await listening.wait_closed()
    assert not server.should_exit
    finished.set_result(None)
    await until(lambda: server.should_exit)


@pytest.mark.parametrize("is_worker", [True, False])
async def test_second_signal_of_another_kind_ends_the_wait_except_in_a_worker_whose_parent_sent_it(
    number: signal.Signals, *, is_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches all processes of a terminal, and then the parent ends its workers with SIGTERM."""
    monkeypatch.setattr("llama_stack_responses.lifecycle.signals.is_shared", lambda: is_worker)
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    received: list[str] = []
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: received.append("before"))
    install_signal_handlers(lambda: None, 60.0, lambda: waiting)
    [other] = {signal.SIGINT, signal.SIGTERM} - {number}
    for each in (number, other):
        os.kill(os.getpid(), each)
        await asyncio.sleep(0)
    await until(lambda: waiting.cancelled() is not is_worker)
    if is_worker:
        os.kill(os.getpid(), number)
        await until(waiting.cancelled)
    await until(lambda: received == ["before"])
