"""Specifics of records in an SQLite file: other processes, kills, and disk errors."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store import sqlite, sqlite_connection, sqlite_threads
from llama_stack_responses.store.records import Conflict, Ensure, Put, Record, VersionIs
from llama_stack_responses.store.sqlite import SqliteRecords
from llama_stack_responses.store.thread_pool import ThreadTask
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[SqliteRecords]:
    opened = SqliteRecords(tmp_path / "records.db", busy_timeout=60)
    yield opened
    await opened.close()


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[SqliteRecords]:
    """Records with a short timeout for locks."""
    opened = SqliteRecords(tmp_path / "records.db", busy_timeout=0.2)
    yield opened
    await opened.close()


def python(body: str, *args: object) -> subprocess.Popen[str]:
    """Start another process that runs `body` as a coroutine, with a store at `args[0]` as `records`."""
    program = (
        "import asyncio, resource, sys\n"
        "from llama_stack_responses.core.errors import ApiError\n"
        "from llama_stack_responses.store.records import *\n"
        "from llama_stack_responses.store.sqlite import SqliteRecords\n"
        "async def main():\n"
        "    records = SqliteRecords(sys.argv[1], busy_timeout=60)\n"
        f"{textwrap.indent(textwrap.dedent(body), '    ')}\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock that a writer needs."""
    other = sqlite3.connect(folder / "records.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def finish(process: subprocess.Popen[str]) -> str:
    out, err = await asyncio.to_thread(process.communicate, timeout=120)
    assert process.returncode == 0, err
    return out


async def test_concurrent_increments_of_two_processes_are_not_lost(records: SqliteRecords, tmp_path: Path) -> None:
    body = """
    for _ in range(100):
        while True:
            record = (await records.get_many(["count"])).get("count", Record(b"0", None))
            value = str(int(record.value) + 1).encode()
            try:
                await records.commit([Put("count", value)], [VersionIs("count", record.version)])
            except Conflict:
                continue
            break
    await records.close()
    """
    # The file is new: the processes also race to create it.
    children = [python(body, tmp_path / "records.db") for _ in range(2)]
    for child in children:
        await finish(child)
    assert await records.get_many(["count"]) == {"count": Record(b"200", 200)}


async def test_other_process_closing_file_keeps_wal(records: SqliteRecords, tmp_path: Path) -> None:
    """SQLite would delete the WAL if this process had lost its lock, as it does when any of its handles is closed."""
    await records.commit([Put("a", b"")])
    await records.get_many(["a"])
    await finish(python('await records.commit([Put("b", b"")]); await records.close()', tmp_path / "records.db"))
    await records.commit([Put("c", b"")])
    seen = await finish(python('print(*(await records.get_many(["a", "b", "c"])))', tmp_path / "records.db"))
    assert sorted(seen.split()) == ["a", "b", "c"]


async def test_kill_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    body = """
    async def write(lane):
        for index in range(1_000_000):
            key = f"k/{lane}/{index:07}"
            await records.commit([Put(key, key.encode() * 40), Put(f"last/{lane}", key.encode())])
            print(key, flush=True)
    await asyncio.gather(*map(write, range(4)))
    """
    pauses = random.Random(5)
    for round_ in range(3):
        path = tmp_path / str(round_) / "records.db"
        child = python(body, path)
        assert child.stdout is not None
        child.stdout.readline()
        await asyncio.sleep(pauses.uniform(0, 0.4))
        child.send_signal(signal.SIGKILL)
        output = (await asyncio.to_thread(child.communicate))[0]
        keys = [key for key in output.split("\n")[:-1] if key]
        records = SqliteRecords(path)
        found = await records.get_many(keys)
        assert {key: record.value for key, record in found.items()} == {key: key.encode() * 40 for key in keys}
        for lane in range(4):
            last = await records.range(f"k/{lane}/", f"k/{lane}0", limit=1, reverse=True)
            assert [key.encode() for key, _ in last] == [
                record.value for record in (await records.get_many([f"last/{lane}"])).values()
            ]
        await records.close()


async def test_process_exits_without_close(tmp_path: Path) -> None:
    body = """
    await records.commit([Put("a", b"1")])
    await records.get_many(["a"])
    """
    await asyncio.wait_for(finish(python(body, tmp_path / "records.db")), 60)


async def test_locked_file_is_503_and_recovers(hasty: SqliteRecords, tmp_path: Path) -> None:
    await hasty.commit([Put("a", b"1")])
    with locked(tmp_path):
        begun = time.monotonic()
        calls = (hasty.commit([Put(f"b/{n}", b"")]) for n in range(300))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - begun < 30  # and not a minute, as if each had waited separately
        assert await hasty.get_many(["a"]) == {"a": Record(b"1", 1)}
    for error in results:
        assert isinstance(error, ApiError)
        assert (error.status, error.retry_after) == (503, 1)
        assert "another process" in error.message
    await hasty.commit([Put("a", b"2")])
    assert [key for key, _ in await hasty.range("a", "z", limit=10)] == ["a"]


async def test_full_disk_is_503_and_recovers(tmp_path: Path) -> None:
    body = """
    size = 64 * 1024
    await records.commit([Put("first", b"1")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    for index in range(40):
        try:
            await records.commit([Put(f"k/{index:02}", b"x" * size), Put("last", b"%d" % index)])
        except ApiError as error:
            assert (error.status, error.retry_after) == (503, 1), error
            assert "full" in error.message, error
            break
    assert 0 < index < 39
    results = await asyncio.gather(
        records.commit([Put("big", b"x" * 400_000)]), records.commit([Put("big2", b"x" * 400_000)]),
        return_exceptions=True,
    )
    assert all(isinstance(result, ApiError) for result in results), results
    kept = [key for key, _ in await records.range("!", "~", limit=100)]
    assert kept == ["first", *(f"k/{n:02}" for n in range(index)), "last"], kept
    assert (await records.get_many(["last"]))["last"].value == b"%d" % (index - 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await records.commit([Put("after", b"x" * size)])
    await records.close()
    records = SqliteRecords(sys.argv[1])
    assert len(await records.range("!", "~", limit=100)) == len(kept) + 1
    await records.close()
    """
    await finish(python(body, tmp_path / "records.db"))


async def test_failing_commit_does_not_affect_concurrent_ones(records: SqliteRecords) -> None:
    results = await asyncio.gather(
        records.commit([Put("a", b"1")]),
        records.commit([Put("torn", b""), Put("\ud800", b"")]),
        records.commit([Put("b", b"1")], [VersionIs("torn", 1)]),
        records.commit([Put("c", b"1")], [VersionIs("a", 1)]),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), UnicodeEncodeError, Conflict, type(None)]
    assert [key for key, _ in await records.range("!", "~", limit=9)] == ["a", "c"]


