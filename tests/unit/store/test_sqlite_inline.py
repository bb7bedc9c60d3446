"""Which tasks on an SQLite file run in the event loop, and which in threads."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest

from llama_stack_responses.concurrency.share import Share
from llama_stack_responses.store.records import Conflict, Delete, Ensure, Op, Put, Record, VersionIs, ranges_in
from llama_stack_responses.store.sqlite import SqliteRecords
from llama_stack_responses.store.sqlite_connection import WAL_BYTES, SqliteFile
from llama_stack_responses.store.sqlite_inline import Inline
from llama_stack_responses.store.sqlite_threads import WriteHandler
from llama_stack_responses.store.thread_pool import ThreadPool, ThreadTask, job_of
from tests.support.loop_steps import steps_of_event_loop
from tests.support.loop_walks import walks_of_event_loop
from tests.support.waiting import until

LARGE = b"x" * 200_000


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[SqliteRecords]:
    """Records that never count the disk as slow, as it may seem on a busy machine. Tests of a `InlineHarness` cover that."""
    opened = SqliteRecords(tmp_path / "records.db", busy_timeout=60, slow_seconds=inf)
    yield opened
    await opened.close()


class Clock:
    """Advance by `step` with each reading."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class InlineHarness:
    """An `Inline` with a writer thread. It shows which of them ran a task."""

    def __init__(self, path: Path, path_of_writer: Path) -> None:
        self.clock = Clock()
        self.writer = ThreadPool(
            "records-writer", lambda: WriteHandler(SqliteFile(path_of_writer, "normal", 60)), threads=1, group=8
        )
        self.inline = Inline(SqliteFile(path, "normal", 0), self.writer, self.clock)

    async def commit(self) -> str:
        """Commit something. Return the name of the thread that ran it."""
        job: ThreadTask[sqlite3.Connection] = job_of(lambda _: threading.current_thread().name)
        self.inline.commit(job)
        return str(await job.future)

    def read(self) -> bool:
        """Return whether the event loop ran the read itself."""
        return self.inline.read(lambda connection: connection.execute("SELECT 1").fetchall()) == [(1,)]

    async def close(self) -> None:
        self.inline.close()
        await self.writer.stop()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[InlineHarness]:
    created = InlineHarness(tmp_path / "records.db", tmp_path / "records.db")
    yield created
    await created.close()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("records-")}


@contextmanager
def counted(records: SqliteRecords) -> Iterator[list[str]]:
    """Record the transactions that the loop's connection begins."""
    begun: list[str] = []
    connection = records._inline._file.connection()
    connection.set_trace_callback(lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None)
    yield begun
    connection.set_trace_callback(None)


async def test_small_tasks_use_no_thread(records: SqliteRecords) -> None:
    await records.commit([Put("a", b"1"), Ensure("b", b"2")])
    with pytest.raises(Conflict):
        await records.commit([Delete("a")], [VersionIs("a", 9)])
    assert await records.get_many(["a", "b"]) == {"a": Record(b"1", 1), "b": Record(b"2", 1)}
    assert [key for key, _ in await records.range("a", "z", limit=10)] == ["a", "b"]
    assert not threads()


@pytest.mark.parametrize(
    ("call", "thread"),
    [
        (lambda records: records.commit([Put("a", LARGE)]), "records-writer"),
        (lambda records: records.commit([Delete(f"k/{n}") for n in range(5000)]), "records-writer"),
        (lambda records: records.commit([], [VersionIs(f"k/{n}", None) for n in range(5000)]), "records-writer"),
        (lambda records: records.sweep(0), "records-writer"),
        (lambda records: records.get_many([f"k/{n}" for n in range(100)]), "records-reader"),
        (lambda records: records.range("a", "z", limit=100), "records-reader"),
    ],
    ids=["a large commit", "many writes", "many conditions", "a sweep", "many keys", "a long range"],
)
async def test_large_tasks_run_in_thread(
    records: SqliteRecords, call: Callable[[SqliteRecords], object], thread: str
) -> None:
    await records.commit([Put("a", b"1")])
    await call(records)  # type: ignore[misc]
    assert threads() == {thread}


