"""A PostgreSQL store in several partitions: one pool, one connection of notifications, and a fixed number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import asyncpg
import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.features.admin.partitions_view import PartitionsView
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.postgres import PostgresPart, PostgresRecords, postgres_parts
from llama_stack_responses.store.records import Notify, Put, Record, Records, VersionIs
from llama_stack_responses.store.search_index import index_of
from tests.contract.backends import SECONDS, BackendLocation, schema_of
from tests.contract.test_partitions_view import at, fill
from tests.support.former_postgres import FormerServer
from tests.support.waiting import until_found

PARTITIONS: Final = 8

type Open = Callable[..., PartitionedRecords]


@pytest.fixture
async def closing() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
def opened(place: BackendLocation, closing: AsyncExitStack) -> Open:
    """Opens the test's store."""

    def open_parts(partitions: int = PARTITIONS, **more: Any) -> PartitionedRecords:
        url = place.url_of("postgres")
        records = PartitionedRecords(postgres_parts(url, partitions, schema=schema_of(place), timeout=SECONDS, **more))
        closing.push_async_callback(records.close)
        return records

    return open_parts


@pytest.fixture
def whole(place: BackendLocation, closing: AsyncExitStack) -> PostgresRecords:
    """The test's store, opened as one partition."""
    records = PostgresRecords(place.url_of("postgres"), schema=schema_of(place), timeout=SECONDS)
    closing.push_async_callback(records.close)
    return records


@pytest.fixture
async def admin(place: BackendLocation) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(place.url_of("postgres"))
    yield connection
    connection.terminate()


async def refused(records: Records, made: int, wanted: int) -> None:
    with pytest.raises(ApiError) as error:
        await records.get_many(["a"])
    assert (error.value.status, error.value.retry_after) == (503, None)
    assert error.value.message == (
        f"The response store was made with {made} partitions, and its settings have {wanted}: set 'partitions' of the "
        f"store to {made}, or another 'schema_name'."
    )


async def test_store_has_the_number_of_partitions_with_which_it_was_made(opened: Open, whole: PostgresRecords) -> None:
    await opened().commit([Put("a", b"1")])
    await refused(opened(4), PARTITIONS, 4)
    await refused(whole, PARTITIONS, 1)
    assert await opened().get_many(["a"]) == {"a": Record(b"1", 1)}


async def test_store_of_one_partition_stays_one(opened: Open, whole: PostgresRecords) -> None:
    await whole.commit([Put("a", b"1")])
    await refused(opened(), 1, PARTITIONS)
    assert await opened(1).get_many(["a"]) == {"a": Record(b"1", 1)}


async def test_store_of_layout_1_is_one_partition(
    opened: Open, whole: PostgresRecords, admin: asyncpg.Connection, place: BackendLocation
) -> None:
    former = FormerServer(admin, schema_of(place))
    await former.make()
    await former.commit([Put("a", b"1")])
    await refused(opened(), 1, PARTITIONS)
    assert await admin.fetchval(f"SELECT count(*) FROM {schema_of(place)}.commits") == 1
    assert await admin.fetchval("SELECT to_regclass($1)", f"{schema_of(place)}.partition_rows") is None
    assert await whole.get_many(["a"]) == {"a": Record(b"1", 1)}


async def test_servers_that_make_a_store_at_the_same_time_agree_about_its_partitions(opened: Open) -> None:
    stores = [opened(PARTITIONS if number % 2 else 4) for number in range(6)]
    answers = await asyncio.gather(*(each.commit([Put("a", b"")]) for each in stores), return_exceptions=True)
    assert {number % 2 for number, each in enumerate(answers) if each is None} in ({0}, {1})
    assert [str(each) for each in answers if each is not None] != []
    assert all("was made with" in str(each) for each in answers if each is not None)


