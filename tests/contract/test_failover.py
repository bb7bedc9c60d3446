"""A store with a standby: when the primary dies, servers go on with the standby."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
from redis import Redis

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.records import Notify, Put, Records
from llama_stack_responses.store.redis import RedisRecords
from tests.support.postgres import Postgres, Standby
from tests.support.sentinel import Sentinel
from tests.support.valkey import Valkey
from tests.support.waiting import SECONDS, wait_until


async def written(records: Records, put: Put) -> None:
    """Commit until the store has answered."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await records.commit([put])
            except ApiError:
                await asyncio.sleep(0.05)
            else:
                return


def has_caught_up(replica: Valkey, prefix: str) -> bool:
    with Redis.from_url(replica.url) as client:
        return bool(client.exists(f"{prefix}r:before"))


async def test_server_behind_sentinels_follows_the_promoted_replica(tmp_path: Path) -> None:
    with (
        Valkey(tmp_path / "first") as first,
        Valkey(tmp_path / "second", "--replicaof", "127.0.0.1", str(first.port)) as second,
        Sentinel(tmp_path / "sentinel", first) as sentinel,
    ):
        records, other = RedisRecords(sentinel.url), RedisRecords(sentinel.url)
        await records.commit([Put("before", b"1")])
        wait_until(lambda: has_caught_up(second, "responses:"))
        first.kill()
        await written(records, Put("after", b"2"))
        found = await records.get_many(["before", "after"])
        assert {key: record.value for key, record in found.items()} == {"before": b"1", "after": b"2"}
        # The settings of the new primary are those that count.
        with Redis.from_url(second.url) as admin:
            admin.config_set("appendonly", "no")
        assert set(await records.losses() or {}) == {"restart"}
        async with records.pubsub() as pubsub:
            await pubsub.subscribe(["name"])
            assert await pubsub.receive() == "name"
            await other.commit([Notify("name")])
            assert await pubsub.receive() == "name"
        await records.close()
        await other.close()


async def in_postgres(server: Postgres, query: str, *arguments: object) -> object:
    """Return the value that a query of this server selects."""
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(query, *arguments)
    finally:
        await connection.close()


async def caught_up(standby: Postgres, primary: Postgres) -> None:
    """Wait until the standby has what the primary has written by now."""
    position = await in_postgres(primary, "SELECT pg_current_wal_lsn()::text")
    has_it = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn"
    async with asyncio.timeout(SECONDS):
        while True:
            if await in_postgres(standby, has_it, position):
                return
            await asyncio.sleep(0.05)


async def test_url_with_two_hosts_follows_the_promoted_standby(tmp_path: Path) -> None:
    with Postgres(tmp_path / "first") as first, Standby(tmp_path / "second", first) as second:
        hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        records = PostgresRecords(url, password=first.password)
        await records.commit([Put("before", b"1")])
        await caught_up(second, first)
        first.kill()
        assert await in_postgres(second, "SELECT pg_promote()")
        await written(records, Put("after", b"2"))
        found = await records.get_many(["before", "after"])
        assert {key: record.value for key, record in found.items()} == {"before": b"1", "after": b"2"}
        await records.close()
