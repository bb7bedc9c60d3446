"""A store moves to another of any kind while both are used: backups, each restored with what changed since the last."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.commands.progress import ProgressLine
from llama_stack_responses.core import ids
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.admin.restoring import PHASES, Counts, Manner, Restoring
from llama_stack_responses.features.batches.rows import WORK, Batch, Counted, Line, Result
from llama_stack_responses.features.batches.stored_batches import StoredBatches
from llama_stack_responses.features.code.skills.store import (
    NewVersion,
    SkillQuota,
    SkillStore,
    StoredArchive,
    StoredSkill,
)
from llama_stack_responses.features.code.stored import SkillsOfOwners
from llama_stack_responses.features.usage.on_request import UsageOfOwners
from llama_stack_responses.features.webhooks.deliveries import Deliveries, Settled
from llama_stack_responses.features.webhooks.endpoints import Endpoints
from llama_stack_responses.features.webhooks.rows import Attempt, Endpoint, Event
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.store import codec
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.backup_format import BackupWriter, read_backup
from llama_stack_responses.store.backup_index import BackupIndex
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.layout import links_of, listing, scored
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords, noted
from llama_stack_responses.store.placement import Placement
from llama_stack_responses.store.records import Delete, Ensure, Op, Put, Records, Snapshots, VersionIs, partitions_of
from tests.contract.backends import BACKENDS, IN_PARTITIONS, BackendLocation, Clock
from tests.contract.conversations import CREATED, TAGS, Json, assistant, response, user
from tests.contract.test_usage import Server as UsageServer
from tests.contract.test_usage import tokens

ADA: Final = Owner("ada")
OF: Final = Hasher(ADA).owner
DAY: Final = 86_400.0
HOUR: Final = 3_600
QUOTA: Final = SkillQuota(skills=3, versions=3, bytes=2**20)
TOOLS: Final[list[Json]] = [{"type": "function", "name": "f", "description": "words " * 200, "parameters": {}}]
PAIRS: Final = [
    ("sqlite", "partitions"),
    ("partitions", "sqlite"),
    *(
        pytest.param(*pair, marks=[pytest.mark.extended, pytest.mark.day(4)])
        for pair in (
            ("sqlite", "cluster"),
            ("cluster", "postgres"),
            ("redis", "cluster"),
            ("postgres", "redis"),
            ("postgres", "postgres-partitions"),
        )
    ),
]


def opened(kind: str, place: BackendLocation, clock: Clock) -> Records:
    return next(each for each in BACKENDS if each.name == kind).open(place.fresh(), clock)


class Move:
    """A move from one store to another."""

    def __init__(self, source: Records, target: Records, folder: Path) -> None:
        self.source, self.target, self._folder = source, target, folder
        self._backups: list[Path] = []

    async def backup(self) -> Path:
        """Back the source up."""
        assert isinstance(self.source, Snapshots)
        path = self._folder / f"{len(self._backups)}.backup"
        with path.open("wb") as file:
            writer = BackupWriter(file)
            async for rows in self.source.snapshot():
                for row in rows:
                    writer.add(row)
            writer.end()
        self._backups.append(path)
        return path

    async def restore(self, path: Path, earlier: Path | None = None, *, live: bool = False) -> Counts:
        """Restore a backup into the target."""
        with path.open("rb") as file, BackupIndex(file) as index:
            if earlier:
                with earlier.open("rb") as was:
                    index.add_earlier(read_backup(was))
            index.read(PHASES)
            manner = Manner(adds=True, since=earlier is not None, live=live)
            return await Restoring(self.target, index, manner).run(ProgressLine("rows"))

    async def go(self, *, live: bool = True) -> Counts:
        """Move what changed since the last time."""
        earlier = self._backups[-1] if self._backups else None
        return await self.restore(await self.backup(), earlier, live=live)


@pytest.fixture
async def stores(
    source: str, target: str, place: BackendLocation, clock: Clock
) -> AsyncIterator[tuple[Records, Records]]:
    async with AsyncExitStack() as stack:
        both = []
        for kind in (source, target):
            both.append(records := opened(kind, place, clock))
            stack.push_async_callback(records.close)
        TAGS.append(5 if source in IN_PARTITIONS else 0)
        stack.callback(TAGS.pop)
        yield both[0], both[1]


class User:
    """Ada, who uses one of the stores."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self.archive = Archive(records, retention=None, clock=clock)

    async def asks(self, words: str, previous: Json | None = None, **fields: Any) -> Json:
        """Store a response; the new turn of a chain if it has a previous one."""
        created = response(assistant(f"to {words}"), tools=TOOLS, **fields)
        base = None
        if previous:
            entry = await self.archive.entry(previous["id"])
            assert entry
            base, created["previous_response_id"] = entry.whole, previous["id"]
        await self.archive.save(created, owner=ADA, base=base, input_items=[user(words)])
        return created

    async def input(self, created: Json) -> list[str] | None:
        """Return the texts of the input of a response; None if it is gone."""
        stored = await self.archive.load(created["id"])
        if stored is None:
            return None
        assert stored.response["tools"] == TOOLS
        return [item["content"][0]["text"] for item in await self.archive.history(stored.input)]

    async def talk(self, conversation: Conversation) -> list[str] | None:
        """Return the texts of a conversation; None if it is gone."""
        found = await self.archive.conversations.load(conversation.id)
        items = await self.archive.conversations.items(found.id, found.end) if found else []
        return [item["content"][0]["text"] for item in items] if found else None


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_move_loses_nothing_and_brings_nothing_back(
    stores: tuple[Records, Records], tmp_path: Path, clock: Clock
) -> None:
    move = Move(*stores, tmp_path)
    there, here = (User(each, clock) for each in stores)
    first = await there.asks("one")
    second = await there.asks("two", first)
    deleted_there = await there.asks("three")
    talk = Conversation(ids.new_id("conv", TAGS[-1]), ADA, CREATED, {})
    items = [user(text) for text in "abc"]
    await there.archive.conversations.create(talk, items)
    await move.go()
    assert [await here.input(each) for each in (first, second, deleted_there)] == [
        ["one"],
        ["one", "to one", "two"],
        ["three"],
    ]
    # Both are used.
    third = await there.asks("four", second)
    assert await there.archive.delete(deleted_there["id"])
    again = await there.asks("three")
    await there.archive.conversations.remove(talk, items[1]["id"])
    await there.archive.conversations.add(talk, [user("d")])
    assert await here.archive.delete(second["id"])
    other = await here.asks("five", first)
    await move.go()
    for _ in range(2):
        assert await here.input(second) is None
        assert await here.input(deleted_there) is None
        assert await here.input(third) == ["one", "to one", "two", "to two", "four"]
        assert await here.input(again) == ["three"]
        assert await here.input(other) == ["one", "to one", "five"]
        assert await here.talk(talk) == ["a", "c", "d"]
        await move.go()
    await there.archive.conversations.delete(talk.id)
    await move.go()
    assert await here.talk(talk) is None


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_jobs_move_once_their_servers_have_stopped(
    stores: tuple[Records, Records], tmp_path: Path, clock: Clock
) -> None:
    move = Move(*stores, tmp_path)
    there, here = (JobQueue(each, limit=100) for each in stores)
    waiting, ended = (ids.new_id("resp", TAGS[-1]) for _ in range(2))
    for each in (ended, waiting):
        async with there.enqueued(each, ADA, {"model": "m", "input": each}) as ops:
            await move.source.commit(ops)
    of_there = Archive(move.source, retention=None, clock=clock)
    # One whose worker has died may have a record already.
    await of_there.save(response(id=waiting, status="in_progress"), owner=ADA, base=None, input_items=[user("x")])
    await there.heartbeat("w1")
    job = await there.claim("w1")
    assert job
    assert job.response_id == ended
    await move.go()
    assert await here.claim("w2") is None
    await of_there.save(response(id=ended), owner=ADA, base=None, input_items=[user("x")], extra_ops=job.delete_ops())
    await move.go()
    assert await here.claim("w2") is None
    last = await move.backup()
    await move.restore(last, tmp_path / "1.backup")
    await here.heartbeat("w2")
    found = await here.claim("w2")
    assert found
    assert found.response_id == waiting
    assert await here.claim("w2") is None
    of_here = Archive(move.target, retention=None, clock=clock)
    await of_here.save(
        response(id=waiting), owner=ADA, base=None, input_items=[user("x")], extra_ops=found.delete_ops()
    )
    await move.restore(last, tmp_path / "1.backup")
    assert await here.claim("w2") is None
    assert await of_here.entry(ended)


