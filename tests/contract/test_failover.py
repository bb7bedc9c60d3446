"""A store with a standby: when the primary dies, servers go on with the standby."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from redis import Redis

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.records import Notify, Put, Records
from llama_stack_responses.store.redis import RedisRecords
from tests.support.certificates import Certificates, contexts_noted
from tests.support.postgres import Postgres, Standby
from tests.support.relay import Relay
from tests.support.sentinel import Sentinel
from tests.support.valkey import Valkey
from tests.support.waiting import LOOP_SECONDS, SECONDS, wait_until

PASSWORD: Final = "sesame"
OF_SENTINEL: Final = "watch"
TRIES: Final = 9
"""How often a call asks for the primary, within about three seconds, before it fails."""


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


async def test_subscription_on_a_primary_that_hangs_ends_once_sentinels_have_named_another_one(tmp_path: Path) -> None:
    with (
        Valkey(tmp_path / "first") as first,
        Valkey(tmp_path / "second", "--replicaof", "127.0.0.1", str(first.port)) as second,
        Sentinel(tmp_path / "sentinel", first) as sentinel,
    ):
        # In these seconds, silence alone tells nothing.
        records = RedisRecords(sentinel.url, timeout=1.0, pubsub_silence=10 * SECONDS)
        await written(records, Put("before", b"1"))
        wait_until(lambda: has_caught_up(second, "responses:"))
        async with records.pubsub() as pubsub:
            waits = asyncio.ensure_future(pubsub.receive())
            await asyncio.sleep(0)
            assert not waits.done()
            first.freeze()
            await written(records, Put("after", b"2"))
            with pytest.raises(ApiError, match="does not answer"):
                await asyncio.wait_for(waits, LOOP_SECONDS)
        first.thaw()
        await records.close()


@dataclass(frozen=True)
class WatchedPair:
    """A primary and a replica with a password, behind relays that speak TLS, and the Sentinel that watches them."""

    first: Valkey
    second: Valkey
    before_sentinel: Relay
    url: str


@contextmanager
def watched_with_tls(folder: Path) -> Iterator[WatchedPair]:
    """Run a pair under Sentinel; servers and Sentinel know each other by the ports of the relays."""
    certificates = Certificates.create_in(folder / "certificates")
    tls = certificates.of_server()
    with (
        Valkey(folder / "first", "--masterauth", PASSWORD, password=PASSWORD) as first,
        Valkey(folder / "second", "--masterauth", PASSWORD, password=PASSWORD) as second,
        Relay(first.port, tls, plain_too=True) as before_first,
        Relay(second.port, tls, plain_too=True) as before_second,
    ):
        with Redis.from_url(second.url) as admin:
            admin.config_set("replica-announce-ip", "127.0.0.1")
            admin.config_set("replica-announce-port", before_second.port)
            admin.replicaof("127.0.0.1", before_first.port)
        watching = Sentinel(folder / "sentinel", first, watched=before_first.port, password=OF_SENTINEL)
        with watching as sentinel, Relay(sentinel.port, tls) as before_sentinel:
            trusted = certificates.path("ca.pem")
            url = f"rediss+sentinel://127.0.0.1:{before_sentinel.port}/responses/0?ssl_ca_certs={trusted}"
            yield WatchedPair(first, second, before_sentinel, url)


async def test_server_behind_sentinels_with_tls_and_passwords_follows_the_promoted_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts of connections, also of those to the Sentinel, are not made in the event loop."""
    threads = contexts_noted(monkeypatch)
    with watched_with_tls(tmp_path) as pair:
        records = RedisRecords(pair.url, password=PASSWORD, sentinel_password=OF_SENTINEL)
        await records.commit([Put("before", b"1")])
        wait_until(lambda: has_caught_up(pair.second, "responses:"))
        pair.first.kill()
        await written(records, Put("after", b"2"))
        found = await records.get_many(["before", "after"])
        assert {key: record.value for key, record in found.items()} == {"before": b"1", "after": b"2"}
        await records.close()
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.relatives
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("authority", "present a certificate that is not trusted"),
        ("password", "server does not accept the password"),
        ("password of the Sentinel", "Sentinels do not accept the password, or require one: set 'sentinel_password'"),
        ("no password of the Sentinel", "Sentinels do not accept the password, or require one"),
        ("service", "Sentinels cannot be reached.* or know no primary"),
    ],
)
async def test_refusal_behind_sentinels_is_503_with_its_reason(tmp_path: Path, wrong: str, reason: str) -> None:
    with watched_with_tls(tmp_path) as pair:
        url = pair.url.partition("?")[0] if wrong == "authority" else pair.url
        password = "other" if wrong == "password" else PASSWORD
        of_sentinels = {"password of the Sentinel": "other", "no password of the Sentinel": None}
        if wrong == "service":
            url = url.replace("/responses/", "/nothing/")
        records = RedisRecords(url, password=password, sentinel_password=of_sentinels.get(wrong, OF_SENTINEL))
        with pytest.raises(ApiError, match=reason) as error:
            await records.get_many(["a"])
        assert error.value.status == 503
        assert pair.before_sentinel.served <= TRIES
        await records.close()


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
