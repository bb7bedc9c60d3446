"""What a client reads of a cluster: its URL, and the map of slots as nodes tell it. And what it says of a call that fails."""

import asyncio
from typing import override

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store import redis_cluster
from llama_stack_responses.store.connection_slots import NotSent
from llama_stack_responses.store.redis_cluster import ClusterConnections, _Node, _parsed, _ranges
from llama_stack_responses.store.redis_connections import Access
from llama_stack_responses.store.redis_errors import NoAnswer
from tests.support.waiting import LOOP_SECONDS


def test_url_names_nodes_and_settings_of_all_connections() -> None:
    url = "rediss://me@one:7000,two,[::1]:7001?ssl_ca_certs=ca.pem&socket_timeout=60"
    access = Access(url, "secret", None, 3.0)
    nodes, settings = _parsed(access)
    assert nodes == [("one", 7000), ("two", 6379), ("::1", 7001)]
    timeouts = {"socket_timeout": 60.0, "socket_connect_timeout": 3.0}
    wanted = {"username": "me", "password": "secret", "ssl_ca_certs": "ca.pem", **timeouts}
    assert {name: settings[name] for name in wanted} == wanted


@pytest.mark.parametrize("unknown", [b"", b"?", None], ids=repr)
def test_node_that_does_not_know_its_host_is_where_it_was_asked(unknown: bytes | None) -> None:
    answer = [[0, 99, [unknown, 7000, b"id", []], [b"two", 7001, b"id", []]], [100, 16383, [b"two", 7001, b"id", []]]]
    asked = _Node("one", 6379)
    assert [*_ranges(answer, asked)] == [
        (0, 99, [("one", 7000), ("two", 7001)]),
        (100, 16383, [("two", 7001)]),
    ]


class KnownPrimary(ClusterConnections):
    """Connections to a cluster whose map says always the same."""

    @override
    async def _owner(self, slot: int) -> _Node:
        return _Node("one", 7000)


async def test_call_that_is_redirected_again_and_again_waits_a_moment_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections = KnownPrimary(asyncio.get_running_loop(), Access("redis://one:7000", None, None, 60.0), 1)
    redirects = 0

    async def redirected(_: Redis) -> str:
        nonlocal redirects
        redirects += 1
        if redirects <= most:
            raise MovedError("1 one:7000")
        return "done"

    most = 20
    assert await connections.call("k", redirected) == "done"
    monkeypatch.setattr(redis_cluster, "MAX_RETRIES", 1)
    redirects, most = 0, 1000
    with pytest.raises(ApiError, match="moving these responses to another node") as error:
        await connections.call("k", redirected)
    assert (error.value.status, error.value.retry_after) == (503, 1)
    await connections.close()


async def test_call_that_gets_no_second_try_is_said_to_be_unsent_only_if_it_had_no_first_one() -> None:
    connections = KnownPrimary(asyncio.get_running_loop(), Access("redis://one:7000", None, None, 60.0), 1)
    tried, began, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def lost(_: Redis) -> None:
        tried.set()
        raise RedisConnectionError

    async def long(_: Redis) -> None:
        began.set()
        await ended.wait()

    sent = asyncio.create_task(connections.call("k", lost))
    await tried.wait()
    holding = asyncio.create_task(connections.call("k", long))
    unsent = asyncio.create_task(connections.call("k", lost))
    await began.wait()
    closing = asyncio.create_task(connections.close())
    await asyncio.sleep(0)
    ended.set()
    with pytest.raises(NoAnswer):
        await sent
    with pytest.raises(NotSent):
        await unsent
    await asyncio.gather(holding, closing)


async def test_address_is_found_while_others_forget_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may forget it after it was read, and before a call goes on that has waited for it."""

    class Told:
        async def execute_command(self, *_: str) -> object:
            await asyncio.sleep(0)
            return [[0, 16383, [b"one", 7000, b"id", []]]]

    async def later(turns: int, connections: ClusterConnections) -> Redis:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await connections.listener("k")

    for turns in range(10):
        connections = ClusterConnections(asyncio.get_running_loop(), Access("redis://one:7000", None, None, 60.0), 1)
        monkeypatch.setattr(connections, "_client", lambda _: Told())
        address, _ = await asyncio.gather(connections.address("k"), later(turns, connections))
        assert address == "one:7000"


async def test_map_comes_from_another_node_while_those_of_a_lost_zone_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Told:
        def __init__(self, node: _Node) -> None:
            self._host = node.host

        async def execute_command(self, *_: str) -> object:
            asked.append(self._host)
            if self._host != "three":
                await asyncio.Event().wait()
            return [[0, 16383, [b"three", 7000, b"id", []]]]

    access = Access("redis://one:7000,two:7000,three:7000", None, None, 60.0)
    connections = ClusterConnections(asyncio.get_running_loop(), access, 1)
    monkeypatch.setattr(connections, "_client", Told)
    async with asyncio.timeout(LOOP_SECONDS):
        assert await connections.address("k") == "three:7000"
        assert asked == ["one", "two", "three"]
        await connections.listener("k")
    assert asked[3:] == ["three"], "a node that hangs is asked first again"