@pytest.mark.parametrize(
    ("first", "second"),
    [("partitions", "memory"), pytest.param("cluster", "postgres", marks=[pytest.mark.extended, pytest.mark.day(4)])],
)
async def test_ids_without_a_tag_stay_valid_over_two_moves(
    first: str, second: str, place: BackendLocation, clock: Clock, tmp_path: Path
) -> None:
    """From SQLite to eight partitions, where more is stored, and from there to a single store."""
    records = [opened(kind, place, clock) for kind in ("sqlite", first, second)]
    users = [User(each, clock) for each in records]
    old = await users[0].asks("old")
    (tmp_path / "a").mkdir()
    await Move(records[0], records[1], tmp_path / "a").go(live=False)
    continued = await users[1].asks("more", old)
    TAGS.append(3)
    new = await users[1].asks("new")
    TAGS.pop()
    (tmp_path / "b").mkdir()
    await Move(records[1], records[2], tmp_path / "b").go(live=False)
    for user_of in users[1:]:
        assert await user_of.input(old) == ["old"]
        assert await user_of.input(continued) == ["old", "to old", "more"]
        assert await user_of.input(new) == ["new"]
        assert await user_of.archive.delete(old["id"])
        assert await user_of.input(continued) == ["old", "to old", "more"]
    for each in records:
        await each.close()


