"""A client's disconnect is noticed without a task that waits for it, where the server is known."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest

from llama_stack_responses.wire.disconnects import watch_client
from tests.support.memory import no_garbage_collection
from tests.support.waiting import turns
from tests.unit.wire.test_direct_writer import ServedRequest


def served_request() -> Any:
    """Return uvicorn's state of a request whose body has been read."""
    cycle: Any = ServedRequest().cycle
    cycle.message_event = asyncio.Event()
    cycle.flow.read_paused = True
    cycle.transport.resume_reading = lambda: None
    return cycle


def disconnect(cycle: Any) -> None:
    """Do what uvicorn does when the connection is lost."""
    cycle.disconnected = True
    cycle.message_event.set()


async def test_disconnect_is_noticed_without_a_task() -> None:
    cycle, left = served_request(), list[None]()
    before = asyncio.all_tasks()
    watch_client(cycle.receive, lambda: left.append(None))
    assert asyncio.all_tasks() == before
    assert not cycle.flow.read_paused
    cycle.message_event.set()  # the end of an answer
    assert left == []
    disconnect(cycle)
    assert left == [None]


async def test_stopped_watch_notices_nothing() -> None:
    cycle, left = served_request(), list[None]()
    watch_client(cycle.receive, lambda: left.append(None)).stop()
    disconnect(cycle)
    assert left == []


async def test_request_with_stopped_watch_is_freed_without_garbage_collection() -> None:
    cycle = served_request()
    watch_client(cycle.receive, lambda: None).stop()
    freed = weakref.ref(cycle)
    with no_garbage_collection():
        del cycle
        assert freed() is None


async def test_earlier_disconnect_is_noticed() -> None:
    cycle, left = served_request(), list[None]()
    disconnect(cycle)
    watch_client(cycle.receive, lambda: left.append(None))
    assert left == [None]


async def test_messages_can_still_be_received() -> None:
    cycle = served_request()
    watch_client(cycle.receive, lambda: None)
    receiving = [asyncio.create_task(cycle.receive()) for _ in range(2)]
    await turns(3)
    assert not any(each.done() for each in receiving)
    disconnect(cycle)
    assert [(await each)["type"] for each in receiving] == ["http.disconnect"] * 2


@pytest.mark.parametrize("stopped", [False, True])
async def test_disconnect_of_unknown_server_is_awaited(stopped: bool) -> None:
    cycle, left = served_request(), list[None]()

    async def receive() -> Any:
        return await cycle.receive()

    watch = watch_client(receive, lambda: left.append(None))
    await turns(3)
    if stopped:
        watch.stop()
    disconnect(cycle)
    await turns(5)
    assert left == [None] * (not stopped)
