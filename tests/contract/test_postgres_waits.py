"""Which commits on PostgreSQL wait for an unfinished one, and which do not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import asyncpg
import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.foreground_leases import ForegroundLeases
from llama_stack_responses.jobs.heartbeat import Heartbeat
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.read_allowance import ReadAllowance
from llama_stack_responses.store.records import (
    Condition,
    Conflict,
    Delete,
    Empty,
    Ensure,
    Op,
    Put,
    Records,
    VersionIs,
    committed,
    writes_of,
)
from tests.contract.backends import SECONDS, BackendLocation, Clock
from tests.contract.conversations import CREATED, Json, assistant, new_id, response, user
from tests.contract.model import Model


class OneTransaction(PostgresRecords):
    """Records that run all commits in one transaction, which the test ends, except hints, which block no commit."""

    extra_ops: PostgresRecords

    def use(self, connection: Any) -> None:
        """Run all on this connection."""

        async def pool() -> Any:
            return connection

        self._connections.pool = pool  # type: ignore[method-assign]

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        hints = bool(ops) and all(write.key.startswith(("u/", "z/")) for write in writes_of(ops))
        await (self.extra_ops.commit(ops, conditions) if hints else super().commit(ops, conditions))


@dataclass
class Server:
    """A separate schema on the test run's server."""

    url: str
    schema: str
    clock: Clock

    def open(self) -> PostgresRecords:
        return PostgresRecords(self.url, schema=self.schema, timeout=SECONDS, clock=self.clock)

    @asynccontextmanager
    async def unfinished(self) -> AsyncIterator[OneTransaction]:
        """Yield records whose commits take effect when the block ends, and hold their locks until then."""
        records = OneTransaction(self.url, schema=self.schema, timeout=SECONDS, clock=self.clock)
        connection, records.extra_ops = await asyncpg.connect(self.url), self.open()
        records.use(connection)
        try:
            async with connection.transaction():
                yield records
        finally:
            await connection.close()
            await records.extra_ops.close()

    async def until_one_waits(self) -> None:
        """Wait until a transaction waits for a lock of another."""
        connection = await asyncpg.connect(self.url)
        try:
            async with asyncio.timeout(SECONDS):
                for pause in repeat(0.01):
                    if await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                        return
                    await asyncio.sleep(pause)
        finally:
            await connection.close()


@pytest.fixture
def server(place: BackendLocation, clock: Clock) -> Server:
    return Server(place.url_of("postgres"), f"s{new_id('waits')}".lower(), clock)


@pytest.fixture
async def records(server: Server) -> AsyncIterator[PostgresRecords]:
    opened = server.open()
    yield opened
    await opened.close()


type Commit = tuple[Sequence[Op], Sequence[Condition]]

BEFORE: Commit = ([Put("r/1", b""), Put("g/1/a", b"")], [])
WHOLE: Commit = ([Put(f"g/3/{number}", b"") for number in range(20)], [])
MANY: Commit = ([Put(f"k/{number}", b"") for number in range(300)], [])
TOO_MANY: Commit = ([Put(f"k/{number}", b"") for number in range(1100)], [])

WAITING: dict[str, tuple[Commit, Commit]] = {
    "a key is written twice": (([Put("r/1", b"")], []), ([Put("r/1", b"")], [])),
    "a key that was read is written": (([Put("y", b"")], [VersionIs("r/1", 1)]), ([Put("r/1", b"")], [])),
    "a key that was written is read": (([Put("r/1", b"")], []), ([Put("y", b"")], [VersionIs("r/1", 1)])),
    "a deleted key is read": (([Delete("g/1/a")], []), ([Put("y", b"")], [VersionIs("g/1/a", 1)])),
    "a key that was read is deleted": (([Put("y", b"")], [VersionIs("g/1/a", 1)]), ([Delete("g/1/a")], [])),
    "each writes what the other must not find": (
        ([Put("n/2", b"")], [VersionIs("n/1", None)]),
        ([Put("n/1", b"")], [VersionIs("n/2", None)]),
    ),
    "something enters a range that must be empty": (([Put("y", b"")], [Empty("g/2/")]), ([Ensure("g/2/a", b"")], [])),
    "a range must be empty that something enters": (([Put("g/2/a", b"")], []), ([Put("y", b"")], [Empty("g/2/")])),
    "a range must be empty that something leaves": (([Delete("g/1/a")], []), ([Put("y", b"")], [Empty("g/1/")])),
    "a range of several groups must be empty": (([Put("g/9/a", b"")], []), ([Put("y", b"")], [Empty("g")])),
    "many keys of a group, and one of them": (WHOLE, ([Put("g/3/0", b"")], [])),
    "many keys of a group, and one of them read": (WHOLE, ([Put("y", b"")], [VersionIs("g/3/0", None)])),
    "one key of a group, and many": (([Put("g/3/0", b"")], []), WHOLE),
    "one key of a group read, and many written": (([Put("y", b"")], [VersionIs("g/3/0", None)]), WHOLE),
    "more keys than locks, and one of them": (TOO_MANY, ([], [VersionIs("k/7", None)])),
    "one key, and more than locks": (([Put("k/7", b"")], []), TOO_MANY),
}