@pytest.mark.parametrize(
    "ops",
    [[Delete("large")], [Put("large", b"")], [Delete(f"k/{n}") for n in range(100)]],
    ids=["a large value", "a replaced large value", "many values"],
)
async def test_deletion_of_large_values_runs_in_thread(records: SqliteRecords, ops: list[Op]) -> None:
    """SQLite frees a value page by page, so that a deletion takes as long as a write."""
    await records.commit([Put("large", LARGE), *(Put(f"k/{n}", b"x" * 10_000) for n in range(100))])
    await records.close()
    await records.commit([Delete("k/0")])
    assert not threads()
    await records.commit(ops)
    assert threads() == {"records-writer"}


async def test_small_commits_overtake_large_ones_in_turns(tmp_path: Path) -> None:
    writer, order = WriteHandler(SqliteFile(tmp_path / "records.db", "normal", 5.0)), []

    def job(name: str, size: int) -> ThreadTask[sqlite3.Connection]:
        return ThreadTask(lambda _: order.append(name), asyncio.get_running_loop().create_future(), size)

    left = writer.handle([job("large 1", 2**21), job("small 1", 1), job("large 2", 2**21), job("small 2", 1)])
    assert order == ["small 1", "small 2"]
    while left:
        left = writer.handle([*left, *([job("small 3", 1)] if len(order) == 2 else [])])
    assert order[2:] == ["large 1", "small 3", "large 2"]
    writer.close()


@pytest.mark.parametrize("size", [2**20, 2**21], ids=["small", "large"])
async def test_users_take_turns_for_the_writer(tmp_path: Path, size: int) -> None:
    """Small commits share a transaction, up to its size, and large ones have one each."""
    writer, order = WriteHandler(SqliteFile(tmp_path / "records.db", "normal", 5.0)), []

    def job(user: str, number: int, weight: float = 1.0) -> ThreadTask[sqlite3.Connection]:
        future = asyncio.get_running_loop().create_future()
        return ThreadTask(lambda _: order.append(f"{user}{number}"), future, size, share=Share(user, weight))

    left = writer.handle([job("many", number) for number in range(20)])
    already = len(order)
    left = writer.handle(writer.handle([*left, job("one", 0)]))
    assert "one0" in order[already : already + 2]
    left = [*left, *(job("one", number) for number in (1, 2)), *(job("heavy", number, 3.0) for number in range(9))]
    already = len(order)
    while left:
        left = writer.handle(left)
    next_ones = order[already : already + 12]
    assert len([each for each in next_ones if each.startswith("heavy")]) >= 6
    assert {"one1", "one2"} <= set(next_ones)
    for user, commits in {"many": 20, "one": 3, "heavy": 9}.items():
        assert [each for each in order if each.startswith(user)] == [f"{user}{number}" for number in range(commits)]
    writer.close()


async def test_transaction_of_writer_is_bounded_in_bytes(tmp_path: Path) -> None:
    writer = WriteHandler(SqliteFile(tmp_path / "records.db", "normal", 5.0))
    loop = asyncio.get_running_loop()
    jobs: list[ThreadTask[sqlite3.Connection]] = [
        ThreadTask(lambda _: None, loop.create_future(), 2**20) for _ in range(10)
    ]
    assert len(writer.handle(jobs)) == 6
    writer.close()


async def test_large_commits_of_one_turn_are_all_written(records: SqliteRecords) -> None:
    values = {f"k/{n}": b"x" * (2**21 if n % 2 else 10) for n in range(12)}
    await asyncio.gather(*(records.commit([Put(key, value)]) for key, value in values.items()))
    found = await records.get_many(list(values))
    assert {key: record.value for key, record in found.items()} == values


