"""Records in partitions: where rows are, what a commit writes elsewhere, and the number of partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id, new_ordered_id, tag_of
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.batches.rows import (
    WORK,
    Batch,
    Line,
    batch_key,
    counter_key,
    lease_key,
    line_rows,
    open_key,
)
from llama_stack_responses.features.code.skills.store import SkillStore, StoredArchive
from llama_stack_responses.features.page.refused.rows import key_of as refused_key
from llama_stack_responses.features.usage.counting import count
from llama_stack_responses.features.usage.rows import SUMS, UNITS, changes_of, parts_of, pending_key
from llama_stack_responses.features.webhooks.rows import (
    Delivery,
    Event,
    configured_id,
    endpoint_key,
    state_key,
)
from llama_stack_responses.features.webhooks.rows import lease_key as endpoint_lease
from llama_stack_responses.store import partitions
from llama_stack_responses.store.access_keys import new_key_id
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher, row_key, tag_of_name
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.ends import Ended, Ends
from llama_stack_responses.store.layout import bucket, listing, reference
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.placement import Placement
from llama_stack_responses.store.records import (
    Condition,
    Conflict,
    Delete,
    Empty,
    Ensure,
    Op,
    Put,
    Record,
    VersionIs,
    after_prefix,
    read_all_replicated,
)
from llama_stack_responses.store.routing import home_of_range, tag_of_key, tag_of_range

type Json = dict[str, Any]

NUMBER: Final = 8
ANNA: Final = Owner("anna")
OF: Final = Hasher(ANNA).owner


class Part(MemoryRecords):
    """A partition that may be away, and knows with how many the store was made."""

    away = False
    refused = 0
    made: int | None = None

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if self.away:
            self.refused += 1
            raise ApiError(503, "away")
        await super().commit(ops, conditions)

    async def made_with(self, number: int, *, makes: bool) -> int | None:
        if makes and self.made is None:
            self.made = number
        return self.made


def new_parts() -> list[Part]:
    return [Part() for _ in range(NUMBER)]


async def keys(part: MemoryRecords) -> list[str]:
    return [key for key, _ in await part.range("!", "~", limit=100)]


def test_rows_of_a_response_and_its_content_have_one_tag() -> None:
    response, hasher = new_id("resp", 1023), Hasher(ANNA, 1023)
    [node] = hasher.histories(None, [{"type": "message", "role": "user", "content": "hi"}])
    rows = [f"r/{response}", f"n/{node}", f"g/n/{node}", reference(node, response), f"b/{hasher.content(b'x')}"]
    rows += [f"i/{hasher.item('msg_1')}", f"j/{hasher.item('msg_1')}/{node[-16:]}", f"j/{response}", f"k/{response}"]
    rows += [listing(OF, "0" * 14, response), bucket(OF, "0" * 14, 1023), f"q/0/{response}", f"h/worker/{response}"]
    rows += [f"y/{OF}/{response}/0/resp_1", f"e/{response}/1", f"z/{response}", f"t/1/{response}"]
    assert {tag_of_key(row) for row in rows} == {1023}
    assert (tag_of(new_id("resp")), tag_of("resp_1"), tag_of_name(Hasher(ANNA).content(b"x"))) == (0, 0, 0)


def test_range_of_one_response_is_in_one_partition() -> None:
    response = new_id("resp", 7)
    assert tag_of_range(f"e/{response}/", f"e/{response}0") == 7
    assert tag_of_range(f"e/{response}/1", f"e/{response}/2") == 7
    assert tag_of_range("al/", "al0") == 0
    assert [tag_of_range(*each) for each in (("l/", "l0"), (f"l/{OF}/", f"l/{OF}0"), ("", "~"))] == [None] * 3


def test_rows_of_a_batch_its_lines_and_their_responses_are_in_the_home_of_its_owner() -> None:
    home = Placement(NUMBER).of_owner(ANNA)
    assert home == Placement(2 * NUMBER).of_owner(ANNA), "ids stay where new ones are in a store with more partitions"
    assert Placement(1).of_owner(ANNA) == 0
    batch = Batch.new_id(1790000000.0, home)
    line = Line(batch, 3, 2)
    rows = [batch_key(OF, batch), open_key(OF, batch), counter_key(OF), lease_key(batch), f"{WORK}{batch}"]
    rows += [line.key("r"), line.key("t"), line.key("d"), line.key("n"), line.key("i"), f"r/{line.response_id}"]
    assert {tag_of_key(row) for row in rows} == {home}
    assert home > 0
    assert Line.of_response(line.response_id) == line
    assert tag_of_range(line_rows("r", batch), after_prefix(line_rows("r", batch))) == home
    assert [tag_of_range(each, after_prefix(each)) for each in ("bt/", WORK, batch_key(OF, ""))] == [None] * 3
    assert home_of_range(batch_key(OF, ""), batch_key(OF, batch)) == home
    assert home_of_range("bt/o/", "bt/o0") is None
    assert tag_of_range("bt/x/", "bt/x0") == 0


def test_event_of_a_webhook_is_where_its_response_is_and_deliveries_where_their_endpoint_is() -> None:
    home = Placement(NUMBER).of_owner(ANNA)
    event = Event("response.completed", new_id("resp", 3), OF, 1790000000.0)
    assert tag_of_key(event.put(0.0).key) == 3
    for endpoint, tag in ((new_ordered_id("we", 0, home), home), (configured_id("https://hooks.example"), 0)):
        delivery = Delivery.of_event(event, endpoint, 0.0)
        rows = [delivery.put(0.0).key, delivery.queued(OF, 1.0).key, endpoint_lease(endpoint), state_key(endpoint)]
        assert {tag_of_key(row) for row in [*rows, endpoint_key(OF, endpoint)]} == {tag}
    assert tag_of_key(f"wh/c/{OF}") == home_of_range(endpoint_key(OF, ""), after_prefix(endpoint_key(OF, ""))) == home


def test_usage_skills_and_refused_requests_are_in_the_home_of_their_owner() -> None:
    home = Placement(NUMBER).of_owner(ANNA)
    used = pending_key(1790000000.0, new_id("resp", 3), home)
    assert tag_of_key(used) == home
    parts = parts_of(ANNA)
    assert {tag_of_key(unit.key(5, part)) % 1024 for unit in UNITS for part in parts} == {0, home % 1024}
    assert [tag_of_key(key) for key in (changes_of(7), SUMS[0].key(20_000, 7))] == [7, 7]
    skill = SkillStore(PartitionedRecords(new_parts())).new_id(ANNA, 0)
    archive = StoredArchive(f"6ab0{0:020x}.{home:03x}", 1, "")
    rows = [f"sk/{OF}/{skill}", f"sv/{skill}/000001", archive.key, *archive.parts, f"so/{OF}.{home:03x}"]
    assert {tag_of_key(row) for row in rows} == {home}
    assert tag_of_range(f"sv/{skill}/", f"sv/{skill}0") == home
    assert tag_of_key(refused_key(ANNA, "0" * 14, "0" * 10, home)) == home
    assert {tag_of_key(row) for row in (f"d/{OF}/resp_1", f"ce/{OF}", f"up/{OF}/004")} == {home}
    for prefix in (f"sk/{OF}/", f"rf/{OF}/"):
        assert home_of_range(prefix, after_prefix(prefix)) == home
    assert [tag_of_key(row) for row in (f"sk/{OF}/skill_1", "sv/skill_1/000001", "us/p/1/resp_1", f"so/{OF}")] == [
        0
    ] * 4


async def test_unstored_ends_wait_for_no_partition_but_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_stack_responses.store.ends._WAIT_SECONDS", 0.01)
    parts = new_parts()
    records = PartitionedRecords(parts)
    placement = Placement(NUMBER)
    bert = Owner("bert")
    homes = [placement.of_owner(each) % NUMBER for each in (ANNA, bert)]
    assert homes[0] != homes[1]
    ends = Ends(records, [partial(count, None, placement)], [], 0.0)
    parts[homes[0]].away = True
    for owner in (ANNA, bert):
        await ends.unstored(Ended({"id": "resp_1", "model": "m", "status": "completed"}, owner, None, 1.0))
    assert [len(await keys(parts[each])) for each in homes] == [0, 1]
    parts[homes[0]].away = False
    await ends.stop()
    assert [len(await keys(parts[each])) for each in homes] == [1, 1]


async def test_lists_at_home_have_what_came_from_a_store_without_partitions() -> None:
    records = PartitionedRecords(new_parts())
    home = Placement(NUMBER).of_owner(ANNA)
    keys = [batch_key(OF, Batch.new_id(second, tag)) for second, tag in ((1.0, 0), (2.0, home))]
    await records.commit([Put(key, b"") for key in keys])
    found = await records.range(batch_key(OF, ""), after_prefix(batch_key(OF, "")), limit=9)
    assert [key for key, _ in found] == keys


def test_batch_from_a_store_without_partitions_stays_whole() -> None:
    batch = Batch.new_id(1790000000.0)
    line = Line(batch, 3)
    rows = [batch_key(OF, batch), open_key(OF, batch), f"{WORK}{batch}", line.key("r"), f"r/{line.response_id}"]
    assert {tag_of_key(row) for row in rows} == {0}
    assert Line.of_response(line.response_id) == line


def test_keys_and_what_counts_for_limits_are_spread_and_all_of_one_is_in_one_partition() -> None:
    key = new_key_id().removeprefix("key_")
    assert tag_of_key(f"ak/{key}") == tag_of_key(f"au/{key}") == int(key[:3], 16)
    for prefix in ("ub/", "ur/", "uq/0000abcd/", "uj/"):
        row = row_key(prefix, "user anna")
        assert tag_of_key(row) == tag_of_key(f"{row}/resp_1") == tag_of_key(row_key("ub/", "user anna"))
        assert tag_of_range(f"{row}/", f"{row}0") in (tag_of_key(row), None)
        assert len({tag_of_key(row_key(prefix, f"user {number}")) % NUMBER for number in range(200)}) == NUMBER
    assert tag_of_range(f"{row_key('uj/', 'anna')}/", f"{row_key('uj/', 'anna')}0") == tag_of_key(
        row_key("uj/", "anna")
    )
    assert (tag_of_key("ubr"), tag_of_key("ak/x")) == (0, 0)


async def test_rows_of_other_partitions_follow_a_commit_and_leave_no_note() -> None:
    parts = new_parts()
    records, response = PartitionedRecords(parts), new_id("resp", 3)
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/1", b"2")], [VersionIs(f"r/{response}", None)])
    assert await keys(parts[3]) == [f"r/{response}"]
    assert [key for key in await keys(parts[0]) if not key.startswith("oa/")] == ["us/p/1"]


async def test_conflict_writes_nothing_in_any_partition() -> None:
    parts = new_parts()
    records, response = PartitionedRecords(parts), new_id("resp", 3)
    with pytest.raises(Conflict):
        await records.commit([Put(f"r/{response}", b"1"), Put("us/p/1", b"2")], [VersionIs(f"r/{response}", 1)])
    assert [await keys(part) for part in parts] == [[]] * NUMBER


async def test_rows_for_a_partition_that_is_away_follow_once_it_is_back() -> None:
    parts = new_parts()
    records, response = PartitionedRecords(parts), new_id("resp", 3)
    parts[0].away = True
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/1", b"2"), Delete("us/p/0")])
    parts[0].away = False
    assert await keys(parts[0]) == []
    await PartitionedRecords(parts).sweep(0)
    assert [key for key in await keys(parts[0]) if not key.startswith("oa/")] == ["us/p/1"]
    assert await keys(parts[3]) == [f"r/{response}"]


async def test_partition_that_takes_commits_again_is_not_away_for_what_is_noted_for_it() -> None:
    parts = new_parts()
    records = PartitionedRecords(parts)
    parts[0].away = True
    await records.commit([Put(f"r/{new_id('resp', 3)}", b""), Put("us/p/1", b"")])
    parts[0].away = False
    await records.commit([Put("us/p/2", b"")])
    await records.sweep(0)
    assert (await records.get_many(["us/p/1"])).keys() == {"us/p/1"}


async def test_rows_in_another_partition_are_never_written_twice() -> None:
    parts = new_parts()
    records, response = PartitionedRecords(parts), new_id("resp", 3)

    class Dies(Part):
        async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
            await super().commit(ops, conditions)
            parts[3].away = True

    parts[0] = Dies()
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/1", b"2")])
    parts[3].away, parts[0].__class__ = False, Part
    assert len(await keys(parts[3])) == 2, "the note is left"
    await records.commit([Delete("us/p/1")])  # its value was added to a sum meanwhile
    await records.sweep(0)
    assert not [key for key in await keys(parts[0]) if key.startswith("us/")]
    assert await keys(parts[3]) == [f"r/{response}"]


class FailingOver(Part):
    """A partition whose primary dies once its notes were read, with all of them: no replica has them."""

    primary = "first"

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        found = await super().range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        if self.primary == "first":
            self.primary = "second"
            await super().commit([Delete(key) for key, _ in found])
        return found

    def server_of(self, tag: int) -> str:
        return self.primary

    async def replicated(self, tag: int, server: str) -> bool:
        return server == self.primary


async def test_what_a_primary_alone_had_is_not_written_in_another_partition() -> None:
    parts = new_parts()
    parts[3] = FailingOver()
    records, response = PartitionedRecords(parts), new_id("resp", 3)
    parts[0].away = True
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/1", b"2")])
    parts[0].away = False
    await PartitionedRecords(parts).apply_noted(3)
    assert await keys(parts[0]) == [], "its commit is lost, and is made again with another note"


class OnServers(Part):
    """A partition that moves to the next server with each reading; the last one alone has its rows."""

    def __init__(self, waits: list[str], *servers: str) -> None:
        super().__init__()
        self._waits, self._servers = waits, list(servers)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        if len(self._servers) > 1:
            self._servers.pop(0)
            return []
        return await super().range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    def server_of(self, _tag: int) -> str:
        return self._servers[0]

    async def replicated(self, _tag: int, server: str) -> bool:
        self._waits.append(server)
        return server == self._servers[0]


async def test_rows_of_all_partitions_wait_once_for_each_server_and_are_read_again_if_one_has_moved() -> None:
    waits = list[str]()
    moved, *others = parts = [OnServers(waits, *servers) for servers in ("ab", "a", "b", "a")]
    await moved.commit([Put("co/1", b"")])
    rows = partial(PartitionedRecords(parts).range, "co/", "co0", limit=9)
    assert await read_all_replicated(PartitionedRecords(parts), rows, lambda rows: not rows)
    assert waits == ["a", "b"]
    waits.clear()
    rows = partial(PartitionedRecords(others).range, "co/", "co0", limit=9)
    assert not await read_all_replicated(PartitionedRecords(others), rows, lambda rows: not rows)
    assert waits == ["a", "b"]


class Slow(Part):
    """A partition of which the time passes: the loop's when its notes were read, or are deleted."""

    passes: Callable[[float], None] | None = None

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        if self.passes and isinstance(ops[0], Delete):
            self.passes(100.0)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        found = await super().range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        if self.passes:
            self.passes(100.0)
        return found