PASSING: dict[str, tuple[Commit, Commit]] = {
    "other keys": (([Put("r/1", b"")], []), ([Put("r/2", b"")], [])),
    "other keys of one group": (([Put("g/1/b", b"")], []), ([Put("g/1/c", b""), Delete("g/1/a")], [])),
    "both read one key": (([Put("y", b"")], [VersionIs("r/1", 1)]), ([Put("z", b"")], [VersionIs("r/1", 1)])),
    "a key next to one that was read": (([Put("y", b"")], [VersionIs("g/1/a", 1)]), ([Put("g/1/b", b"")], [])),
    "something enters another range": (([Put("y", b"")], [Empty("g/2/")]), ([Put("g/1/b", b"")], [])),
    "many keys of one group, and another's": (WHOLE, ([Put("g/4/0", b"")], [])),
    "many keys of many groups, and another": (MANY, ([Put("r/2", b"")], [])),
}


@pytest.mark.relatives
@pytest.mark.parametrize("pair", WAITING.values(), ids=WAITING.keys())
async def test_commit_with_shared_keys_waits_for_earlier_one(
    records: Records, server: Server, pair: tuple[Commit, Commit]
) -> None:
    model, first, second = Model(), *pair
    await records.commit(*BEFORE)
    model.commit(*BEFORE)
    async with server.unfinished() as held:
        assert await committed(held, *first) == model.commit(*first)
        waits = asyncio.create_task(committed(records, *second))
        await server.until_one_waits()
        assert not waits.done()
    assert await waits == model.commit(*second)
    assert await records.range("!", "~", limit=10_000) == [*model.live().items()]


@pytest.mark.parametrize("pair", PASSING.values(), ids=PASSING.keys())
async def test_commit_without_shared_keys_does_not_wait(
    records: Records, server: Server, pair: tuple[Commit, Commit]
) -> None:
    model, first, second = Model(), *pair
    await records.commit(*BEFORE)
    model.commit(*BEFORE)
    async with server.unfinished() as held:
        assert await committed(held, *first) == model.commit(*first)
        assert await committed(records, *second) == model.commit(*second)
    assert await records.range("!", "~", limit=10_000) == [*model.live().items()]


# Commits of the archive and of jobs

ALICE, BOB = Owner("alice"), Owner("bob")
TOOLS = [{"type": "function", "name": "f", "description": "d" * 500, "parameters": {}, "strict": True}]


async def save(records: Records, owner: Owner, clock: Clock, base: str | None = None, **fields: Any) -> str:
    """Store a turn with unique texts, and return the name of its history."""
    answer, question = assistant(new_id("answer")), user(new_id("question"))
    created = response(answer, tools=TOOLS, **fields)
    await Archive(records, clock=clock).save(created, owner=owner, base=base, input_items=[question])
    return Hasher(owner).histories(base, [question, answer])[-1]


async def background(records: Records, response_id: str, created: Json, clock: Clock) -> None:
    """Queue a response, begin it and end it."""
    archive, jobs, event_log = Archive(records, clock=clock), JobQueue(records, 100), EventLog(records, Notifier())
    body, questions = {"model": "m", "background": True}, [user(response_id)]
    first = created | {"status": "queued", "output": []}
    async with jobs.enqueued(response_id, ANONYMOUS, body) as queued:
        await archive.save(first, owner=ANONYMOUS, base=None, input_items=questions, extra_ops=queued)
    held = await jobs.claim("worker")
    assert held is not None
    assert held.response_id == response_id
    ended = [*held.delete_ops(), *event_log.expire(response_id, CREATED)]
    await archive.save(
        created, owner=ANONYMOUS, base=None, input_items=questions, extra_ops=ended, conditions=[held.fence]
    )
    await jobs.hints_written()


async def in_background(records: Records, clock: Clock) -> None:
    response_id = new_id("resp")
    await background(records, response_id, response(assistant(response_id), id=response_id), clock)


async def in_foreground(records: Records, clock: Clock) -> None:
    archive, response_id, worker = Archive(records, clock=clock), new_id("resp"), new_id("worker")
    foreground_leases = ForegroundLeases(records, archive, worker, Heartbeat(JobQueue(records, 9), worker))
    created, questions = response(assistant(response_id), id=response_id), [user(response_id)]
    lease = await foreground_leases.acquire(created, owner=ANONYMOUS, base=None, input_items=questions)
    assert lease
    ends: Any = {"extra_ops": lease.ops, "conditions": lease.conditions}
    await archive.save(created, owner=ANONYMOUS, base=None, input_items=questions, **ends)