async def test_commits_of_one_loop_iteration_share_transaction(
    records: SqliteRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    await records.commit([Put("first", b"")])
    with counted(records) as begun:
        await asyncio.gather(*(records.commit([Put(f"k/{n}", b"")]) for n in range(20)))
    assert len(begun) == 1
    assert len(await records.range("k/", "k0", limit=30)) == 20
    assert not threads()


async def test_oversized_batch_of_commits_runs_in_thread(records: SqliteRecords) -> None:
    await asyncio.gather(*(records.commit([Put(f"k/{n}", b"x" * 50_000)]) for n in range(10)))
    assert len(await records.range("k/", "k0", limit=30)) == 10
    assert threads() == {"records-writer"}


async def test_commits_with_full_synchronous_run_in_thread(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "records.db", synchronous="full")
    await records.commit([Put("a", b"")])
    assert threads() == {"records-writer"}
    await records.close()


async def test_slow_disk_moves_tasks_to_threads_for_one_second(bench: InlineHarness) -> None:
    assert await bench.commit() == "MainThread"
    bench.clock.step = 0.2
    assert await bench.commit() == "MainThread"
    bench.clock.step = 0.0
    assert await bench.commit() == "records-writer"
    assert not bench.read()
    bench.clock.now += 1.1
    assert bench.read()
    assert await bench.commit() == "MainThread"


async def test_failing_disk_moves_tasks_to_threads_for_one_second(bench: InlineHarness) -> None:
    assert await bench.commit() == "MainThread"
    assert bench.inline.read(lambda connection: connection.execute("SELECT 1 FROM gone").fetchall()) is None
    assert await bench.commit() == "records-writer"
    bench.clock.now += 1.1
    assert await bench.commit() == "MainThread"


async def test_waiting_for_lock_happens_in_thread(bench: InlineHarness, tmp_path: Path) -> None:
    assert await bench.commit() == "MainThread"
    other = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(bench.commit())
    await until(lambda: threads() == {"records-writer"})
    assert bench.read()
    assert not waiting.done()
    other.execute("ROLLBACK")
    other.close()
    assert await waiting == "records-writer"
    assert await bench.commit() == "MainThread"


async def test_connection_in_use_by_other_loop_is_not_waited_for(bench: InlineHarness) -> None:
    assert await bench.commit() == "MainThread"
    reads, ends = threading.Event(), threading.Event()

    def read(connection: sqlite3.Connection) -> list[object]:
        reads.set()
        ends.wait(60)
        return connection.execute("SELECT 1").fetchall()

    other = asyncio.ensure_future(asyncio.to_thread(bench.inline.read, read))
    await asyncio.to_thread(reads.wait, 60)
    assert not bench.read()
    assert await bench.commit() == "records-writer"
    ends.set()
    assert await other == [(1,)]
    assert await bench.commit() == "MainThread"


async def test_two_event_loops_can_use_store_at_once(records: SqliteRecords) -> None:
    async def write(lane: int) -> None:
        for n in range(50):
            key = f"k/{lane}/{n}"
            await records.commit([Put(key, b"")], [VersionIs(key, None)])
            assert key in await records.get_many([key])

    def in_another() -> None:
        asyncio.run(write(1))

    await asyncio.gather(asyncio.to_thread(in_another), write(2))


async def test_waiting_commit_is_applied_on_close(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "records.db")
    waiting = asyncio.ensure_future(records.commit([Put("a", b"")]))
    await asyncio.sleep(0)
    assert not waiting.done()
    await records.close()
    await waiting
    assert await records.get_many(["a"]) == {"a": Record(b"", 1)}
    await records.close()


async def test_ended_event_loop_does_not_block_store(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "records.db")

    async def leave() -> None:
        job = asyncio.ensure_future(records.commit([Put("a", b"")]))
        await asyncio.sleep(0)
        asyncio.get_running_loop().stop()
        await job

    def end_early() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(leave())
        with pytest.raises(RuntimeError, match="stopped before"):
            loop.run_until_complete(task)
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()

    await asyncio.to_thread(end_early)
    await asyncio.wait_for(records.commit([Put("b", b"")]), 60)
    assert "b" in await records.get_many(["a", "b"])
    await records.close()


async def test_loop_ended_during_checkpoint_does_not_block_later_checkpoints(
    bench: InlineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[asyncio.AbstractEventLoop] = []

    def never(_: object) -> asyncio.Future[None]:
        requests.append(asyncio.get_running_loop())
        return requests[-1].create_future()

    monkeypatch.setattr(SqliteFile, "wal_size", lambda _: WAL_BYTES + 1)
    monkeypatch.setattr(bench.writer, "submit", never)
    await asyncio.to_thread(lambda: asyncio.run(bench.commit()))
    await bench.commit()
    await bench.commit()
    assert requests[1:] == [asyncio.get_running_loop()]


async def test_close_leaves_commits_of_other_loops_to_them(bench: InlineHarness) -> None:
    waits, closed = threading.Event(), threading.Event()

    async def commit() -> tuple[str, str]:
        job: ThreadTask[sqlite3.Connection] = job_of(lambda _: threading.current_thread().name)
        bench.inline.commit(job)
        waits.set()
        closed.wait(60)
        return await job.future, threading.current_thread().name

    other = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(commit())))
    await asyncio.to_thread(waits.wait, 60)
    bench.inline.close()
    closed.set()
    committed_in, submitted_in = await other
    assert committed_in == submitted_in