async def moved_between(clock: Clock, folder: Path) -> AsyncIterator[Records]:
    """Yield stores with one, eight, two and one partitions, each once the one before was moved into it."""
    before: Records | None = None
    for number, partitions in enumerate((1, 8, 2, 1)):
        records = PartitionedRecords([MemoryRecords(clock=clock) for _ in range(partitions)])
        if before:
            (folder / str(number)).mkdir()
            await Move(before, records, folder / str(number)).go(live=False)
        yield records
        before = records


async def test_usage_adds_up_over_moves_between_numbers_of_partitions(clock: Clock, tmp_path: Path) -> None:
    users, sent = [ADA, *(Owner(f"user-{number}") for number in range(20))], 0
    async for records in moved_between(clock, tmp_path):
        server = UsageServer(records, clock)
        for waits in (False, True):
            for owner in users:
                await server.unstored(owner, id=ids.new_id("resp"), usage=tokens(1))
            sent += len(users)
            if not waits:
                await server.add_up()
                clock.now += 2 * DAY
                await server.tables.update()
        assert (await server.summed([]))[()]["input_tokens"] == sent == await server.total("requests")
        own = (await server.read(user=ADA)).values()
        counted = [counts for table in own for each, counts in table.items() if each.user == "ada"]
        assert sum(each["input_tokens"] for each in counted) == sent // len(users)
    of_owners = UsageOfOwners(records, Decoder(), None)
    for day in [each async for each in of_owners.ids_of(ADA)]:
        await of_owners.delete(ADA, day)
    assert len(await records.range("us/p/", "us/p0", limit=1000)) == len(users) - 1
    assert len(await server.summed(["user"])) == len(users) - 1


async def test_usage_that_was_added_up_between_two_moves_is_counted_once(clock: Clock, tmp_path: Path) -> None:
    move = Move(MemoryRecords(clock=clock), MemoryRecords(clock=clock), tmp_path)
    there, here = UsageServer(move.source, clock), UsageServer(move.target, clock)
    for _ in range(3):
        await there.save(usage=tokens(1))
    await move.go()
    assert await here.total("requests") == 3
    await there.save(usage=tokens(1))
    await there.add_up()
    await move.go()
    assert await here.total("requests") == 4
    await here.add_up()
    assert await here.total("requests") == 4


async def test_sums_of_days_are_those_of_tables_that_a_move_has_replaced(clock: Clock, tmp_path: Path) -> None:
    move = Move(MemoryRecords(clock=clock), MemoryRecords(clock=clock), tmp_path)
    there, here = UsageServer(move.source, clock), UsageServer(move.target, clock)
    for number in (1, 2):
        await there.save(usage=tokens(1))
        if number == 1:
            await there.add_up()
            await move.go()
            clock.now += 2 * DAY
            await here.tables.update()
            clock.now -= 2 * DAY
    await there.add_up()
    await move.go()
    assert (await here.summed([]))[()]["requests"] == 2


