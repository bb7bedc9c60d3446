"""The row in which the primary of the store dies, and its standby takes over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import asyncpg
from redis import Redis

from benchmarks.trial.load import Load
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.site import Trial, running
from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres, Standby
from tests.support.sentinel import Sentinel
from tests.support.stack import LiveStack
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary and its standby.

    Attributes:
        environment: the variables that name both in the template.
        what: how they replicate.
    """

    primary: DatabaseServer
    standby: DatabaseServer
    environment: Mapping[str, str]
    what: str


def failover(trial: Trial) -> Outcome:
    """Kill the primary: Sentinel promotes the replica, an operator PostgreSQL's standby."""
    pairs = _redis if trial.store == "redis" else _postgres
    with pairs(trial) as pair, running(trial, pair.primary, LiveStack, pair.environment) as site:
        load = Load(site.address)
        with load.working():
            time.sleep(3 if trial.short else 10)
            pair.primary.kill()
            began = time.monotonic()
            trial.say(f"the primary is killed, after {len(load.sent)} requests")
            if isinstance(pair.standby, Postgres):
                asyncio.run(_promote(pair.standby))
            # The readiness of the moment before is kept for a second.
            time.sleep(2)
            site.until_ready()
            ready = time.monotonic() - began
            time.sleep(3 if trial.short else 10)
        outcome = site.outcome(f"primary killed, {pair.what}", load)
    outcome.ready_seconds = ready
    outcome.judge()
    return outcome


@contextmanager
def _redis(trial: Trial) -> Iterator[Pair]:
    folder = trial.folder
    with (
        Valkey(folder / "first") as first,
        Valkey(folder / "second", "--replicaof", "127.0.0.1", str(first.port)) as second,
        Sentinel(folder / "sentinel", first) as sentinel,
    ):
        # A replica that has copied nothing yet would be promoted too.
        with Redis.from_url(second.url) as replica:
            wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
        yield Pair(first, second, sentinel.environment, "replica promoted by Sentinel")


@contextmanager
def _postgres(trial: Trial) -> Iterator[Pair]:
    folder = trial.folder
    with Postgres(folder / "first") as first, Standby(folder / "second", first) as second:
        # From here on, a commit is acknowledged once the standby has it.
        asyncio.run(_replicate_at_once(first))
        hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        environment = {
            "DATABASE_URL": f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write",
            "DATABASE_PASSWORD": first.password,
        }
        yield Pair(first, second, environment, "synchronous standby promoted")


async def _replicate_at_once(primary: Postgres) -> None:
    connection = await asyncpg.connect(primary.url)
    try:
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


async def _promote(standby: Postgres) -> None:
    connection = await asyncpg.connect(standby.url)
    try:
        assert await connection.fetchval("SELECT pg_promote()")
    finally:
        await connection.close()
