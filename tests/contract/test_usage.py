"""On every backend, usage adds up to what responses have used: however they end, whoever adds it up, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.counted import OTHER, Counts, Dimensions, add
from llama_stack_responses.features.usage.counting import count
from llama_stack_responses.features.usage.naming import Bounds
from llama_stack_responses.features.usage.on_request import UsageOfOwners
from llama_stack_responses.features.usage.reading import Reading, Span
from llama_stack_responses.features.usage.rows import (
    CHANGES,
    DAYS,
    HOURS,
    MINUTES,
    PARTS,
    PENDING,
    SUMS,
    Table,
    Unit,
    changed,
    changes_of,
    part_of,
)
from llama_stack_responses.features.usage.sums import DaySums
from llama_stack_responses.features.usage.tables import WAIT_SECONDS, Tables
from llama_stack_responses.store.archive import Archive, save_once
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.placement import Placement
from llama_stack_responses.store.records import (
    Condition,
    Delete,
    Op,
    Put,
    Record,
    Records,
    Unanswered,
    after_prefix,
    partitions_of,
)
from tests.contract.backends import Clock
from tests.contract.conversations import assistant, response
from tests.contract.test_lost_answers import RETRIES_AT_ONCE, ReplyLosingRecords
from tests.support.records import FailingOver, WatchedRecords, just_before_a_commit, settled
from tests.support.waiting import until

pytestmark = pytest.mark.needs("transactions")

ADA: Final = Owner("ada", {"teams": ["search"], "keys": ["key_1"]})
BOB: Final = Owner("bob", {"teams": ["search"]})
MANY: Final = Bounds(users=10_000, values=100)
UNITS: Final = (MINUTES, HOURS, DAYS)


class Server:
    """A server that counts usage by the values of `project` in the metadata."""

    def __init__(self, records: Records, clock: Clock, bounds: Bounds = MANY, days: float | None = None) -> None:
        self.records, self.clock = records, clock
        partitions = partitions_of(records)
        self.placement = placement = Placement(partitions)
        self.home = self.home_of(ADA)
        self.archive = Archive(records, clock=clock, at_end=[partial(count, "project", placement)])
        self.tables = Tables(records, Decoder(), bounds, days)
        self.reading = Reading(records, Decoder())

    def home_of(self, owner: Owner) -> int:
        """Return the number of a user's home partition."""
        return self.placement.of_owner(owner) % self.placement.partitions

    def neighbor_of(self, owner: Owner) -> Owner:
        """Return another user with the same home partition."""
        others = (Owner(f"user-{number}") for number in range(1000))
        return next(each for each in others if self.home_of(each) == self.home_of(owner))

    async def save(self, owner: Owner = ADA, **fields: Any) -> None:
        await self.archive.save(response(assistant("hi"), **fields), owner=owner, base=None, input_items=[])

    async def unstored(self, owner: Owner = ADA, **fields: Any) -> None:
        await self.archive.ends.unstored(Ended(response(**fields), owner, None, self.clock()))

    async def add_up(self) -> None:
        """Add up everything that has ended by now."""
        for partition in range(partitions_of(self.records)):
            while await self.tables.add_some(self.clock() + 1, partition):
                pass

    async def read(self, unit: Unit = DAYS, user: Owner | None = None) -> dict[int, Table]:
        now = int(self.clock()) // unit.seconds
        wide = 10 * 86_400 // unit.seconds
        return await self.reading.read(Span(unit, now - wide, now + wide, user), lambda _: True)

    async def summed(self, needs: Sequence[str]) -> dict[tuple[str, ...], Counts]:
        """Return what was used on all days together, by some dimensions."""
        today = int(self.clock()) // DAYS.seconds
        found: dict[tuple[str, ...], Counts] = {}
        for table in (await self.reading.read(Span(DAYS, today - 9, today + 2, needs=needs), lambda _: True)).values():
            for whose, counts in table.items():
                add(found.setdefault(tuple(getattr(whose, name) for name in needs), {}), counts)
        return found

    async def total(self, name: str, unit: Unit = DAYS) -> int:
        return sum(counts.get(name, 0) for table in (await self.read(unit)).values() for counts in table.values())


@pytest.fixture
def server(records: Records, clock: Clock) -> Server:
    return Server(records, clock)