async def test_skills_and_their_quota_stay_over_moves_between_numbers_of_partitions(
    clock: Clock, tmp_path: Path
) -> None:
    skill_ids = list[str]()
    async for records in moved_between(clock, tmp_path):
        if len(skill_ids) < QUOTA.skills:
            skill_ids.append((await Features(records).skill(clock.now))[0].id)
        clock.now += 1
        skills = SkillsOfOwners(records, Decoder())
        assert [each async for each in skills.ids_of(ADA)] == skill_ids
    with pytest.raises(ApiError, match="have 3 skills; 3 are allowed"):
        await Features(records).skill(clock.now)
    for skill_id in skill_ids:
        await skills.delete(ADA, skill_id)
    clock.now += HOUR + 1
    await SkillStore(records, Decoder()).resume(9)
    assert {key.partition("/")[0] for key, _ in await records.range("sk/", "sw", limit=99)} == {"so"}


class Features:
    """Ada's batches, webhooks and skills in a store."""

    def __init__(self, records: Records) -> None:
        self.batches, self.skills = StoredBatches(records), SkillStore(records)
        self.endpoints = Endpoints(records, Sealer([bytes(SECRET_BYTES)]))
        self.deliveries = Deliveries(records, self.endpoints, {}, DAY)
        self.records = records

    async def batch(self, now: float) -> Batch:
        """Store a batch of which one line runs, and one has ended."""
        batch_id = Batch.new_id(now, Placement(partitions_of(self.records)).of_owner(ADA))
        batch = Batch(batch_id, ADA, "/v1/responses", "file-1", "24h", now, now + DAY, "in_progress")
        await self.batches.create(batch, 5)
        for number in (1, 2):
            assert await self.batches.begun(Line(batch.id, number))
        assert await self.batches.answered(Line(batch.id, 1), Result(None, False, 200, {}), Counted(True))
        return batch

    async def end(self, batch: Batch) -> None:
        """End a batch."""
        await self.batches.change(OF, batch.id, lambda each: replace(each, status="completed"))
        await self.batches.finish(batch.id)

    async def is_worked_for(self, batch: Batch) -> bool:
        """Whether a server would work for a batch."""
        return bool(await self.records.get_many([f"{WORK}{batch.id}"]))

    async def skill(self, now: float) -> tuple[StoredSkill, StoredArchive]:
        """Store a skill, and an archive that has no version yet."""
        skill_id = self.skills.new_id(ADA, int(now * 1000))
        one, two = [await self.skills.upload(ADA, skill_id, each, "digest", QUOTA) for each in (b"one", b"two")]
        created = NewVersion("sums", "Adds.", CREATED, one, 9)
        return await self.skills.create(skill_id, ADA, created, QUOTA), two

    async def event(self, now: float) -> str:
        """Record the end of a background response; return its id."""
        response_id = ids.new_id("resp")
        await self.records.commit([Event("response.completed", response_id, OF, now).put(now + DAY)])
        return response_id

    async def settle(self, endpoint: Endpoint, now: float) -> list[str]:
        """Deliver what is due; return the ids of the responses."""
        while await self.deliveries.make():
            pass
        due = await self.deliveries.due(endpoint.id, now, 9)
        found = await self.deliveries.load(due)
        for row in due:
            sent = found[row.delivery].after(Attempt(int(now), 200, ""), "delivered")
            assert await self.deliveries.settle(Settled(row, sent, None))
        return [each.response for each in found.values()]


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_batches_webhooks_and_skills_move_and_are_worked_for_on_one_side(
    stores: tuple[Records, Records], tmp_path: Path, clock: Clock
) -> None:
    move = Move(*stores, tmp_path)
    there, here = (Features(each) for each in stores)
    now = await move.source.now()
    batch, gone, cancelled = [await there.batch(now + second) for second in range(3)]
    endpoint, _ = await there.endpoints.create(ADA, "Jobs", "https://hooks.example", ("response.completed",), 5)
    first = await there.event(now)
    await there.deliveries.make()
    skill, archive = await there.skill(now)
    await move.go()
    # The servers there go on with what waits and runs.
    assert [each.id for each in await here.batches.every(OF)] == [batch.id, gone.id, cancelled.id]
    assert [each.id for each in await here.endpoints.of_owner(OF)] == [endpoint.id]
    assert not await here.is_worked_for(batch)
    assert await here.settle(endpoint, now + DAY) == []
    assert (await here.skills.load(ADA, skill.id)).name == "sums"
    assert await here.batches.running(batch.id) == {}
    assert await there.settle(endpoint, now + 1) == [first]
    assert await there.batches.answered(Line(batch.id, 2), Result(None, False, 200, {}), Counted(True))
    await there.batches.delete(OF, gone.id)
    await here.batches.change(OF, cancelled.id, lambda each: replace(each, status="cancelling", end="cancelled"))
    await there.end(cancelled)
    second, third = await there.event(now + 2), await there.event(now + 3)
    await there.skills.add_version(ADA, skill.id, NewVersion("sums", "Adds.", CREATED, archive, 9), QUOTA)
    await move.go()
    last = await move.backup()
    for _ in range(2):
        await move.restore(last, tmp_path / "1.backup")
        assert [each.status for each in await here.batches.every(OF)] == ["in_progress", "cancelling"]
    # They have stopped: the servers here go on.
    assert await here.is_worked_for(batch)
    assert await here.is_worked_for(cancelled)
    assert await here.batches.running(batch.id) == {}
    assert await here.batches.ended_of(batch.id, [1, 2]) == {1, 2}
    assert sorted(await here.settle(endpoint, now + DAY)) == sorted([second, third])
    version = await here.skills.version(await here.skills.load(ADA, skill.id), 2)
    assert b"".join([each async for each in here.skills.parts(version)]) == b"two"
    # What ended here does not begin again.
    await here.end(batch)
    await move.restore(last, tmp_path / "1.backup")
    assert not await here.is_worked_for(batch)
    assert await here.batches.running(batch.id) == {}


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_conversation_that_both_sides_continue_stays_as_it_is_here(
    stores: tuple[Records, Records], tmp_path: Path, clock: Clock
) -> None:
    move = Move(*stores, tmp_path)
    there, here = (User(each, clock) for each in stores)
    talks = [Conversation(ids.new_id("conv", TAGS[-1]), ADA, CREATED, {}) for _ in range(3)]
    for each in talks:
        await there.archive.conversations.create(each, [user("a")])
    await move.go()
    both, gone, one = talks
    for each in talks:
        await there.archive.conversations.add(each, [user("from there"), user("more from there")])
    await here.archive.conversations.add(both, [user("from here")])
    await here.archive.conversations.delete(gone.id)
    counts = await move.go()
    assert counts.kept
    await here.archive.conversations.add(both, [user("and on")])
    items = await there.archive.conversations.items(both.id, 3)
    await there.archive.conversations.remove(both, items[1]["id"])
    await move.go()
    assert await here.talk(both) == ["a", "from here", "and on"]
    assert await here.talk(gone) is None
    assert await here.talk(one) == ["a", "from there", "more from there"]
    found = await here.archive.conversations.load(both.id)
    assert found
    assert await here.archive.conversations.find(found, items[1]["id"]) is None
    for key in (f"m/{gone.id}/", f"a/{gone.id}/"):
        assert await move.target.range(key, f"{key}~", limit=1) == []
    for each in (both, one):
        await here.archive.conversations.delete(each.id)
    for kind in "aijm":
        assert await move.target.range(f"{kind}/", f"{kind}0", limit=1) == []