async def test_rows_are_in_the_partition_of_their_tag(
    opened: Open, admin: asyncpg.Connection, place: BackendLocation
) -> None:
    names = [f"r/{new_id('resp', tag)}" for tag in range(2 * PARTITIONS)]
    records = opened()
    for name in names:
        await records.commit([Put(name, b"")], [VersionIs(name, None)])
    rows = await admin.fetch(f"SELECT key, partition FROM {schema_of(place)}.partition_rows")
    found = {key.decode(): partition for key, partition in rows}
    assert [found[name] for name in names] == [*range(PARTITIONS)] * 2
    assert index_of(records) is None


async def test_partitions_share_their_connections(
    opened: Open, admin: asyncpg.Connection, place: BackendLocation
) -> None:
    """Also those of notifications."""
    records, other = opened(connections=2), opened(connections=2)
    names = [new_id("resp", tag) for tag in range(PARTITIONS)]

    async def connections(like: str) -> int:
        found: int = await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE $1", like)
        return found

    await asyncio.gather(*(records.commit([Put(f"r/{name}", b"")]) for name in names * 4))
    assert 1 <= await connections(f"%{schema_of(place)}%") - 1 <= 2
    listening, entering = await connections("LISTEN%"), records.pubsub()
    assert entering is not None
    async with asyncio.timeout(SECONDS), entering as pubsub:
        await pubsub.subscribe(names)
        assert {await pubsub.receive() for _ in names} == {*names}
        assert await connections("LISTEN%") == listening + 1
        await asyncio.gather(*(other.commit([Put(f"r/{name}", b""), Notify(name)]) for name in names))
        assert {await pubsub.receive() for _ in names} == {*names}
        await pubsub.unsubscribe(names[:4])
        await other.commit([Notify(name) for name in names])
        assert {await pubsub.receive() for _ in names[4:]} == {*names[4:]}


async def test_partitions_do_not_wait_for_each_other(
    opened: Open, admin: asyncpg.Connection, place: BackendLocation
) -> None:
    """One commit that locks its whole partition, with the same keys: they are other ones in another partition."""
    first, second = opened().parts[:2]
    assert isinstance(first, PostgresPart)
    assert isinstance(second, PostgresPart)
    await first.commit([Put("a", b"1")])
    held = opened().parts[0]
    assert isinstance(held, PostgresPart)

    async def pool() -> asyncpg.Connection:
        return admin

    held._connections.pool = pool  # type: ignore[method-assign]
    async with admin.transaction():
        await held.commit([Put(f"k/{number}", b"") for number in range(1100)])
        await second.commit([Put("a", b"2"), Put("k/1", b"2")], [VersionIs("a", None)])
        waiting = asyncio.create_task(first.commit([Put("a", b"3")]))
        await until_found(lambda: admin.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        assert not waiting.done()
    await waiting
    assert await first.get_many(["a", "k/1"]) == {"a": Record(b"3", 2), "k/1": Record(b"", 1)}
    assert await second.get_many(["a", "k/1"]) == {"a": Record(b"2", 1), "k/1": Record(b"2", 1)}


async def test_store_is_looked_for_once_for_all_partitions(opened: Open) -> None:
    """The server has fewer connections than the store has partitions."""
    records = opened(1024)
    assert await records.exists() is False
    await records.commit([Put("a", b"")])
    assert await records.exists() is True
    assert await records.sweep(1.0) == 0


async def test_view_shows_rows_of_each_partition(opened: Open) -> None:
    records = opened()
    await fill(records)
    found, [server] = await PartitionsView(records).read()
    assert at(found, "rows") == [2, 0, 0, 0, 0, 301, 4, 0]
    assert _only(at(found, "bytes")) is _only(at(found, "replicas")) is _only(at(found, "slot")) is None
    assert (found[6]["waiting"], found[6]["held"], found[5]["waiting"]) == (3, 1, 0)
    assert server["server"] == _only(at(found, "primary"))
    assert server["server"].startswith("127.0.0.1:")
    assert (server["partitions"], server["bytes"]) == (PARTITIONS, await records.size())


def _only(values: Sequence[Any]) -> Any:
    [value] = set(values)
    return value