@pytest.fixture
async def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time of the event loop pass."""
    loop = asyncio.get_running_loop()
    time, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: time() + sum(passed))
    return passed.append


async def test_note_that_was_read_long_ago_is_left_to_who_reads_it_again(passes: Callable[[float], None]) -> None:
    parts = new_parts()
    slow = parts[3] = Slow()
    records, response = PartitionedRecords(parts), new_id("resp", 3)
    parts[0].away = True
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/1", b"2")])
    parts[0].away = False
    slow.passes = passes
    await PartitionedRecords(parts).apply_noted(3)
    assert await keys(parts[0]) == [], "another process may have applied it long ago"
    slow.passes = None
    await PartitionedRecords(parts).apply_noted(3)
    assert (await records.get_many(["us/p/1"])).keys() == {"us/p/1"}


async def test_mark_of_an_applied_note_stays_for_a_while_after_the_note(passes: Callable[[float], None]) -> None:
    parts = new_parts()
    slow = parts[3] = Slow()
    records, response = PartitionedRecords(parts), new_id("resp", 3)

    async def marks() -> int:
        return sum(key.startswith("oa/") for key in await keys(parts[0]))

    slow.passes = passes
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/1", b"2")])
    slow.passes = None
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/2", b"2")])
    assert await marks() == 2, "the first note was there until a moment ago"
    passes(1000.0)
    await records.commit([Put(f"r/{response}", b"1"), Put("us/p/3", b"2")])
    assert await marks() == 1


async def test_tag_of_an_owner_is_noted_before_the_commit_that_uses_it() -> None:
    parts = new_parts()
    records, response = PartitionedRecords(parts), new_id("resp", 4)
    home = tag_of_key(f"up/{OF}/004") % NUMBER
    assert home != 4
    parts[4].away = True
    with pytest.raises(ApiError):
        await records.commit([Ensure(f"up/{OF}/004", b""), Put(f"r/{response}", b"1")])
    assert await keys(parts[home]) == [f"up/{OF}/004"]


async def test_one_request_at_a_time_waits_for_a_partition_that_is_away(passes: Callable[[float], None]) -> None:
    parts = new_parts()
    records, response = PartitionedRecords(parts), new_id("resp", 4)
    home = tag_of_key(f"up/{OF}/004") % NUMBER
    commit: list[Op] = [Ensure(f"up/{OF}/004", b""), Put(f"r/{response}", b"1")]
    parts[home].away = True
    for _ in range(3):
        await records.commit(commit)
    assert parts[home].refused == 1
    passes(partitions._AWAY_SECONDS + 1)
    await asyncio.gather(*(records.commit(commit) for _ in range(3)))
    assert parts[home].refused == 2
    parts[home].away = False
    passes(partitions._AWAY_SECONDS + 1)
    await records.commit(commit)
    assert await keys(parts[home]) == [f"up/{OF}/004"]


class Named(Part):
    """A partition on a server with a name."""

    primary = ""

    def server_of(self, _tag: int) -> str:
        return self.primary

    async def replicated(self, _tag: int, server: str) -> bool:
        return server == self.primary


async def talk_with_lost_tag(records: PartitionedRecords, home: Part) -> Conversation:
    """Store a conversation as the first of a user with its tag; a failover loses only that the user has the tag."""
    talk = Conversation(new_id("conv", 4), ANNA, 1790000000, {})
    await Archive(records).conversations.create(talk, [{"type": "message", "id": "msg_own"}])
    await MemoryRecords.commit(home, [Delete(f"up/{OF}/004")])
    assert await found_items(records) == []
    return talk


async def found_items(records: PartitionedRecords) -> list[str]:
    return [item_id async for item_id, _ in Archive(records).find_items(ANNA, ["msg_own"])]


async def test_tag_of_an_owner_that_a_failover_lost_is_written_again(passes: Callable[[float], None]) -> None:
    home = tag_of_key(f"up/{OF}/004") % NUMBER
    parts: list[Part] = [Named() if number == home else Part() for number in range(NUMBER)]
    records, there = PartitionedRecords(parts), parts[home]
    assert isinstance(there, Named)
    other = Put(f"r/{new_id('resp', 1)}", b"")
    await talk_with_lost_tag(records, there)
    for primary, away in (("first", False), ("", False), ("first", False), ("second", True)):
        there.primary, there.away = primary, away
        passes(partitions._LOOK_SECONDS + partitions._AWAY_SECONDS)
        await records.commit([other])
        assert await found_items(records) == [], "no other primary is known that answers"
    there.away = False
    await records.commit([other])
    assert await found_items(records) == [], "it has been looked just before"
    passes(partitions._LOOK_SECONDS + partitions._AWAY_SECONDS)
    await records.commit([other])
    assert await found_items(records) == ["msg_own"]


async def test_tag_of_an_owner_that_a_failover_lost_is_written_again_with_items_of_the_conversation() -> None:
    parts = new_parts()
    talk = await talk_with_lost_tag(PartitionedRecords(parts), parts[tag_of_key(f"up/{OF}/004") % NUMBER])
    server = PartitionedRecords(parts)
    assert await Archive(server).conversations.add(talk, [{"type": "message", "id": "msg_more"}])
    assert await found_items(server) == ["msg_own"]


async def test_conditions_in_several_partitions_are_a_defect() -> None:
    records = PartitionedRecords(new_parts())
    with pytest.raises(RuntimeError, match="in several partitions"):
        await records.commit([], [VersionIs(f"r/{new_id('resp', each)}", None) for each in (1, 2)])


async def test_empty_range_of_many_partitions_counts_where_the_commit_is() -> None:
    parts, row = new_parts(), bucket(OF, "0000", 2)
    records = PartitionedRecords(parts)
    await records.commit([Put(row, b"")])
    await records.commit([Put(listing(OF, "00001", new_id("resp", 3)), b"")])
    await records.commit([Delete(row)], [Empty(f"l/{OF}/0000")])
    assert await keys(parts[2]) == []


async def test_reads_of_several_partitions_are_those_of_one_store() -> None:
    several, one, chance = PartitionedRecords(new_parts()), MemoryRecords(), random.Random(5)
    rows = [listing(OF, f"{chance.randrange(99):04}", new_id("resp", chance.randrange(NUMBER))) for _ in range(60)]
    for row in rows:
        value = b"x" * chance.randrange(20)
        for records in (several, one):
            await records.commit([Ensure(f"up/{OF}/{tag_of_key(row):03x}", b""), Put(row, value)])
    for _ in range(200):
        start, end = sorted(f"l/{OF}/{chance.randrange(99):04}" for _ in range(2))
        limit, max_bytes = chance.randrange(1, 30), chance.choice([None, 5, 50, 200])
        reverse, some = chance.random() < 0.5, chance.sample(rows, 20)
        read = [
            await each.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes) for each in (several, one)
        ]
        assert read[0] == read[1]
        found = [await each.get_many(some, max_bytes=max_bytes) for each in (several, one)]
        assert list(found[0].items()) == list(found[1].items())


async def test_store_is_only_opened_with_the_partitions_that_it_was_made_with() -> None:
    parts = new_parts()
    assert await PartitionedRecords(parts[:1]).get_many(["al/1"]) == {}, "it is not made yet"
    await PartitionedRecords(parts).commit([Put("al/1", b"")])
    assert list(await PartitionedRecords(parts).get_many(["al/1"])) == ["al/1"]
    for number in (1, 4):
        with pytest.raises(ApiError, match="was made with 8 partitions, and its settings have") as error:
            await PartitionedRecords(parts[:number]).get_many(["al/1"])
        assert error.value.status == 503
        with pytest.raises(ApiError, match="was made with 8 partitions, and its settings have"):
            await anext(PartitionedRecords(parts[:number]).snapshot())


async def test_store_of_which_a_partition_is_away_is_there() -> None:
    """Commands ask for this first: some show what is away."""

    class Made(Part):
        async def exists(self) -> bool:
            if self.away:
                raise ApiError(503, "away")
            return self.made is not None

    parts = [Made() for _ in range(NUMBER)]
    store = PartitionedRecords(parts)
    assert not await store.exists()
    parts[3].away = True
    with pytest.raises(ApiError, match="away"):
        await store.exists()
    parts[5].made = NUMBER
    assert await store.exists()


async def test_losses_and_room_are_those_of_each_server_once() -> None:
    class OnServer(Part):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def server(self) -> str:
            return self.name

        async def size(self) -> int:
            return len(self.name)

        async def free(self) -> int | None:
            return 10 if self.name == "full" else None

        async def losses(self) -> Mapping[str, str]:
            return {"crash": "set appendonly"} if self.name == "volatile" else {}

    records = PartitionedRecords([OnServer(name) for name in ("good", "full", "good", "volatile")])
    assert await records.size() == len("good" + "full" + "volatile")
    assert await records.free() == 10
    assert await records.losses() == {"crash": "set appendonly"}
    assert await PartitionedRecords([OnServer("volatile")]).losses() == {"crash": "set appendonly"}


def test_resent_conversation_is_in_the_partition_of_its_beginning() -> None:
    placement = Placement(1024)
    system: Json = {"type": "message", "role": "system", "content": "Be brief."}
    first: list[Json] = [system, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    answer: Json = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
    tag = placement.of_response(ANNA, None, first)
    assert (
        placement.of_response(ANNA, None, [*first, answer, {"type": "message", "role": "user", "content": "x"}]) == tag
    )
    assert placement.of_response(ANNA, new_id("resp", 9), first) == 9
    others: list[list[Json]] = [
        [system, {"type": "message", "role": "user", "content": f"{each}"}] for each in range(50)
    ]
    assert len({placement.of_response(ANNA, None, each) for each in others}) > 40
    assert Placement(1).of_response(ANNA, None, first) == 0
