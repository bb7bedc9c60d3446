"""A PostgreSQL store of layout 1 is changed once, beside its servers, which go on; and rows are found by indexes."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg
import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store import postgres_layout_1
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.postgres_connections import _plan, _sql
from llama_stack_responses.store.postgres_layout_1 import LayoutChange
from llama_stack_responses.store.postgres_tables import WAIT_FOR_COMMITS, state_of
from llama_stack_responses.store.records import (
    Condition,
    Conflict,
    Delete,
    Empty,
    Ensure,
    Notify,
    Op,
    Put,
    Record,
    VersionIs,
    committed,
)
from tests.contract.backends import SECONDS, BackendLocation, schema_of
from tests.support.former_postgres import FormerServer
from tests.support.golden_store import GoldenStore, golden_files
from tests.support.waiting import until_found

FORMS: Final = pytest.mark.parametrize("is_early", [False, True], ids=["last", "early"])
BEFORE: Final[list[Op]] = [
    Put("r/1", b"one"),
    Put("r/2", b"two"),
    Put("g/1/a", b""),
    Put("l/1", b"", 4e9),
    Put("z", b"", 1),
]
STEPS: Final = 7
"""Statements of a change that name the store."""


@dataclass
class Store:
    """A store of layout 1."""

    url: str
    schema: str
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)
    watching: asyncpg.Connection | None = None

    async def former(self, *, is_early: bool = False) -> FormerServer:
        """Return a server of it."""
        return FormerServer(await self.connect(), self.schema, is_early)

    async def connect(self) -> asyncpg.Connection:
        """Return a connection for the test."""
        connection = await asyncpg.connect(self.url, timeout=SECONDS)
        self.opened.callback(connection.terminate)
        return connection

    def server(self) -> PostgresRecords:
        """Return a server of this version, which uses its own clock."""
        records = PostgresRecords(self.url, schema=self.schema, timeout=SECONDS)
        self.opened.push_async_callback(records.close)
        return records

    def sql(self, sql: str) -> str:
        """Fill in the schema."""
        return _sql(self.schema, sql)

    def change(self, connect: Callable[[], AbstractAsyncContextManager[Any]] | None = None) -> LayoutChange:
        """Return the change of the store."""
        return LayoutChange(connect or self.connected, self.sql, lambda each: state_of(each, self.sql, 1))

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[asyncpg.Connection]:
        """Yield a connection."""
        connection = await asyncpg.connect(self.url, timeout=SECONDS)
        try:
            yield connection
        finally:
            connection.terminate()

    async def indexes(self) -> dict[str, bool]:
        """Return the indexes of the rows, and whether they are valid."""
        self.watching = self.watching or await self.connect()
        rows = await self.watching.fetch(
            "SELECT indexrelid::regclass::text AS name, indisvalid FROM pg_index "
            "WHERE indrelid = coalesce(to_regclass($1), to_regclass($2))",
            f"{self.schema}.partition_rows",
            f"{self.schema}.records",
        )
        return {name.partition(".")[2]: is_valid for name, is_valid in rows}

    async def is_whole(self) -> bool:
        """Whether the former keys are gone."""
        return await self.indexes() == {"partition_rows_pkey": True, "partition_rows_expiry": True}


@pytest.fixture
async def store(place: BackendLocation, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(postgres_layout_1, "_BEGUN_SECONDS", 0.0)
    made = Store(place.url_of("postgres"), schema_of(place))
    async with made.opened:
        former = await made.former()
        await former.make()
        await former.commit(BEFORE)
        await former.commit([Put("r/1", b"uno")])
        yield made


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a change try often, and calls wait for a moment only."""
    monkeypatch.setattr(postgres_layout_1, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(postgres_layout_1, "_CALL_SECONDS", 0.1)


async def everything(records: PostgresRecords) -> dict[str, Record]:
    return dict(await records.range("!", "~", limit=10_000))


async def answers(records: PostgresRecords) -> bool:
    """Whether the store answers a call; what refuses it meanwhile says why, and when to come again."""
    try:
        await records.get_many(["r/1"])
    except ApiError as error:
        if "being changed to the layout of this version" not in error.message or error.retry_after != 5:
            raise
        return False
    return True


async def test_rows_of_layout_1_are_read_with_their_versions_and_ends(store: Store) -> None:
    records = store.server()
    assert await everything(records) == {
        "r/1": Record(b"uno", 2),
        "r/2": Record(b"two", 1),
        "g/1/a": Record(b"", 1),
        "l/1": Record(b"", 1),
    }
    rows = [row async for batch in records.snapshot() for row in batch]
    assert Put("l/1", b"", 4e9) in rows
    assert await records.sweep(2.0) == 1
    await until_found(store.is_whole)


async def test_golden_store_is_changed_without_loss(place: BackendLocation) -> None:
    for path in golden_files("postgres-layout-1.json.xz"):
        schema = schema_of(place)
        dump = "".join(
            line
            for line in GoldenStore.read(path).dump.replace("responses.", f"{schema}.").splitlines(keepends=True)
            if not line.startswith("\\")
        ).replace("SCHEMA responses", f"SCHEMA {schema}")
        store = Store(place.url_of("postgres"), schema)
        async with store.opened:
            await (await store.connect()).execute(dump)
            former = await store.former(is_early=True)
            rows = await former.connection.fetch(f"SELECT key, version, value FROM {schema}.records")
            assert len(rows) > 100
            records = store.server()
            found = {row.key: row.value async for batch in records.snapshot() for row in batch}
            live = {key.decode(): value for key, _, value in rows if key.decode() in found}
            assert found == live
            assert {key: record.value for key, record in (await everything(records)).items()} == found
            await until_found(store.is_whole)


@pytest.mark.relatives
@FORMS
async def test_servers_of_layout_1_go_on_after_the_change(store: Store, is_early: bool) -> None:
    former, records = await store.former(is_early=is_early), store.server()
    assert await former.keys("r/", "r0") == ["r/1", "r/2"]
    await records.commit([Put("r/3", b"three")])
    await until_found(store.is_whole)
    assert await former.may_start()
    assert await former.keys("r/", "r0") == ["r/1", "r/2", "r/3"]
    assert await former.keys("r/", "r0", limit=1) == ["r/1"]
    assert await former.all_keys() == ["g/1/a", "l/1", "r/1", "r/2", "r/3"]
    await former.commit([Put("r/3", b"tres"), Ensure("r/2", b"no"), Ensure("n", b"new"), Delete("g/1/a"), Notify("x")])
    await former.commit([Put("z", b"again")], [VersionIs("r/3", 2), VersionIs("g/1/a", None), Empty("g/1/")])
    with pytest.raises(Conflict) as conflict:
        await former.commit([Put("z", b"never")], [VersionIs("r/3", 2), Empty("r/1"), VersionIs("q", 1)])
    assert conflict.value.failed == (Empty("r/1"), VersionIs("q", 1))
    assert await former.get("r/3", "z", "q") == {"r/3": (b"tres", 2), "z": (b"again", 1)}
    assert await former.get("r/3", "z", max_bytes=1) == {"r/3": (b"tres", 2)}
    many = [Put(f"m/{number}", b"") for number in range(1100)]
    await former.commit(many)
    assert len(await records.range("m/", "m0", limit=2000)) == 1100
    assert (await records.get_many(["r/2", "n"])) == {"r/2": Record(b"two", 1), "n": Record(b"new", 1)}
    await records.commit([Put("e", b"", 5.0)])
    assert await former.sweep(6.0) == 1


async def test_ids_of_commits_of_layout_1_are_known_after_the_change(store: Store) -> None:
    former, records = await store.former(), store.server()
    applied, settled, late = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    await former.commit([Put("r/2", b"once")], commit_id=applied)
    assert await former.settle(settled) is False
    assert (await records.get_many(["r/2"]))["r/2"].version == 2
    await until_found(store.is_whole)
    for each in (applied, settled):
        await former.commit([Put("r/2", b"twice")], commit_id=each)
        await records._sent(each, _arguments(records, [Put("r/2", b"twice")]))
    with pytest.raises(TimeoutError):
        await former.commit([Put("r/2", b"late")], commit_id=late, deadline=1.0)
    assert (await former.settle(applied), await former.settle(late), await records._settle(applied)) == (
        True,
        False,
        True,
    )
    await former.commit([Put("r/2", b"late")], commit_id=late)
    assert (await records.get_many(["r/2"]))["r/2"] == Record(b"once", 2)


def _arguments(records: PostgresRecords, ops: list[Op]) -> tuple[Any, ...]:
    from llama_stack_responses.store.postgres import _columns, _conditions, _ops
    from llama_stack_responses.store.postgres_locks import locks
    from llama_stack_responses.store.records import writes_of

    held = locks(records._lock_names, writes_of(ops), [], 64)
    return (*_columns(records._locks(held), 2), *_conditions([]), *_ops(writes_of(ops)))


async def test_commits_of_both_versions_wait_for_each_other(store: Store) -> None:
    records = store.server()
    await records.get_many(["r/1"])
    former, watching = await store.former(), await store.connect()

    async def waits() -> bool:
        pid = former.connection.get_server_pid()
        blocked = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND $1 = ANY(pg_blocking_pids(pid)))"
        return bool(await watching.fetchval(blocked, pid))

    cases: list[tuple[list[Op], list[Condition], list[Op]]] = [
        ([Put("r/1", b"")], [], [Put("r/1", b"")]),
        ([Put("y", b"")], [VersionIs("n/1", None)], [Put("n/1", b"")]),
        ([Put("k", b"")], [Empty("k/")], [Put("k/2/3", b"")]),
    ]
    for ops, conditions, others in cases:
        async with former.connection.transaction():
            await former.commit(ops, conditions)
            waiting = asyncio.create_task(records.commit(others))
            await until_found(waits)
            assert not waiting.done()
        await waiting