def tokens(number: int) -> dict[str, Any]:
    return {"input_tokens": number, "output_tokens": 2 * number, "total_tokens": 3 * number}


@pytest.mark.every_store
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.prefix)
async def test_responses_added_up_or_not_have_the_same_sums(server: Server, clock: Clock, unit: Unit) -> None:
    for number in range(1, 6):
        await server.save(usage=tokens(number), model=f"model-{number % 2}", metadata={"project": "x"})
        clock.now += 1800
    before = await server.read(unit)
    await server.add_up()

    assert await server.read(unit) == before
    assert await server.total("input_tokens", unit) == 15
    assert await server.total("output_tokens", unit) == 30
    assert {each for table in before.values() for each in table} == {
        Dimensions("", "ada", "search", "key_1", "model-0", "x"),
        Dimensions("", "ada", "search", "key_1", "model-1", "x"),
    }


async def test_rows_of_responses_are_gone_once_they_are_added_up(server: Server) -> None:
    await server.save()
    await server.unstored()
    await server.add_up()

    assert await server.records.range(PENDING, after_prefix(PENDING), limit=10) == []
    assert await server.total("requests") == 2


async def test_response_that_has_just_ended_is_not_added_up_yet(server: Server, clock: Clock) -> None:
    await server.save()
    await server.tables.update()
    assert await changed(server.records, server.home) is None

    clock.now += WAIT_SECONDS + 1
    await server.tables.update()
    assert await changed(server.records, server.home) == 1


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
async def test_response_that_is_saved_again_counts_once_at_its_end(server: Server, status: str) -> None:
    created = response(status="queued", usage=None)
    error = {"code": "server_error", "message": "It broke."} if status == "failed" else None
    ended = created | {"status": status, "usage": tokens(7), "error": error}
    for each in (created, created | {"status": "in_progress"}):
        await server.archive.save(each, owner=ADA, base=None, input_items=[])
        assert await server.total("requests") == 0
    for _ in range(2):
        await server.archive.save(ended, owner=ADA, base=None, input_items=[])
        await server.add_up()

    [counts] = [counts for table in (await server.read()).values() for counts in table.values()]
    expected = {"requests": 1, f"status.{status}": 1, "input_tokens": 7, "output_tokens": 14}
    assert counts == expected | ({"errors.server_error": 1} if error else {})


async def test_imported_response_does_not_count(server: Server) -> None:
    assert await server.archive.import_response(response(), owner=ADA, base=None, input_items=[])

    assert await server.read() == {}


