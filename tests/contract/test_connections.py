"""The connections of a store on a server: none is left when the store is closed, and calls take turns to use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import repeat

import asyncpg
import pytest
from redis import Redis

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.records import Notify, Put, Records
from tests.contract.backends import SECONDS
from tests.contract.test_server_faults import HASTY, KINDS, PARAMETERS, WRITERS
from tests.support.database import DatabaseServer


@pytest.fixture(scope="module", params=PARAMETERS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseServer]:
    with KINDS[kind][0](tmp_path_factory.mktemp(kind) / "server") as running:
        yield running


@pytest.fixture
async def records(kind: str, server: DatabaseServer) -> AsyncIterator[Records]:
    opened = KINDS[kind][1](server.url)
    await opened.commit([Put("first", b"")])  # sets the store up
    await opened.close()
    await no_connection(server)
    yield opened
    await opened.close()


async def connections_of(server: DatabaseServer) -> int:
    """Return how many connections the server has, without the one that asks."""
    if server.url.startswith("redis"):
        with Redis.from_url(server.url) as asking:
            return len(asking.client_list()) - 1
    asking = await asyncpg.connect(server.url)
    try:
        count: int = await asking.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return count
    finally:
        await asking.close()


async def no_connection(server: DatabaseServer) -> None:
    """Wait until the server has noticed that all connections are closed."""
    async with asyncio.timeout(SECONDS):
        for pause in repeat(0.02):
            if not await connections_of(server):
                return
            await asyncio.sleep(pause)


async def close_with(records: Records, server: DatabaseServer, calls: list[asyncio.Task[None]]) -> None:
    """Close the records, wait until the calls have ended, and check that no connection is left."""
    await asyncio.gather(records.close(), records.close())
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert error is None or (isinstance(error, ApiError) and error.status == 503), error
    await no_connection(server)


@pytest.mark.parametrize("warm", [False, True], ids=["without connections", "with a connection"])
async def test_close_ends_calls_that_are_connecting(records: Records, server: DatabaseServer, warm: bool) -> None:
    if warm:
        await records.get_many(["first"])
    server.freeze()
    calls = [asyncio.create_task(records.commit([Put(f"k/{number}", b""), Notify("k")])) for number in range(8)]
    for _ in range(20):
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.05, server.thaw)
    await close_with(records, server, calls)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_close_at_any_moment_of_calls_leaves_no_connection(
    records: Records, server: DatabaseServer, turns: int
) -> None:
    await records.get_many(["first"])
    calls = [asyncio.create_task(records.commit([Put(f"k/{number}", b""), Notify("k")])) for number in range(8)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await close_with(records, server, calls)


async def test_calls_that_begin_while_the_store_closes_open_no_connection(
    records: Records, server: DatabaseServer
) -> None:
    writing, closed = asyncio.Event(), asyncio.Event()

    async def write_until_closed() -> None:
        while not closed.is_set():
            await records.commit([Put("k", b""), Notify("k")])
            writing.set()

    calls = [asyncio.create_task(write_until_closed()) for _ in range(8)]
    await writing.wait()
    async with asyncio.timeout(SECONDS):
        await records.close()
    closed.set()  # the next call would open the store again
    await close_with(records, server, calls)


async def test_close_that_is_cancelled_leaves_no_connection(records: Records, server: DatabaseServer) -> None:
    await records.get_many(["first"])
    server.freeze()
    calls = [asyncio.create_task(records.commit([Put(f"k/{number}", b""), Notify("k")])) for number in range(8)]
    closing = asyncio.create_task(records.close())
    for _ in range(20):
        await asyncio.sleep(0)
    closing.cancel()
    assert isinstance((await asyncio.gather(closing, return_exceptions=True))[0], asyncio.CancelledError)
    server.thaw()
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert error is None or (isinstance(error, ApiError) and error.status == 503), error
    await no_connection(server)


async def test_closed_store_is_opened_again_by_the_next_call(records: Records, server: DatabaseServer) -> None:
    await records.get_many(["first"])
    await records.close()
    assert "first" in await records.get_many(["first"])
    await records.close()
    await no_connection(server)


async def test_more_writers_than_connections_take_turns(kind: str, server: DatabaseServer) -> None:
    # With two connections, one could wait for a busy machine while the other makes any number of commits.
    records = HASTY[kind](server.url, connections=1, timeout=SECONDS)
    committed = dict.fromkeys(range(WRITERS), 0)
    leads = [0]

    async def write(number: int) -> None:
        while min(committed.values()) < 20 and leads[-1] <= 1:
            await records.commit([Put(f"k/{number}", b"")])
            committed[number] += 1
            leads.append(max(committed.values()) - min(committed.values()))

    await asyncio.gather(*map(write, committed))
    await records.close()
    assert max(leads) == 1