async def test_response_that_changes_there_after_it_was_deleted_here_leaves_nothing(
    tmp_path: Path, clock: Clock
) -> None:
    move = Move(MemoryRecords(clock=clock), MemoryRecords(clock=clock), tmp_path)
    there, here = (User(each, clock) for each in (move.source, move.target))
    runs = response(tools=TOOLS, status="in_progress")
    await there.archive.save(runs, owner=ADA, base=None, input_items=[user("asked")])
    ended = await there.asks("scored")
    await move.go()
    for each in (runs, ended):
        assert await here.archive.delete(each["id"])
    await there.archive.save(
        {**runs, "status": "completed", "output": [assistant("answered")]},
        owner=ADA,
        base=None,
        input_items=[user("asked")],
    )
    entry = await there.archive.entry(ended["id"])
    assert entry
    await move.source.commit([Put(scored(entry.listed), b"a note"), Put(links_of(ended["id"]), b"a link")])
    assert (await move.go()).kept
    await here.archive.sweep()
    assert [key for key, _ in await move.target.range("!", "~", limit=99) if not key.startswith("x/")] == []


async def rows(records: Records, *keys: str) -> dict[str, bytes]:
    return {key: record.value for key, record in (await records.get_many(keys)).items()}


async def moved(
    before: Sequence[Put], there: Sequence[Put | Delete], here: Sequence[Put | Delete], folder: Path
) -> tuple[Records, Counts]:
    """Move rows, change both stores, move again; return the target and the counts."""
    move = Move(MemoryRecords(), MemoryRecords(), folder)
    await move.source.commit(before)
    await move.go()
    await move.source.commit(there)
    await move.target.commit(here)
    return move.target, await move.go()