@pytest.mark.every_store
@pytest.mark.parametrize("most", [2_000, 1], ids=["all summed", "some have too many rows"])
async def test_days_that_are_over_are_read_from_their_sums_if_these_have_what_is_asked(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    class Listing(WatchedRecords):
        days: ClassVar[set[int]] = set()

        async def range_in(self, *given: Any, **named: Any) -> Any:
            rows = await super().range_in(*given, **named)
            self.days.update(DAYS.start_of(key) for key, _ in rows if key.startswith(DAYS.prefix))
            return rows

    monkeypatch.setattr("llama_stack_responses.features.usage.sums.MOST", most)
    server = Server(records, clock)
    for number in range(12):
        owner = (ADA, BOB)[number % 2]
        await server.save(owner, model=f"m{number % 3}", usage=tokens(number), metadata={"project": f"p{number % 5}"})
        clock.now += 40_000
    await server.add_up()
    questions = [[], ["model"], ["tenant", "user"], ["metadata", "team"], ["user", "team"], ["key"]]
    before = [await server.summed(needs) for needs in questions]
    await server.tables.update()

    listing = Listing(records)
    server.reading = Reading(listing, Decoder())
    assert [await server.summed(needs) for needs in questions[:-1]] == before[:-1]
    over = {day for day in listing.days if day + DAYS.seconds + 3600 <= clock.now}
    assert bool(over) == (most == 1)
    assert await server.summed(questions[-1]) == before[-1]


async def test_change_of_a_day_that_is_over_deletes_its_sums_until_they_are_made_again(
    records: Records, clock: Clock
) -> None:
    async def sums() -> int:
        return len(await records.range("us/s/", after_prefix("us/s/"), limit=100))

    server, late = Server(records, clock), Server(records, clock)
    began = clock.now
    await server.save(usage=tokens(1))
    clock.now += 3 * DAYS.seconds
    await server.tables.update()
    assert await sums() == 3 * len(SUMS)

    clock.now = began
    neighbor = late.neighbor_of(ADA)
    await late.save(neighbor, usage=tokens(2))
    clock.now += 3 * DAYS.seconds
    await late.add_up()
    assert await sums() == 2 * len(SUMS)
    assert (await server.summed([]))[()]["input_tokens"] == 3
    clock.now += 3601
    await server.tables.update()
    assert await sums() == 3 * len(SUMS)

    of_users = UsageOfOwners(records, Decoder(), None)
    await of_users.delete(neighbor, await anext(of_users.ids_of(neighbor)))
    assert await sums() == 2 * len(SUMS)
    assert (await server.summed([]))[()]["input_tokens"] == 1


@pytest.mark.parametrize(("days_later", "most"), [(0, 60), (5, 0)])
async def test_deletion_of_a_day_asks_for_few_minutes(
    records: Records, clock: Clock, days_later: int, most: int
) -> None:
    """Those of the hours in which its part of the users has used something, and none that is kept no longer."""
    asked = list[str]()

    class Asked(WatchedRecords):
        async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
            asked.extend(keys)
            return await super().get_many(keys, max_bytes=max_bytes)

    of_users, server = UsageOfOwners(Asked(records), Decoder(), None), Server(records, clock)
    neighbor = server.neighbor_of(ADA)
    for owner in (ADA, neighbor):
        await server.save(owner)
    await server.add_up()
    of_day = await anext(of_users.ids_of(ADA))
    clock.now += days_later * DAYS.seconds
    await of_users.delete(ADA, of_day)
    assert [await server.total("requests", unit) for unit in (HOURS, MINUTES)] == [1, 1 if most else 0]
    assert sum(key.startswith(MINUTES.prefix) for key in asked) == most


async def test_days_are_not_summed_while_they_change(records: Records, clock: Clock) -> None:
    async def meddle() -> None:
        clock.now -= DAYS.seconds
        await other.save(usage=tokens(2))
        await other.add_up()
        clock.now += DAYS.seconds

    other = Server(records, clock)
    await other.save(usage=tokens(1))
    await other.add_up()
    clock.now += 2 * DAYS.seconds
    server = Server(just_before_a_commit(records, meddle), clock)
    await server.tables.update()

    assert (await other.summed([]))[()]["input_tokens"] == 3
    await server.tables.update()
    assert (await other.summed([]))[()]["input_tokens"] == 3


async def test_users_are_found_alone_and_together(server: Server) -> None:
    for owner in (ADA, BOB, BOB):
        await server.save(owner)
    await server.add_up()
    await server.save(BOB)

    [table] = (await server.read(user=BOB)).values()
    assert sum(counts["requests"] for each, counts in table.items() if each.user == "bob") == 3
    assert await server.total("requests") == 4


async def test_more_users_and_values_than_counted_are_together_and_add_up(records: Records, clock: Clock) -> None:
    server = Server(records, clock, Bounds(users=PARTS, values=3))
    for number in range(12):
        await server.save(metadata={"project": f"project-{number}"}, usage=tokens(1))
    await server.add_up()
    for number in range(3 * PARTS):
        await server.save(Owner(f"user-{number}"), usage=tokens(1))
    await server.add_up()

    [table] = (await server.read()).values()
    users = {each.user for each in table}
    assert OTHER in users
    assert len(users) <= (2 if partitions_of(records) == 1 else 3) * PARTS
    projects = {each.metadata for each in table if each.user == "ada"}
    assert (len(projects), OTHER in projects) == (4, True)
    assert await server.total("input_tokens") == 12 + 3 * PARTS


async def test_expired_tables_are_gone(records: Records, clock: Clock) -> None:
    server = Server(records, clock, days=5)
    await server.save()
    await server.add_up()
    clock.now += 4 * 86_400
    assert await server.total("requests", MINUTES) == 0
    assert (await server.total("requests", HOURS), await server.total("requests")) == (1, 1)
    clock.now += 3 * 86_400
    assert (await server.total("requests", HOURS), await server.total("requests")) == (0, 0)


async def test_servers_that_add_up_at_once_count_nothing_twice(records: Records, clock: Clock) -> None:
    servers = [Server(records, clock) for _ in range(3)]
    for number in range(40):
        await servers[number % 3].save(usage=tokens(number))

    async def work(server: Server) -> None:
        for number in range(10):
            await server.save(usage=tokens(number))
            await server.add_up()
            assert await server.total("input_tokens") >= sum(range(40))

    await asyncio.gather(*map(work, servers))
    assert await servers[0].total("requests") == 70
    assert await servers[0].total("input_tokens") == sum(range(40)) + 3 * sum(range(10))


async def test_tables_that_another_server_changes_just_before_are_not_overwritten(
    records: Records, clock: Clock
) -> None:
    async def meddle() -> None:
        await other.save(usage=tokens(2))
        await other.add_up()

    other = Server(records, clock)
    await other.save(usage=tokens(1))
    overtaken = Server(just_before_a_commit(records, meddle), clock)
    assert await overtaken.tables.add_some(clock() + 1, other.home) == 0

    assert (await other.total("requests"), await other.total("input_tokens")) == (2, 3)


async def test_tables_whose_version_is_the_same_by_chance_are_not_overwritten(records: Records, clock: Clock) -> None:
    """A failover has lost a change that was read, and another one has taken its place."""

    async def meddle() -> None:
        version = await changed(records, other.home)
        await other.save(usage=tokens(2))
        await other.add_up()
        changes = changes_of(other.home)
        await records.commit([Delete(changes)])
        for _ in range(version or 0):
            await records.commit([Put(changes, b"")])
        assert await changed(records, other.home) == version

    other = Server(records, clock)
    await other.save(usage=tokens(1))
    await other.add_up()
    await other.save(usage=tokens(4))
    overtaken = Server(just_before_a_commit(records, meddle), clock)
    assert await overtaken.tables.add_some(clock() + 1, other.home) == 0

    assert (await other.total("requests"), await other.total("input_tokens")) == (3, 7)


class DyingOnceRead(FailingOver):
    """Records that wait for no replicas, and whose primary dies once the tables are read."""

    async def replicated(self, tag: int, server: str) -> bool:
        return True

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        found = await super().get_many(keys, max_bytes=max_bytes)
        if any(key.startswith(MINUTES.prefix) for key in keys):
            self.die()
        return found

    async def range_in(self, number: int, start: str, *given: Any, **named: Any) -> Any:
        rows = await super().range_in(number, start, *given, **named)
        if start.startswith(DAYS.prefix) and named["limit"] > 1:
            self.die()
        return rows


@pytest.fixture(params=[True, False], ids=["waits for replicas", "does not wait"])
async def failing_over(request: pytest.FixtureRequest, clock: Clock) -> FailingOver:
    """Return records whose first primary and whose second have other tables with the same version."""
    primaries = [MemoryRecords(clock=clock) for _ in range(2)]
    named = (Owner(f"user-{number}") for number in range(9_999))
    in_same_tables = next(each for each in named if part_of("", each.principal, 0) == part_of("", "ada", 0))
    for primary, used in zip(primaries, (2, 4), strict=True):
        server = Server(primary, clock)
        await server.save(usage=tokens(1))
        await server.add_up()
        await server.save(in_same_tables, usage=tokens(used))
        await server.add_up()
    lost, other = primaries
    assert await changed(lost, 0) == await changed(other, 0)
    return FailingOver(lost, other, before=("replicated",)) if request.param else DyingOnceRead(lost, other)


async def test_day_is_summed_again_if_a_failover_loses_what_was_read(failing_over: FailingOver, clock: Clock) -> None:
    clock.now += DAYS.seconds
    await DaySums(failing_over, Decoder(), None).update(clock())
    assert failing_over.server == "second"
    server = Server(failing_over, clock)
    assert len(await failing_over.range("us/s/", "us/s0", limit=9)) == len(SUMS)
    assert (await server.summed([]))[()]["input_tokens"] == 5


async def test_deletion_of_a_day_keeps_what_others_used_if_a_failover_loses_what_was_read(
    failing_over: FailingOver, clock: Clock
) -> None:
    of_users = UsageOfOwners(failing_over, Decoder(), None)
    await of_users.delete(ADA, f"{datetime.fromtimestamp(clock(), UTC):%Y-%m-%d}")
    assert failing_over.server == "second"
    assert await Server(failing_over, clock).total("input_tokens") == 4


async def test_tables_that_change_while_they_are_read_are_read_again(records: Records, clock: Clock) -> None:
    """The tables are read after what is not in them: what is added up in between would count twice."""

    class Changing(WatchedRecords):
        async def range_in(self, number: int, start: str, *given: Any, **named: Any) -> Any:
            rows = await super().range_in(number, start, *given, **named)
            if start.startswith(PENDING):
                await other.add_up()
            return rows

    server, other = Server(records, clock), Server(records, clock)
    for _ in range(3):
        await server.save()
    server.reading = Reading(Changing(records), Decoder())
    assert await server.total("requests") == 3


@pytest.mark.parametrize("committed", [True, False], ids=["made", "not made"])
@pytest.mark.parametrize("adds_up", [True, False], ids=["added up", "not added up"])
async def test_stored_end_whose_answer_is_lost_counts_once(
    records: Records, clock: Clock, *, committed: bool, adds_up: bool
) -> None:
    lossy = ReplyLosingRecords(records)
    server, other = Server(lossy, clock), Server(records, clock)
    lossy.losing, lossy.committed = 1, committed
    ended = response(usage=tokens(5))
    saving = asyncio.create_task(
        save_once(server.archive, ended, "unknown", RETRIES_AT_ONCE, owner=ADA, base=None, input_items=[])
    )
    await until(lambda: lossy.lost > 0)
    if adds_up:
        await other.add_up()
    await saving

    await other.add_up()
    assert (await other.total("requests"), await other.total("input_tokens")) == (1, 5)


@pytest.mark.parametrize("committed", [True, False], ids=["made", "not made"])
async def test_unstored_ends_whose_answers_are_lost_count_once(
    records: Records, clock: Clock, *, committed: bool
) -> None:
    lossy = ReplyLosingRecords(records)
    server = Server(lossy, clock)
    server.archive.ends._retry_seconds = 0.0
    lossy.losing, lossy.committed = 2, committed
    await asyncio.gather(*(server.unstored(usage=tokens(number)) for number in range(100)))

    await server.add_up()
    assert lossy.lost == 2
    assert (await server.total("requests"), await server.total("input_tokens")) == (100, sum(range(100)))


async def test_unstored_ends_share_commits(records: Records, clock: Clock) -> None:
    class Counting(WatchedRecords):
        commits = 0

        async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
            self.commits += 1
            await super().commit(ops, conditions)

    counting = Counting(records)
    server = Server(counting, clock)
    await asyncio.gather(*(server.unstored() for _ in range(100)))

    assert await server.total("requests") == 100
    assert counting.commits <= 3


async def test_store_that_is_away_does_not_hold_unstored_ends_but_gets_them_later(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_stack_responses.store.ends._WAIT_SECONDS", 0.01)
    watched = WatchedRecords(records)
    server = Server(watched, clock)
    server.archive.ends._retry_seconds = 0.0
    watched.away = True
    await server.unstored()
    watched.away = False
    await server.archive.ends.stop()

    assert await server.total("requests") == 1


@pytest.mark.parametrize("seed", range(3))
async def test_killed_servers_lose_and_double_nothing(records: Records, clock: Clock, seed: int) -> None:
    """A server that is killed before, within or after a commit that adds up has committed it or not."""

    class Killed(WatchedRecords):
        async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
            adds_up = any(getattr(op, "key", "").startswith(CHANGES) for op in ops)
            if adds_up and chance.random() < 0.4:
                raise ApiError(503, "killed before")
            await super().commit(ops, conditions)
            if adds_up and chance.random() < 0.4:
                raise Unanswered("killed after", settled(applied=True))

    chance = random.Random(seed)
    sent = 0
    for _ in range(12):
        server = Server(Killed(records), clock)
        for _ in range(chance.randrange(5)):
            number = chance.randrange(1000)
            owner = chance.choice([ADA, BOB])
            await chance.choice([server.save, server.unstored])(owner, usage=tokens(number))
            sent += number
            clock.now += chance.randrange(4000)
        try:
            await server.add_up()
        except ApiError:
            continue

    whole = Server(records, clock)
    assert await whole.total("input_tokens") == sent
    await whole.add_up()
    assert {await whole.total("input_tokens", unit) for unit in (HOURS, DAYS)} == {sent}
