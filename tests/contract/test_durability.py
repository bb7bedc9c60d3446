"""What a real Valkey says about whether it keeps responses, at the start and while servers run."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.durability_check import DurabilityCheck, VolatileStore
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.redis import RedisRecords
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


async def test_store_without_such_settings_is_not_refused() -> None:
    check = DurabilityCheck(MemoryRecords(), False, DEFAULT)
    await check.refuse()
    assert (check.known, check.volatile) == (True, False)
