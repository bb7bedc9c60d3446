"""Commands as hiredis makes them are those of the `redis` package."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, SSLConnection
from redis.asyncio.connection import AbstractConnection

from llama_stack_responses.store.redis_packing import packed_by_hiredis
from llama_stack_responses.store.redis_sentinel import sentinel_pool

URLS = ["redis://server", "rediss://server", "unix:///socket"]
TEXTS = st.text(st.characters(codec="utf-8"))
NAMES = st.sampled_from(["EVALSHA", "SET", "CLIENT SETINFO", b"CONFIG GET"])


def connection_of(pool: ConnectionPool) -> AbstractConnection:
    made = packed_by_hiredis(pool).make_connection()  # type: ignore[no-untyped-call]
    assert isinstance(made, AbstractConnection)
    return made


@given(NAMES, st.lists(st.binary() | TEXTS | st.integers() | st.floats(allow_nan=False)), st.booleans())
def test_commands_are_those_of_the_package(name: Any, arguments: list[Any], large: bool) -> None:
    arguments += [bytes(300_000)] if large else []
    packed = connection_of(BlockingConnectionPool())
    assert b"".join(packed.pack_command(name, *arguments)) == b"".join(Connection().pack_command(name, *arguments))


def test_large_arguments_are_not_copied() -> None:
    value = bytes(300_000)
    pieces = connection_of(BlockingConnectionPool()).pack_command("SET", "key", value)
    assert any(each is value for each in pieces)


@pytest.mark.parametrize("url", URLS)
def test_connections_stay_of_their_kind(url: str) -> None:
    pool = BlockingConnectionPool.from_url(url)
    kind = pool.connection_class
    connection = connection_of(pool)
    assert isinstance(connection, kind)
    assert b"".join(connection.pack_command("GET", "a")) == b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"


def test_connections_to_the_primary_of_sentinels_stay_of_their_kind() -> None:
    pool = sentinel_pool("rediss+sentinel://one:26379/service", None)
    assert isinstance(connection_of(pool), SSLConnection)
