"""The row in which the store has no room: a full disk for SQLite and PostgreSQL, full memory for Redis."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
from redis import Redis

from benchmarks.trial.load import Load, noise, send
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.site import Site, Trial, running
from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.stack import LiveStack
from tests.support.stores import serving
from tests.support.valkey import PATIENCE

_DISK_MB: Final = {"sqlite": 24, "postgres": 128, "redis": 512}
"""Size of the disk; PostgreSQL's empty database and log take about 90 MB."""
_SHORT_MB: Final = 18
"""What is free on PostgreSQL's disk in the short form, once the servers run. A file of its log takes 16 MB of it."""
_MEMORY_MB: Final = 12
"""Memory of a full Redis."""

_POSTGRES: Final = ("min_wal_size=32MB", "max_wal_size=48MB")
_LETTERS: Final = 1_600_000
"""Length of the requests that fill the disk."""
_MOST: Final = 2000
"""Number of such requests, many more than there is room for."""


def full_store(trial: Trial) -> Outcome:
    """Fill the store under load, delete a response, and make room again."""
    folder = trial.folder / "store"
    with (
        _disk(folder, _DISK_MB[trial.store]) as resize,
        _server(trial, folder) as database,
        running(trial, database, LiveStack) as site,
    ):
        if database and trial.store == "redis":
            _limit(database, _MEMORY_MB)
        elif trial.short and trial.store == "postgres":
            _take_room(folder)
        load, filling = Load(site.address), Load(site.address, "filling")
        with load.working():
            _fill(site, filling)
            trial.say(f"full, after {len(filling.sent)} long requests")
            time.sleep(5 if trial.short else 15)
            deleted = _delete(site, filling)
            _make_room(trial, database, resize)
            ready = site.until_ready()
            time.sleep(2)
        if deleted:
            filling.sent = [each for each in filling.sent if each.response_id != deleted]
        outcome = site.outcome("memory is full" if trial.store == "redis" else "disk is full", load, filling)
    outcome.ready_seconds = ready
    outcome.notes.append("DELETE works meanwhile" if deleted else "DELETE fails meanwhile")
    outcome.judge()
    return outcome


@contextmanager
def _disk(folder: Path, megabytes: int) -> Iterator[Callable[[int], None]]:
    """Mount a small disk, which needs the permission to mount; yield a function that sets its size."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=1777", "tmpfs", str(folder))

    def resize(new: int) -> None:
        _run("mount", "-o", f"remount,size={new}m", str(folder))

    try:
        yield resize
    finally:
        _run("umount", "--lazy", str(folder))


def _take_room(folder: Path) -> None:
    """Leave a part of the disk free, which fewer requests fill."""
    with (folder / "other").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - _SHORT_MB * 2**20)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603


@contextmanager
def _server(trial: Trial, folder: Path) -> Iterator[DatabaseServer | None]:
    if trial.store == "postgres":
        with Postgres(folder, *_POSTGRES) as server:
            yield server
        return
    with serving(trial.store, folder) as database:
        yield database


def _limit(database: DatabaseServer, megabytes: int) -> None:
    with Redis.from_url(f"{database.url}?{PATIENCE}") as admin:
        admin.config_set("maxmemory", f"{megabytes}mb")


def _fill(site: Site[LiveStack], filling: Load) -> None:
    """Send long requests until one fails, because there is no room."""
    with httpx.Client(base_url=f"{site.address}/v1", timeout=120, trust_env=False, verify=False) as http:  # noqa: S501
        for number in range(_MOST):
            filling.sent.append(send(http, f"filling {number} {noise(_LETTERS, number)}", "answer"))
            if filling.sent[-1].failure:
                return
    raise RuntimeError("the store was never full")


def _delete(site: Site[LiveStack], filling: Load) -> str | None:
    """Delete the first long response; return its id, or None if that is refused."""
    [first, *_] = [each.response_id for each in filling.sent if each.response_id]
    url = f"{site.address}/v1/responses/{first}"
    answer = httpx.delete(url, timeout=120, trust_env=False, verify=False)  # noqa: S501 (plain HTTP)
    return first if answer.is_success else None


def _make_room(trial: Trial, database: DatabaseServer | None, resize: Callable[[int], None]) -> None:
    if database and trial.store == "redis":
        _limit(database, 1024)
        return
    resize(4 * _DISK_MB[trial.store])
    if database and not database.answers():
        # PostgreSQL stops if it has no room for its log; who makes room starts it again.
        database.kill()
        database.start()