async def test_servers_of_both_versions_change_and_use_a_store_at_the_same_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each acknowledged commit adds one to a version, so none is lost, and none is applied twice."""
    monkeypatch.setattr(postgres_layout_1, "_BEGUN_SECONDS", 1.0)
    stop, made = asyncio.Event(), list[str]()

    async def work(commit: Callable[[list[Op], list[Condition]], Any], name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            await commit([Put("n/all", b""), Put(f"n/{name}/{number}", b"")], [VersionIs(f"n/{name}/{number}", None)])
            made.append(f"n/{name}/{number}")

    formers = [await store.former(is_early=number % 2 > 0) for number in range(4)]
    working = [asyncio.create_task(work(each.commit, f"former-{number}")) for number, each in enumerate(formers)]
    await until_found(lambda: _has(made, 40))
    servers = [store.server() for _ in range(5)]
    for number, each in enumerate(servers):
        working.append(asyncio.create_task(work(each.commit, f"server-{number}")))
    await until_found(store.is_whole)
    there = len(made)
    await until_found(lambda: _has(made, there + 200))
    stop.set()
    await asyncio.gather(*working)
    rows = await servers[0].range("n/", "n0", limit=100_000)
    assert {key for key, _ in rows} == {*made, "n/all"}
    assert dict(rows)["n/all"].version == len(made)
    assert {name.split("/")[1] for name in made} == {
        *(f"former-{n}" for n in range(4)),
        *(f"server-{n}" for n in range(5)),
    }


async def _has(made: Collection[str], number: int) -> bool:
    return len(made) >= number


@pytest.mark.relatives
@FORMS
async def test_commit_that_waits_for_the_change_in_the_former_function_is_applied_once(
    store: Store, is_early: bool
) -> None:
    former, changing, watching = await store.former(is_early=is_early), await store.connect(), await store.connect()
    for statement in (postgres_layout_1._COLUMNS, *postgres_layout_1._BESIDE):
        await changing.execute(store.sql(statement))
    ops: list[Op] = [Put("r/1", b"drei"), Ensure("n", b""), Delete("r/2")]
    async with changing.transaction():
        await changing.execute(store.sql(WAIT_FOR_COMMITS))
        waiting = asyncio.create_task(former.commit(ops, [VersionIs("r/1", 2)]))
        await until_found(lambda: watching.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        await changing.execute(store.sql(postgres_layout_1._CHANGE + postgres_layout_1._NEW_FUNCTIONS))
    await waiting
    records = store.server()
    assert await records.get_many(["r/1", "r/2", "n"]) == {"r/1": Record(b"drei", 3), "n": Record(b"", 1)}
    await until_found(store.is_whole)
    await former.commit([Put("r/1", b"vier")])
    assert (await records.get_many(["r/1"]))["r/1"] == Record(b"vier", 4)


def dying(store: Store, statements: int) -> LayoutChange:
    """Return the change of a server that is killed after so many statements which change something."""
    left = [*range(statements)]

    class Dying(asyncpg.Connection):  # type: ignore[misc]
        async def execute(self, query: str, *more: Any, **settings: Any) -> str:
            if store.schema in query:
                if not left:
                    self.terminate()
                    raise asyncpg.ConnectionDoesNotExistError
                left.pop()
            answer: str = await super().execute(query, *more, **settings)
            return answer

    @asynccontextmanager
    async def connected() -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(store.url, timeout=SECONDS, connection_class=Dying)
        try:
            yield connection
        finally:
            connection.terminate()

    return store.change(connected)


@pytest.mark.relatives
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("statements", range(STEPS))
async def test_change_of_a_killed_server_is_made_again(
    store: Store, statements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_layout_1, "_CALL_SECONDS", SECONDS)
    with pytest.raises(ApiError, match="cannot be reached"):
        await dying(store, statements).made()
    former = await store.former()
    await former.commit([Put("r/2", b"dos")])
    records = store.server()
    await until_found(lambda: answers(records))
    await until_found(store.is_whole)
    assert (await everything(records))["r/2"] == Record(b"dos", 2)


@pytest.mark.usefixtures("soon")
async def test_change_that_takes_long_answers_meanwhile_and_is_made_by_another_server(store: Store) -> None:
    """The building of the index waits for the snapshots of other transactions."""
    reading, records, other, former = await store.connect(), store.server(), store.server(), await store.former()
    async with reading.transaction(isolation="repeatable_read", readonly=True):
        await reading.execute("SELECT 1")
        assert not await answers(records)
        assert not await answers(other)
        await until_found(lambda: _is_building(store))
        await former.commit([Put("r/4", b"four")])
        await records.close()  # the server ends: another one begins anew
        assert (await store.indexes())["partition_rows_key"] is False
        assert not await answers(other)
        assert await former.get("r/4") == {"r/4": (b"four", 1)}
    await until_found(lambda: answers(other))
    await until_found(store.is_whole)
    assert (await everything(other))["r/4"] == Record(b"four", 1)


async def _is_building(store: Store) -> bool:
    return "partition_rows_key" in await store.indexes()


@pytest.mark.usefixtures("soon")
async def test_change_that_a_backup_holds_up_lets_others_go_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that has read and goes on has a lock on the table, which a change of its columns needs alone."""
    monkeypatch.setattr(postgres_layout_1, "_LOCK_SECONDS", 1)
    reading, former, records = await store.former(), await store.former(), store.server()
    async with reading.connection.transaction():
        await reading.get("r/1")
        assert not await answers(records)
        await former.commit([Put("r/2", b"dos")])
        assert await former.get("r/2") == {"r/2": (b"dos", 2)}
    await until_found(lambda: answers(records))
    await until_found(store.is_whole)


