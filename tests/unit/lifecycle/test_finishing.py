"""The wait for running responses, and for clients that close their connections, before a shutdown."""

import asyncio

import pytest

from llama_stack_responses.lifecycle import finishing as module
from llama_stack_responses.lifecycle.finishing import Finishing


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.001)


@pytest.mark.parametrize(("running", "seconds"), [(set(), 30.0), ({1}, 0.0)])
async def test_shutdown_without_work_or_time_does_not_wait(running: set[object], seconds: float) -> None:
    finishing = Finishing(running, seconds)
    assert finishing.begin() is None
    assert finishing.begun


async def test_wait_ends_with_the_last_response() -> None:
    running = {1, 2}
    finishing = Finishing(running, 3600.0)
    done = finishing.begin()
    assert done is not None
    running.discard(1)
    await asyncio.sleep(0.01)
    assert not done.done()
    running.discard(2)
    await done
    assert finishing.begin() is None


async def test_wait_ends_with_the_last_connection() -> None:
    """A server that closes a connection may lose a request that is on its way."""
    connections = {1}
    done = Finishing(set(), 3600.0).begin(lambda: len(connections))
    assert done is not None
    await asyncio.sleep(0.01)
    assert not done.done()
    connections.clear()
    await done


async def test_connection_that_its_client_keeps_does_not_hold_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.01)
    done = Finishing(set(), 3600.0).begin(lambda: 1)
    assert done is not None
    await done


async def test_wait_ends_after_the_time_limit() -> None:
    done = Finishing({1}, 0.01).begin()
    assert done is not None
    await asyncio.wait([done])
    assert done.cancelled()


async def test_connections_are_accepted_for_their_time_without_work() -> None:
    finishing = Finishing(set(), 0.0, 3600.0)
    done = finishing.begin()
    assert done is not None
    await asyncio.sleep(0)
    assert not done.done()
    assert not finishing.refuses
    done.cancel()


async def test_connections_are_refused_after_their_time() -> None:
    finishing = Finishing(set(), 0.0, 0.01)
    done = finishing.begin()
    assert done is not None
    await asyncio.wait([done])
    assert finishing.refuses
