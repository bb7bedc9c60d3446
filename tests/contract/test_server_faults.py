"""Servers that die and come back while commits are on their way: each is made once, none that was answered is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.records import Conflict, Put, Records, VersionIs
from llama_stack_responses.store.redis import RedisRecords
from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

KINDS: Final[dict[str, tuple[Callable[[Path], DatabaseServer], Callable[[str], Records]]]] = {
    "redis": (lambda folder: Valkey(folder, password="secret"), lambda url: RedisRecords(url, connections=4)),
    "postgres": (Postgres, lambda url: PostgresRecords(url, connections=4)),
}
HASTY: Final[dict[str, Callable[..., Records]]] = {"redis": RedisRecords, "postgres": PostgresRecords}
WRITERS: Final = 8


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[DatabaseServer]:
    with KINDS[kind][0](tmp_path / "server") as running:
        yield running


@pytest.fixture
async def records(kind: str, server: DatabaseServer) -> AsyncIterator[Records]:
    opened = KINDS[kind][1](server.url)
    yield opened
    await opened.close()


async def count_up(records: Records, key: str, made: dict[str, int], done: asyncio.Event) -> None:
    """Puts `key` again and again, each time only if nobody else has."""
    while not done.is_set():
        try:
            await records.commit([Put(key, b"x" * 500)], [VersionIs(key, made[key] or None)])
        except ApiError:
            # On a busy machine the server may be away for longer than a call waits. Then it is made or not.
            made[key] += await was_made(records, key, made[key])
        else:
            made[key] += 1


async def was_made(records: Records, key: str, before: int) -> bool:
    """Whether the commit that followed version `before` was made, as soon as the server can say."""
    while True:
        with suppress(ApiError):
            found = (await records.get_many([key])).get(key)
            version = found.version if found else 0
            assert version in (before, before + 1)
            return version > before


def goes_on(made: dict[str, int], before: int) -> bool:
    return sum(made.values()) > before


async def test_commits_go_on_over_deaths_of_the_server_each_made_once(records: Records, server: DatabaseServer) -> None:
    await records.commit([Put("first", b"")])
    chance, done = random.Random(1), asyncio.Event()
    made = {f"k/{number}": 0 for number in range(WRITERS)}
    async with asyncio.TaskGroup() as writers:
        for key in made:
            writers.create_task(count_up(records, key, made, done))
        for _ in range(3):
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            server.kill()
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(wait_until, partial(goes_on, made, sum(made.values())), 30)
        done.set()
    assert min(made.values()) > 0
    assert {key: record.version for key, record in (await records.get_many([*made])).items()} == made


async def test_a_server_that_stays_away_is_a_503_that_says_when_to_come_back(
    records: Records, server: DatabaseServer
) -> None:
    await records.commit([Put("a", b"1")])
    server.kill()
    for call in (records.get_many(["a"]), records.range("a", "b", limit=1), records.commit([Put("a", b"2")])):
        with pytest.raises(ApiError) as error:
            await call
        assert (error.value.status, error.value.retry_after) == (503, 1)
        assert error.value.message == "The response store's server cannot be reached."
    await asyncio.to_thread(server.start)
    assert (await records.get_many(["a"]))["a"].value == b"1"
    with pytest.raises(Conflict):
        await records.commit([Put("a", b"2")], [VersionIs("a", 2)])


async def test_a_server_that_hangs_is_a_503_and_not_waited_for_again_and_again(
    kind: str, server: DatabaseServer
) -> None:
    impatient = HASTY[kind](server.url, timeout=0.5)
    await impatient.commit([Put("a", b"1")])
    server.freeze()
    for call in (impatient.get_many(["a"]), impatient.commit([Put("a", b"2")])):
        with pytest.raises(ApiError) as error:
            await call
        assert (error.value.status, error.value.retry_after) == (503, 1)
        assert error.value.message == "The response store's server does not answer."
    server.thaw()
    assert (await impatient.get_many(["a"]))["a"].value in (b"1", b"2")
    await impatient.close()


async def test_a_wrong_password_is_said_so(kind: str, tmp_path: Path) -> None:
    with KINDS[kind][0](tmp_path / "locked") as server:
        records = KINDS[kind][1](server.url.replace("secret", "sesame"))
        with pytest.raises(ApiError, match="does not accept the password") as error:
            await records.get_many(["a"])
        assert "sesame" not in str(error.value)
        await records.close()