async def test_row_that_changed_on_one_side_is_as_that_side_has_it(tmp_path: Path) -> None:
    before = [Put(f"us/{name}", b"0") for name in ("there", "here", "both", "gone", "none")]
    there = [Put("us/there", b"1"), Put("us/both", b"1"), Put("us/gone", b"1"), Put("us/new", b"1")]
    here: list[Put | Delete] = [Put("us/here", b"2"), Put("us/both", b"2"), Delete("us/gone")]
    target, counts = await moved(before, there, here, tmp_path)
    found = await rows(target, *(f"us/{name}" for name in ("there", "here", "both", "gone", "none", "new")))
    assert found == {"us/there": b"1", "us/here": b"2", "us/both": b"2", "us/none": b"0", "us/new": b"1"}
    assert (counts.rows, counts.changed, counts.kept) == (1, 1, 2)


async def test_key_that_is_revoked_there_is_revoked_here_whatever_changed(tmp_path: Path) -> None:
    before = [Put("ak/1", b"0"), Put("ak/2", b"0"), Put("rf/1", b"0")]
    target, counts = await moved(
        before, [Delete("ak/1"), Delete("rf/1")], [Put("ak/1", b"1"), Put("rf/1", b"1")], tmp_path
    )
    assert await rows(target, "ak/1", "ak/2", "rf/1") == {"ak/2": b"0", "rf/1": b"1"}
    assert (counts.deleted, counts.kept) == (1, 1)


async def test_leases_and_secrets_of_servers_do_not_move(tmp_path: Path) -> None:
    target, _ = await moved([Put("p/w1", b"9"), Put("se/1", b"x")], [], [], tmp_path)
    assert await target.range("!", "~", limit=9) == []


@pytest.mark.parametrize("applied", [False, True])
async def test_write_that_was_noted_for_another_partition_moves_once(applied: bool, tmp_path: Path) -> None:
    class Dying(PartitionedRecords):
        async def _try_elsewhere(
            self, home: int, note: str | None, number: int, ops: Sequence[Op], _until: float
        ) -> None:
            if applied and note:
                await self.parts[number].commit([*ops, Put(noted(note, codec.encode([number, []]))[0], b"")])

    source = Dying([MemoryRecords() for _ in range(8)])
    home, other = (f"r/resp_p00{number}{1:024x}" for number in (5, 3))
    await source.commit([Put(home, b"x"), Put(other, b"y")], [VersionIs(home, None)])
    if applied:
        await source.commit([Put(other, b"later")])
    target = MemoryRecords()
    await Move(source, target, tmp_path).go(live=False)
    assert await rows(target, home, other) == {home: b"x", other: b"later" if applied else b"y"}
    assert await target.range("ob/", "ob0", limit=1) == []


@pytest.mark.parametrize("live", [False, True])
async def test_first_response_with_a_tag_is_listed_though_it_is_newer_than_the_snapshot_of_its_home(
    live: bool, tmp_path: Path
) -> None:
    source, target = (PartitionedRecords([MemoryRecords() for _ in range(8)]) for _ in range(2))
    listed = [listing(OF, f"6{number}", new_id("resp", number)) for number in (3, 5)]
    await source.commit([Put(listed[0], b""), Ensure(f"up/{OF}/003", b"")])
    # The home partition has no row of the other one yet.
    await source.commit([Put(listed[1], b"")])
    counts = await Move(source, target, tmp_path).go(live=live)
    assert [key for key, _ in await target.range(f"l/{OF}/", f"l/{OF}0", limit=9)] == listed
    assert counts.rows == 4 + live


async def test_items_of_a_conversation_are_found_that_is_newer_than_the_snapshot_of_its_home(tmp_path: Path) -> None:
    source, target = (PartitionedRecords([MemoryRecords() for _ in range(8)]) for _ in range(2))
    talk = Conversation(new_id("conv", 5), ADA, int(CREATED), {})
    await Archive(source).conversations.create(talk, [{**user("hello"), "id": "msg_own"}])
    # The home partition has no row of it yet.
    await source.commit([Delete(f"up/{Hasher(ADA).owner}/005")])
    await Move(source, target, tmp_path).go(live=False)
    assert [item_id async for item_id, _ in Archive(target).find_items(ADA, ["msg_own"])] == ["msg_own"]