async def test_waiting_commits_share_transaction(
    records: SqliteRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    transaction = sqlite_threads.WriteHandler._transaction

    def counted(writer: sqlite_threads.WriteHandler, jobs: list[ThreadTask[sqlite3.Connection]]) -> bool:
        sizes.append(len(jobs))
        return transaction(writer, jobs)

    monkeypatch.setattr(sqlite_threads.WriteHandler, "_transaction", counted)
    await records.commit([Put("a", b"")])
    with locked(tmp_path):
        waiting = [asyncio.ensure_future(records.commit([Ensure(f"k/{n}", b"")])) for n in range(100)]
        await until(lambda: bool(sizes))
    await asyncio.gather(*waiting)
    assert sum(sizes) == 100
    assert len(sizes) <= 3


async def test_file_that_is_not_database_raises_error(records: SqliteRecords, tmp_path: Path) -> None:
    (tmp_path / "records.db").write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(ApiError, match="damaged or not a database") as error:
        await records.get_many(["a"])
    assert error.value.status == 503
    with pytest.raises(ApiError, match="damaged or not a database"):
        await records.commit([Put("a", b"")])
    (tmp_path / "records.db").unlink()
    await records.commit([Put("a", b"")])
    assert len(await records.get_many(["a"])) == 1


async def test_newer_schema_is_refused(records: SqliteRecords, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "records.db") as newer:
        newer.execute(f"PRAGMA user_version={sqlite_connection.SCHEMA + 1}")
    newer.close()
    with pytest.raises(ApiError, match="newer version"):
        await records.commit([Put("a", b"")])


async def test_folder_that_cannot_be_created_raises_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    records = SqliteRecords(tmp_path / "file" / "records.db")
    with pytest.raises(ApiError, match="cannot be opened: file exists") as error:
        await records.get_many(["a"])
    assert (error.value.status, error.value.retry_after) == (503, 1)
    (tmp_path / "file").unlink()
    await records.commit([Put("a", b"")])
    await records.close()


async def test_files_are_readable_by_owner_only_and_merged_on_close(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "new" / "folder" / "records.db")
    await records.commit([Put("a", b"")])
    for file in (tmp_path / "new" / "folder").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await records.close()
    assert {file.name for file in (tmp_path / "new" / "folder").iterdir()} == {"records.db", "records.db-clock"}


async def test_many_keys_are_listed_in_thread(records: SqliteRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"k{number}" for number in range(100)]
    await records.commit([Put(key, key.encode()) for key in keys])
    threads: set[int] = set()

    def listing(keys: Sequence[str]) -> str:
        threads.add(threading.get_ident())
        return sqlite_threads.key_list(keys)

    monkeypatch.setattr(sqlite, "key_list", listing)
    assert list(await records.get_many([*keys, *keys[:3], "none"])) == keys
    assert threads
    assert threading.get_ident() not in threads


async def test_close_ends_all_threads(records: SqliteRecords) -> None:
    await records.commit([Put("a", b"x" * 1_000_000)])
    await records.range("a", "b", limit=1000)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("records-")]
    await records.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("records-")]


