"""What a real Valkey or PostgreSQL says about whether it keeps responses, at the start and while servers run."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import asyncpg
import pytest
from redis import Redis

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.durability_check import DurabilityCheck, VolatileStore
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.redis import RedisRecords
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.conversations import assistant, response
from tests.support.cluster import OneNode
from tests.support.postgres import Postgres
from tests.support.valkey import PATIENCE, Valkey


def full_at_100_mb(policy: str) -> list[str]:
    return ["--maxmemory", "100mb", "--maxmemory-policy", policy]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ([], set()),
        (full_at_100_mb("noeviction"), set()),
        # Only keys that expire are evicted; records do not.
        (full_at_100_mb("volatile-lru"), set()),
        (["--maxmemory-policy", "allkeys-lru"], set()),
        (full_at_100_mb("allkeys-lru"), {"eviction"}),
        (full_at_100_mb("allkeys-random"), {"eviction"}),
        (["--appendonly", "no"], {"restart"}),
        # A snapshot loses what was committed after it.
        (["--appendonly", "no", "--save", "60 1"], {"restart"}),
        (["--appendonly", "no", *full_at_100_mb("allkeys-lfu")], {"restart", "eviction"}),
    ],
)
async def test_server_says_how_it_may_lose_responses(tmp_path: Path, options: list[str], kinds: set[str]) -> None:
    with Valkey(tmp_path / "server", *options) as server:
        records = RedisRecords(f"{server.url}?{PATIENCE}")
        losses = await records.losses()
        assert losses is not None
        assert set(losses) == kinds
        check = DurabilityCheck(records, False, DEFAULT)
        if kinds:
            with pytest.raises(VolatileStore, match=r"or accept it with 'store\.volatile: true'"):
                await check.refuse()
            await DurabilityCheck(records, True, DEFAULT).refuse()
        else:
            await check.refuse()
        await records.close()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ([], set()),
        (["fsync=off"], {"fsync"}),
        (["full_page_writes=off", "synchronous_commit=off"], {"full_page_writes", "synchronous_commit"}),
        # These wait for the disk of the primary.
        (["synchronous_commit=local"], set()),
    ],
)
async def test_postgres_says_how_it_may_lose_responses(tmp_path: Path, options: list[str], kinds: set[str]) -> None:
    with Postgres(tmp_path / "server", *options) as server:
        records = PostgresRecords(server.url)
        assert set(await records.losses()) == kinds
        check = DurabilityCheck(records, False, DEFAULT)
        if kinds:
            with pytest.raises(VolatileStore, match=r"set '\w+ = on'.*or accept it with 'store\.volatile: true'"):
                await check.refuse()
            await DurabilityCheck(records, True, DEFAULT).refuse()
        else:
            await check.refuse()
        await records.close()


async def test_commits_that_do_not_wait_are_noticed_for_one_user(tmp_path: Path) -> None:
    with Postgres(tmp_path / "server") as server:
        admin = await asyncpg.connect(server.url)
        await admin.execute("ALTER ROLE postgres SET synchronous_commit = off")
        await admin.close()
        records = PostgresRecords(server.url)
        assert set(await records.losses()) == {"synchronous_commit"}
        await records.close()


async def test_settings_that_change_while_a_server_runs_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Valkey(tmp_path / "server") as server, Redis.from_url(f"{server.url}?{PATIENCE}") as admin:
        records = RedisRecords(f"{server.url}?{PATIENCE}")
        check = DurabilityCheck(records, False, DEFAULT)
        await check.refuse()
        admin.config_set("appendonly", "no")
        for _ in range(2):
            await check.check()
        refused = [check.refused]
        assert caplog.text.count("may lose responses, this server is not ready: it forgets responses") == 1
        admin.config_set("appendonly", "yes")
        await check.check()
        assert [*refused, check.refused] == [True, False]
        await records.close()


async def test_user_without_the_permission_for_info_leaves_it_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Valkey(tmp_path / "server") as server, Redis.from_url(f"{server.url}?{PATIENCE}") as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">x", "~*", "&*", "+@all", "-info")
        records = RedisRecords(f"{server.url.replace('127', 'app:x@127')}?{PATIENCE}")
        check = DurabilityCheck(records, False, DEFAULT)
        await check.refuse()
        assert (check.known, check.refused) == (False, False)
        assert "permit its user INFO" in caplog.text
        await records.close()


async def test_redis_says_what_is_left_of_its_memory(tmp_path: Path) -> None:
    with Valkey(tmp_path / "server") as server, Redis.from_url(f"{server.url}?{PATIENCE}") as admin:
        records = RedisRecords(f"{server.url}?{PATIENCE}")
        assert await records.free() is None
        admin.config_set("maxmemory", "64mb")
        left = await records.free()
        assert left is not None
        assert 32 * 2**20 < left < 64 * 2**20
        admin.config_set("maxmemory", "100kb")
        assert await records.free() == 0
        await records.close()


async def test_sqlite_says_what_is_left_of_its_disk(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "records.db")
    assert 0 < await records.free() <= shutil.disk_usage(tmp_path).total
    await records.close()


async def test_store_without_such_settings_is_not_refused() -> None:
    check = DurabilityCheck(MemoryRecords(), False, DEFAULT)
    await check.refuse()
    assert (check.known, check.volatile) == (True, False)


@pytest.mark.extended
@pytest.mark.parametrize("in_cluster", [False, True])
async def test_responses_are_deleted_and_expire_on_full_server(tmp_path: Path, in_cluster: bool) -> None:
    """Redis refuses what takes memory, except in a script that has deleted something before."""
    kind = OneNode if in_cluster else Valkey
    with kind(tmp_path / "server", "--maxmemory", "16mb", "--maxmemory-policy", "noeviction") as server:
        records = RedisRecords(f"{server.url}?{PATIENCE}", partition=0 if in_cluster else None)
        archive = Archive(records)
        stored: list[str] = []

        async def fill() -> None:
            while True:
                created = response(assistant(random.Random(len(stored)).randbytes(200_000).hex()))
                await archive.save(created, owner=Owner("ada"), base=None, input_items=[])
                stored.append(created["id"])

        with pytest.raises(ApiError, match="memory"):
            await fill()
        with Redis.from_url(f"{server.url}?{PATIENCE}") as admin:
            admin.config_set("maxmemory", "1mb")
            assert await archive.delete(stored[0])
            while await archive.sweep(Archive(records, retention=0.0).horizon(await records.now() + 60)):
                pass
            assert [key for key, _ in await records.range("r/", "r0", limit=100)] == []
        await records.close()