async def in_conversation(records: Records, clock: Clock) -> None:
    archive = Archive(records, clock=clock)
    conversation = Conversation(new_id("conv"), ANONYMOUS, CREATED, {})
    await archive.conversations.create(conversation, [user(new_id("said")) for _ in range(20)])
    of = {"conversation": {"id": conversation.id}}
    await archive.save(response(assistant("a"), **of), owner=ANONYMOUS, base=None, input_items=[user(new_id("said"))])


async def deleted(records: Records, clock: Clock) -> None:
    archive, created = Archive(records, clock=clock), response(assistant(new_id("said")))
    await archive.save(created, owner=ANONYMOUS, base=None, input_items=[user(new_id("said"))])
    assert await archive.delete(created["id"])


WORK: dict[str, Callable[[Records, Clock], Awaitable[None]]] = {
    "in the background": in_background,
    "in the foreground": in_foreground,
    "in a conversation": in_conversation,
    "deleted": deleted,
}


async def test_saves_of_other_chains_and_owners_do_not_wait_for_unfinished_one(
    records: Records, server: Server, clock: Clock
) -> None:
    hers, his = await save(records, ALICE, clock), await save(records, BOB, clock)
    async with server.unfinished() as held:
        first = await save(held, ALICE, clock, hers)
        await save(records, BOB, clock, his)
        await save(records, ALICE, clock)
        second = await save(records, ALICE, clock, hers)
    archive = Archive(records, clock=clock)
    assert [len(await archive.history(name)) for name in (first, second)] == [4, 4]


@pytest.mark.relatives
@pytest.mark.parametrize("second", WORK)
@pytest.mark.parametrize("first", WORK)
async def test_responses_of_one_owner_do_not_wait_for_unfinished_one(
    records: Records, server: Server, clock: Clock, first: str, second: str
) -> None:
    await in_foreground(records, clock)
    async with server.unfinished() as held:
        await WORK[first](held, clock)
        await WORK[second](records, clock)


async def test_saves_do_not_wait_for_unfinished_turn_of_hundreds_of_items(
    records: Records, server: Server, clock: Clock
) -> None:
    await save(records, ALICE, clock)  # her list has a bucket now
    archive = Archive(records, clock=clock)
    conversation = Conversation(new_id("conv"), ALICE, CREATED, {})
    await archive.conversations.create(conversation, [])
    created = response(assistant("a"), conversation={"id": conversation.id})
    async with server.unfinished() as held:
        turn = [user(new_id("said")) for _ in range(300)]
        await Archive(held, clock=clock).save(created, owner=ALICE, base=None, input_items=turn)
        await save(records, BOB, clock)
        await save(records, ALICE, clock)
    assert len(await archive.conversations.items(conversation.id, 301, ReadAllowance())) == 301


async def test_save_waits_for_unfinished_deletion_of_its_history(
    records: Records, server: Server, clock: Clock
) -> None:
    archive, question, answer = Archive(records, clock=clock), user("q"), assistant("a")
    created = response(answer)
    await archive.save(created, owner=ALICE, base=None, input_items=[question])
    history = Hasher(ALICE).histories(None, [question, answer])[-1]
    async with server.unfinished() as held:
        await Archive(held, clock=clock).delete(created["id"])
        again = archive.save(response(answer), owner=ALICE, base=None, input_items=[question])
        waits = asyncio.create_task(again)
        await server.until_one_waits()
        assert not waits.done()
    await waits
    assert [item["role"] for item in await archive.history(history)] == ["user", "assistant"]


# Deadlocks and old schemas


async def test_commits_with_shared_keys_in_any_order_do_not_deadlock(records: PostgresRecords) -> None:
    keys = [f"{kind}/{name}/{part}" for kind in "ab" for name in "xy" for part in "1234567"] + ["c", "d", "r/1"]
    chance = random.Random(4)

    def commit() -> Commit:
        ops: list[Op] = [chance.choice((Put, Ensure))(key, b"") for key in chance.sample(keys, 6)]
        ops += map(Delete, chance.sample(keys, 6))
        conditions: list[Condition] = [VersionIs(key, None) for key in chance.sample(keys, 2)]
        return ops, [*conditions, *map(Empty, chance.sample(["a/x/", "b/y/", "a/y/1"], chance.randrange(2)))]

    # In a deadlock, the server would end one transaction, which is an error here.
    commits = await asyncio.gather(*(committed(records, *commit()) for _ in range(600)))
    assert True in commits
    assert False in commits


async def test_schema_of_earlier_version_is_upgraded(records: PostgresRecords, server: Server) -> None:
    await records.commit([Put("a", b"1")])
    await records.close()
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"DROP FUNCTION {server.schema}.commit")
    await connection.close()
    await records.commit([Put("a", b"2")], [VersionIs("a", 1)])
    with pytest.raises(Conflict):
        await records.commit([Put("a", b"3")], [VersionIs("a", 1)])
