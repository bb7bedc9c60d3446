"""Rows in which the store does not answer for a while: its server is killed, hangs, or drops its connections."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import asyncpg
from redis import Redis

from benchmarks.trial.load import Load
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.site import Site, Trial, running
from tests.support.database import DatabaseServer
from tests.support.stack import LiveStack
from tests.support.stores import serving
from tests.support.valkey import PATIENCE
from tests.support.waiting import wait_until

_OF_CLIENTS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


def stopped_store(trial: Trial) -> Outcome:
    """Kill the store's server, and start it again."""
    seconds = 5 if trial.short else 20

    def trouble(site: Site[LiveStack]) -> None:
        assert site.database
        site.database.kill()
        _until_noticed(site)
        time.sleep(seconds)
        site.database.start()

    return _outage(trial, f"killed, started after {seconds} s", trouble)


def paused_store(trial: Trial) -> Outcome:
    """Freeze the store's server, or hold the lock of SQLite's file."""
    seconds = 12 if trial.short else 30

    def trouble(site: Site[LiveStack]) -> None:
        with _frozen(site.database) if site.database else _locked(trial.folder / "store" / "responses.db"):
            if site.database:
                _until_noticed(site)
            time.sleep(seconds)

    return _outage(trial, f"{'frozen' if trial.store != 'sqlite' else 'file locked'} for {seconds} s", trouble)


def cut_connections(trial: Trial) -> Outcome:
    """Close all connections of the store, again and again."""
    times = 5 if trial.short else 20

    def trouble(site: Site[LiveStack]) -> None:
        assert site.database
        for _ in range(times):
            _cut(trial.store, site.database)
            time.sleep(1)

    return _outage(trial, f"all connections closed {times} times", trouble)


def _outage(trial: Trial, what: str, trouble: Callable[[Site[LiveStack]], None]) -> Outcome:
    with serving(trial.store, trial.folder / "store") as database, running(trial, database, LiveStack) as site:
        load = Load(site.address)
        with load.working():
            time.sleep(2)
            trouble(site)
            trial.say(f"over, after {len(load.sent)} requests")
            ready = site.until_ready()
            time.sleep(2)
        outcome = site.outcome(what, load)
    outcome.ready_seconds = ready
    outcome.judge()
    return outcome


def _until_noticed(site: Site[LiveStack]) -> None:
    """Wait until a server says that it is not ready."""
    wait_until(lambda: site.report()["status"] == "not_ready")


@contextmanager
def _frozen(database: DatabaseServer) -> Iterator[None]:
    database.freeze()
    try:
        yield
    finally:
        database.thaw()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a write lock on SQLite's file."""
    with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def _cut(store: str, database: DatabaseServer) -> None:
    if store == "redis":
        with Redis.from_url(f"{database.url}?{PATIENCE}") as admin:
            for kind in ("normal", "pubsub"):
                admin.client_kill_filter(_type=kind, skipme=True)
        return
    asyncio.run(_terminate(database.url))


async def _terminate(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_OF_CLIENTS)
    finally:
        await connection.close()