async def test_new_store_is_refused_to_servers_of_layout_1(place: BackendLocation) -> None:
    store = Store(place.url_of("postgres"), schema_of(place))
    async with store.opened:
        records = store.server()
        await records.commit([Put("r/1", b"one")])
        former = await store.former()
        await former.make()  # as a server does that does not find its function
        assert not await former.may_start()
        again = store.server()
        assert await again.get_many(["r/1"]) == {"r/1": Record(b"one", 1)}


async def test_store_of_a_newer_version_is_refused_and_left_alone(store: Store) -> None:
    connection = await store.connect()
    await connection.execute(f"UPDATE {store.schema}.layout SET version = 3")
    with pytest.raises(ApiError, match="written by a newer version of this software") as refused:
        await store.server().get_many(["r/1"])
    assert refused.value.status == 503
    assert not await _is_building(store)


# Plans


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["new", "analyzed"])
async def test_rows_are_found_by_indexes(place: BackendLocation, is_analyzed: bool) -> None:
    """Without statistics and with them: no call reads a whole table, or sorts rows."""
    store = Store(place.url_of("postgres"), schema_of(place))
    async with store.opened:
        records, plans = store.server(), list[str]()
        for number in range(20):
            await records.commit([Put(f"r/{number}/{each}", b"value", 1 + each % 3) for each in range(200)])
        await records.search_index().prepare()
        connection = await store.connect()
        if is_analyzed:
            await connection.execute(f"ANALYZE {store.schema}.partition_rows")
        await _plan(connection)
        await connection.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; "
            "SET client_min_messages = log"
        )
        connection.add_log_listener(lambda _, message: plans.append(message.message))
        await _call_all(records, connection)
        whole = "\n".join(plans)
        assert set(re.findall(r"(?:(\w+) )?Scan (?:\w+ )?(?:using \w+ )?on partition_\w+", whole)) <= {"Index", "Only"}
        scans = re.findall(r"Scan (?:Backward )?using (partition_\w+) on [^\n]*\n +Index Cond: ([^\n]*)", whole)
        assert len(scans) == whole.count("Scan using partition_") + whole.count("Scan Backward using partition_")
        assert len(scans) > 15
        assert [scan for scan in scans if not re.search(r"\b(key|id|expires_at|made_at)\b", scan[1])] == []
        assert [scan for scan in scans if "partition = " not in scan[1]] == []
        assert not re.search(r"Sort Key: (partition_rows\.)?key\b", whole)


async def _call_all(records: PostgresRecords, connection: asyncpg.Connection) -> None:
    async def pool() -> asyncpg.Connection:
        return connection

    index = records.search_index()
    records._connections.pool = pool  # type: ignore[method-assign]
    records._clock = lambda: 0.5
    for max_bytes in (None, 8):
        await records.get_many(["r/1/1", "r/2/2", "none"], max_bytes=max_bytes)
        for reverse in (False, True):
            await records.range("r/1/", "r/3/", limit=20, max_bytes=max_bytes, reverse=reverse)
    conditions: list[Condition] = [
        VersionIs("r/1/1", 1),
        VersionIs("none", None),
        Empty("none/"),
        Empty("r/1/1", "r/1/1"),
    ]
    writes: list[Op] = [Put("r/1/1", b""), Ensure("r/1/2", b""), Delete("r/1/3"), Put("l/1", b"")]
    assert await committed(records, writes, conditions[:3])
    assert not await committed(records, writes, conditions)
    await records._settle(uuid.uuid4())
    assert await records.sweep(2.5) == 1000
    assert await index.prepare() is True
    await index.noted("l/", "l0", limit=10, reverse=False)
