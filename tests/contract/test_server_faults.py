"""Servers that die and restart during commits: each commit is applied once, and none that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import OutOfMemoryError

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.jobs.notification_listener import NotificationListener
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.records import Conflict, NoRoom, Notify, PubSub, Put, Records, Unanswered, VersionIs
from llama_stack_responses.store.redis import RedisRecords
from tests.contract.backends import SECONDS
from tests.contract.test_lost_answers import Server, done, stored
from tests.support.clock import LoopClock
from tests.support.cluster import OneNode
from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.records import WatchedRecords
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

KINDS: Final[dict[str, tuple[Callable[[Path], DatabaseServer], Callable[[str], Records]]]] = {
    "redis": (
        lambda folder: Valkey(folder, password="secret"),
        lambda url: RedisRecords(url, connections=4, timeout=SECONDS),
    ),
    "cluster": (
        lambda folder: OneNode(folder, password="secret"),
        lambda url: RedisRecords(url, connections=4, timeout=SECONDS, partition=0),
    ),
    "postgres": (Postgres, lambda url: PostgresRecords(url, connections=4, timeout=SECONDS)),
}
PARAMETERS: Final = [pytest.param(kind, marks=[] if kind == "redis" else [pytest.mark.extended]) for kind in KINDS]
HASTY: Final[dict[str, Callable[..., Records]]] = {
    "redis": RedisRecords,
    "cluster": partial(RedisRecords, partition=0),
    "postgres": PostgresRecords,
}
WRITERS: Final = 8


@pytest.fixture(params=PARAMETERS)
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


async def count_up(records: Records, key: str, committed: dict[str, int], done: asyncio.Event) -> None:
    """Put `key` repeatedly, each time only if its version is unchanged."""
    while not done.is_set():
        try:
            await records.commit([Put(key, b"x" * 500)], [VersionIs(key, committed[key] or None)])
        except ApiError:
            # On a busy machine the server may be away for longer than a call waits. Then the outcome is unknown.
            committed[key] += await is_committed(records, key, committed[key])
        else:
            committed[key] += 1


async def is_committed(records: Records, key: str, before: int) -> bool:
    """Return whether the commit after version `before` was applied, as soon as the server answers."""
    while True:
        with suppress(ApiError):
            found = (await records.get_many([key])).get(key)
            version = found.version if found else 0
            assert version in (before, before + 1)
            return version > before


def goes_on(committed: dict[str, int], before: int) -> bool:
    return sum(committed.values()) > before


@pytest.mark.smoke
async def test_commits_continue_over_server_restarts_and_are_applied_once(
    records: Records, server: DatabaseServer
) -> None:
    await records.commit([Put("first", b"")])
    chance, done = random.Random(1), asyncio.Event()
    commits = {f"k/{number}": 0 for number in range(WRITERS)}
    async with asyncio.TaskGroup() as writers:
        for key in commits:
            writers.create_task(count_up(records, key, commits, done))
        for _ in range(3):
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            server.kill()
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(wait_until, partial(goes_on, commits, sum(commits.values())))
        await asyncio.to_thread(wait_until, lambda: min(commits.values()) > 0)
        done.set()
    assert {key: record.version for key, record in (await records.get_many([*commits])).items()} == commits


async def test_unreachable_server_is_503_with_retry_after(records: Records, server: DatabaseServer) -> None:
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


async def test_hanging_server_is_503_without_repeated_waits(
    kind: str, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    impatient = HASTY[kind](server.url, timeout=30.0)
    await impatient.commit([Put("a", b"1")])
    server.freeze()
    calls = (impatient.get_many(["a"]), impatient.commit([Put("a", b"2")]))
    for call in calls:
        waits = asyncio.ensure_future(call)
        await clock.passes_until(waits.done)
        with pytest.raises(ApiError) as error:
            await waits
        assert (error.value.status, error.value.retry_after) == (503, 1)
        assert error.value.message == "The response store's server does not answer."
        # The read failed; the outcome of the commit is unknown.
        assert isinstance(error.value, Unanswered) == (call == calls[1])
    server.thaw()
    assert (await impatient.get_many(["a"]))["a"].value in (b"1", b"2")
    await impatient.close()


async def test_refusal_after_lost_reply_leaves_outcome_unknown(tmp_path: Path) -> None:
    with Valkey(tmp_path / "server") as server:
        records = RedisRecords(server.url)
        await records.commit([Put("a", b"1")])
        commit = records._scripts.commit

        class Refusing:
            """Refuses the next commit, after having applied it or not."""

            def __init__(self, *, applies: bool) -> None:
                self._applies = applies

            async def run(self, client: AsyncRedis, keys: Sequence[str], arguments: Sequence[object]) -> object:
                if self._applies:
                    await commit.run(client, keys, arguments)
                raise OutOfMemoryError

        def refuse(*, applies: bool) -> None:
            records._scripts = records._scripts._replace(commit=Refusing(applies=applies))  # type: ignore[arg-type]

        refuse(applies=True)
        await records.commit([Put("a", b"2")])
        refuse(applies=False)
        with pytest.raises(ApiError) as error:
            await records.commit([Put("a", b"3")])
        assert not isinstance(error.value, Unanswered)
        assert (await records.get_many(["a"]))["a"].value == b"2"
        await records.close()


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([asyncpg.DiskFullError()], NoRoom),
        ([ConnectionRefusedError(), asyncpg.DiskFullError()], NoRoom),
        ([ConnectionResetError(), asyncpg.DiskFullError()], Unanswered),
        ([TimeoutError()], Unanswered),
    ],
)
async def test_postgres_commit_that_may_be_applied_is_unanswered(
    monkeypatch: pytest.MonkeyPatch, answers: list[Exception], kind: type[ApiError]
) -> None:
    records = PostgresRecords("postgresql://missing@127.0.0.1/none")
    left = list(answers)

    class Pool:
        async def fetch(self, *_: object) -> object:
            raise left.pop(0)

    async def pool() -> Pool:
        return Pool()

    monkeypatch.setattr(records._connections, "pool", pool)
    records._connections.deadline.told(0.0)
    with pytest.raises(ApiError) as error:
        await records.commit([Put("a", b"2")])
    assert (type(error.value), left) == (kind, [])


async def test_response_that_hanging_server_stores_late_is_stored(
    kind: str, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LoopClock(monkeypatch)
    hangs: list[bool] = []

    async def hang(name: str) -> None:
        if name == "commit" and not hangs:
            hangs.append(True)
            server.freeze()

    records = HASTY[kind](server.url, timeout=30.0)
    began = Server(records)
    final = done(await began.streamed())
    here = Server(WatchedRecords(records, before=hang))
    here.leases |= began.leases
    keeping = asyncio.create_task(here.keep(final, stored()))
    # The reply counts as lost; the server has received the commit, and makes it once it continues.
    await clock.passes_until(lambda: "outcome of a commit unknown" in caplog.text or keeping.done())
    assert not keeping.done()
    server.thaw()
    await keeping
    found = await here.archive.load(final["id"])
    assert found is not None
    assert (found.response, found.version) == (final, 1)
    await records.close()


async def test_wrong_password_is_reported(kind: str, tmp_path: Path) -> None:
    with KINDS[kind][0](tmp_path / "locked") as server:
        records = KINDS[kind][1](server.url.replace("secret", "sesame"))
        with pytest.raises(ApiError, match="does not accept the password") as error:
            await records.get_many(["a"])
        assert "sesame" not in str(error.value)
        await records.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("MAXMEMORY", "1"), "The response store has no room left: its server is at its memory limit."),
        (("MIN-REPLICAS-TO-WRITE", "1"), "The response store's server refused a command."),
    ],
)
async def test_valkey_refusing_writes_is_reported_with_reason(
    tmp_path: Path, settings: tuple[str, str], sentence: str
) -> None:
    with Valkey(tmp_path / "server") as server:
        records = RedisRecords(server.url)
        await records.commit([Put("a", b"1")])
        with Redis.from_url(server.url) as admin:
            admin.config_set(*settings)
        with pytest.raises(ApiError) as error:
            await records.commit([Put("a", b"2"), Notify("a")])
        assert (error.value.status, error.value.message) == (503, sentence)
        with Redis.from_url(server.url) as admin:
            admin.config_set(settings[0], "0")
        assert (await records.get_many(["a"]))["a"].value == b"1"
        await records.close()


async def test_valkey_replica_is_refused_as_store(tmp_path: Path) -> None:
    with (
        Valkey(tmp_path / "first") as first,
        Valkey(tmp_path / "second", "--replicaof", "127.0.0.1", str(first.port)) as second,
    ):
        records = RedisRecords(second.url)
        with pytest.raises(ApiError, match="is a read-only replica"):
            await records.commit([Put("a", b"1")])
        await records.close()


async def test_subscription_ends_with_its_server_and_works_after_restart(
    kind: str, records: Records, server: DatabaseServer
) -> None:
    there = KINDS[kind][1](server.url)
    async with hearing(there) as pubsub:
        server.kill()
        with pytest.raises(ApiError) as error:
            await pubsub.receive()
        assert error.value.status == 503
    with pytest.raises(ApiError) as error:
        async with hearing(there):
            pass
    assert (error.value.status, error.value.message) == (503, "The response store's server cannot be reached.")
    await asyncio.to_thread(server.start)
    async with hearing(there) as pubsub:
        await records.commit([Notify("a")])
        assert await pubsub.receive() == "a"
    await there.close()


async def test_subscription_on_hanging_server_ends(
    kind: str, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    there = HASTY[kind](server.url, timeout=10.0)
    async with hearing(there) as pubsub:
        server.freeze()
        waits = asyncio.ensure_future(pubsub.receive())
        await clock.passes_until(waits.done)
        with pytest.raises(ApiError, match="does not answer"):
            await waits
        server.thaw()
    await there.close()


async def test_subscription_without_notifications_stays_open(
    kind: str, records: Records, server: DatabaseServer
) -> None:
    there = HASTY[kind](server.url, timeout=SECONDS, pubsub_silence=0.01)
    async with hearing(there) as pubsub:
        waits = asyncio.create_task(pubsub.receive())
        await asyncio.wait([waits], timeout=0.3)
        assert not waits.done()
        await records.commit([Notify("a")])
        assert await waits == "a"
    await there.close()


async def test_notifications_resume_after_server_restart(
    kind: str,
    records: Records,
    server: DatabaseServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Waiters here fall back to polling only after an hour."""
    there, notifier = KINDS[kind][1](server.url), Notifier(fallback_poll=3600.0)
    listening = asyncio.create_task(NotificationListener(there, notifier, Intervals(reconnect_seconds=0.01)).run())
    with notifier.subscribe("a") as subscription:
        async with asyncio.timeout(180):
            assert await subscription.wait(3600)  # it is subscribed from now on
            for _ in range(2):
                await records.commit([Notify("a")])
                assert await subscription.wait(3600)
                server.kill()
                assert await subscription.wait(3600)  # the subscription is lost
                await asyncio.to_thread(server.start)
                assert await subscription.wait(3600)
    listening.cancel()
    await asyncio.wait([listening])
    await there.close()
    texts = [record.message.partition(":")[0] for record in caplog.records if "store notifications" in record.message]
    assert set(texts) == {"store notifications lost, falling back to polling"}


@asynccontextmanager
async def hearing(records: Records) -> AsyncIterator[PubSub]:
    """Yield a connection that is subscribed to "a"."""
    entering = records.pubsub()
    assert entering is not None
    async with asyncio.timeout(60), entering as pubsub:
        await pubsub.subscribe(["a"])
        assert await pubsub.receive() == "a"
        yield pubsub