async def test_cancelled_waiting_commit_is_not_applied_and_others_are(records: SqliteRecords, tmp_path: Path) -> None:
    await records.commit([Put("a", b"")])
    with locked(tmp_path):
        calls = [asyncio.ensure_future(records.commit([Put(f"k/{n}", b"")])) for n in range(6)]
        await asyncio.sleep(0.05)
        for call in calls[::2]:
            call.cancel()
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert [result is None for result in results] == [False, True] * 3
    assert [key for key, _ in await records.range("k/", "k0", limit=9)] == ["k/1", "k/3", "k/5"]


def test_event_loop_ending_early_leaves_store_usable(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "records.db")

    async def resume() -> int:
        await asyncio.wait_for(records.commit([Put("c", b"")]), 60)
        await records.close()
        found = await records.get_many(["a", "b", "c"])
        await records.close()
        return len(found)

    async def abandon() -> asyncio.Future[None]:
        call = asyncio.ensure_future(records.commit([Put("b", b"")]))
        await asyncio.sleep(0.05)
        return call

    asyncio.run(records.commit([Put("a", b"")]))
    with locked(tmp_path):
        assert asyncio.run(abandon()).cancelled()
    assert asyncio.run(resume()) == 2


async def test_deletes_shrink_file(records: SqliteRecords, tmp_path: Path) -> None:
    for start in range(0, 2000, 20):
        await records.commit([Put(f"k/{n:05}", b"x" * 4000, 1.0) for n in range(start, start + 20)])
    await records.close()
    full = (tmp_path / "records.db").stat().st_size
    assert full > 8_000_000
    while await records.sweep(2.0):
        pass
    for _ in range(5):
        await records.sweep(2.0)
    await records.close()
    assert (tmp_path / "records.db").stat().st_size < full / 50


async def test_sweep_deletes_bounded_bytes_at_a_time(records: SqliteRecords) -> None:
    """Other commits wait for it."""
    await records.commit([Put(f"k/{n}", b"x" * 2**20, 1.0) for n in range(10)])
    assert await records.sweep(2.0) == 5
    assert await records.sweep(2.0) == 5
    assert await records.sweep(2.0) == 0


async def test_no_statement_scans_whole_table(records: SqliteRecords, tmp_path: Path) -> None:
    await records.commit([])
    connection = sqlite3.connect(tmp_path / "records.db")
    statements = {name: sql for name, sql in vars(sqlite).items() if isinstance(sql, str) and "records" in sql}
    checked = 0
    for name in (
        "_GET",
        "_GET_MANY",
        "_VERSIONS",
        "_RANGE",
        "_RANGE_REVERSE",
        "_EXISTS",
        "_DELETE",
        "_EXPIRED",
        "_SWEEP",
    ):
        sql = statements[name].format(value=sqlite._SMALL_VALUE)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", ("1",) * sql.count("?"))]
        assert not [step for step in plan if step.startswith("SCAN records") or "TEMP B-TREE" in step], (name, plan)
        checked += 1
    connection.close()
    assert checked == 9


@pytest.mark.parametrize("replaced", [False, True])
async def test_file_that_is_moved_or_replaced_while_it_is_open_is_503_until_it_is_back(
    replaced: bool, records: SqliteRecords, tmp_path: Path
) -> None:
    """The system keeps a deleted file until it is closed, and all that is written to it would be lost."""
    file, moved = tmp_path / "records.db", tmp_path / "moved.db"
    await records.commit([Put("a", b"kept")])
    file.rename(moved)
    if replaced:
        file.write_bytes(moved.read_bytes())
    for _ in range(2):
        with pytest.raises(ApiError, match="moved, deleted or replaced while it was open") as error:
            await records.commit([Put("b", b"lost")])
        assert (error.value.status, error.value.retry_after) == (503, 1)
        with pytest.raises(ApiError, match="moved, deleted or replaced"):
            await records.get_many(["a"])
        with pytest.raises(ApiError, match="moved, deleted or replaced"):
            await records.range("!", "~", limit=1000)
    assert file.exists() == replaced
    moved.replace(file)
    await records.commit([Put("c", b"")])
    assert [key for key, _ in await records.range("!", "~", limit=9)] == ["a", "c"]


async def test_store_whose_rows_nobody_searches_has_no_thread_for_searches(records: SqliteRecords) -> None:
    before, index = set(threading.enumerate()), records.search_index()

    def started() -> set[str]:
        return {each.name for each in threading.enumerate() if each not in before}

    await index.drop()
    while not await index.prepare():
        pass
    assert await index.claim(10) == []
    assert "records-search" not in started()
    await index.progress()
    assert "records-search" in started()