async def test_long_read_of_other_connection_delays_no_commit(records: SqliteRecords, tmp_path: Path) -> None:
    await records.commit([Put("a", b"")])
    other = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM records").fetchall()
    async with asyncio.timeout(30):  # without it, each commit would take the busy timeout
        for n in range(40):
            await records.commit([Put(f"k/{n}", b"x" * 100_000)])
    other.close()
    async with asyncio.timeout(60):
        while (tmp_path / "records.db-wal").stat().st_size > WAL_BYTES:
            await records.commit([Put("b", b"")])
            await asyncio.sleep(0.02)


async def test_continuous_writers_leave_short_wal(records: SqliteRecords, tmp_path: Path) -> None:
    wal, sizes = tmp_path / "records.db-wal", []

    async def write(lane: int) -> None:
        for n in range(400):
            await records.commit([Put(f"k/{lane}/{n}", b"x" * 3000)])
            sizes.append(wal.stat().st_size)

    await asyncio.gather(*map(write, range(8)))
    assert max(sizes) < 5 * WAL_BYTES
    assert len(await records.range("k/", "k0", limit=4000)) == 3200


async def test_failed_checkpoint_is_repeated_when_wal_has_grown(tmp_path: Path) -> None:
    """On a loaded machine, the thread that holds a lock may be delayed for longer than the writer waits."""
    path = tmp_path / "records.db"
    writer = WriteHandler(SqliteFile(path, "normal", 5.0), clock=lambda: 0.0)

    def write(number: int) -> None:
        def call(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO records(key, value, version) VALUES (?, ?, 1)", (str(number), bytes(500_000))
            )

        writer.handle([job_of(call)])

    write(0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM records").fetchall()
    for number in range(1, 11):
        write(number)
    assert (tmp_path / "records.db-wal").stat().st_size > WAL_BYTES
    other.close()
    for number in range(11, 60):
        write(number)
    assert (tmp_path / "records.db-wal").stat().st_size < 3 * WAL_BYTES
    writer.close()


async def test_failed_checkpoint_fails_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteFile, "wal_size", lambda _: WAL_BYTES + 1)
    (tmp_path / "file").write_bytes(b"")
    bench = InlineHarness(tmp_path / "records.db", tmp_path / "file" / "no folder")
    for _ in range(3):
        assert await bench.commit() == "MainThread"
        await bench.writer.stop()  # its attempt to checkpoint the WAL is over
    await bench.close()


async def test_long_wal_is_checkpointed_without_further_commits(records: SqliteRecords, tmp_path: Path) -> None:
    for n in range(45):
        await records.commit([Put(f"k/{n}", b"x" * 100_000)])
    await until(lambda: (tmp_path / "records.db").stat().st_size >= WAL_BYTES // 2)
    assert threads() == {"records-writer"}


async def test_commit_of_many_rows_is_not_measured_in_the_event_loop(records: SqliteRecords) -> None:
    ops = [Put(str(number), b"x") for number in range(5_000)]
    with walks_of_event_loop(1_000) as walks:
        await records.commit(ops)
    assert [name for name in walks if "/store/" in name and "/tests/" not in name] == []
    assert (await records.get_many(["4999"]))["4999"].value == b"x"


async def test_commit_of_many_rows_is_made_in_a_thread(records: SqliteRecords) -> None:
    await records.commit([Put(str(number), b"x") for number in range(100)])
    assert threads() == set()
    await records.commit([Put(str(number), b"x") for number in range(150)])
    assert threads() == {"records-writer"}


async def test_many_ranges_let_other_tasks_go_on(records: SqliteRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    await records.commit([Put(str(number), b"x") for number in range(10, 90)])
    with steps_of_event_loop() as steps:
        monkeypatch.setattr(records, "range", steps.counted(records.range))
        spans = [(str(number), str(number + 1)) for number in range(10, 90)]
        found = await ranges_in(records, 0, spans, limit=9)
    assert [[key for key, _ in rows] for rows in found] == [[start] for start, _ in spans]
    assert threads() == set()
    assert steps.total["range"] == 80
    assert steps.most["range"] <= 16
