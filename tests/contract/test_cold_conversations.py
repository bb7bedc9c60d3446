"""Items of idle conversations are packed into an object store and come back unchanged, on every backend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.cold import conversations
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.prefixes import CHAINS, HELD
from llama_stack_responses.features.cold.rows import place_of
from llama_stack_responses.features.cold.stored import PackedChains
from llama_stack_responses.features.cold.unconfigured import UnconfiguredRecords
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.codec import TooLarge
from llama_stack_responses.store.conversation_store import Conversation, stand_in
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.read_allowance import ReadAllowance
from llama_stack_responses.store.records import Put, Records
from llama_stack_responses.store.search_index import index_of
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, Json, Prose, assistant, new_id, response, stored_item, user
from tests.contract.counting_proxy import CountingProxy
from tests.contract.test_cold import ALICE, DAY, HOUR, left, pack
from tests.contract.test_conversations import answer_in, turn
from tests.contract.test_moving import Move
from tests.support.cold import AFTER, ColdStore, in_folder, pack_with
from tests.support.records import WatchedRecords

pytestmark = pytest.mark.needs("transactions")


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs have four items at most."""
    monkeypatch.setattr(conversations, "RUN_ITEMS", 4)


@pytest.fixture
def cold(records: Records, clock: Clock, tmp_path: Path) -> ColdStore:
    return ColdStore(records, in_folder(tmp_path), clock)


async def begin(archive: Archive, clock: Clock, *items: Json) -> Conversation:
    conversation = Conversation(new_id("conv"), ALICE, CREATED, {"topic": "demo"}, used_at=int(clock.now))
    await archive.conversations.create(conversation, items)
    return await now(archive, conversation)


async def now(archive: Archive, conversation: Conversation) -> Conversation:
    found = await archive.conversations.load(conversation.id)
    assert found
    return found


def questions(count: int, first: int = 0) -> list[Json]:
    return [user(f"question {number}") for number in range(first, first + count)]


async def runs(cold: ColdStore) -> int:
    """Return how many chains are packed."""
    return len(await cold.paged.range(CHAINS, "co0", limit=100))


async def hot_items(cold: ColdStore) -> int:
    """Return how many items are in the store."""
    return sum(place_of(*row) is None for row in await cold.hot.range("m/", "m0", limit=1000))


async def items_of(archive: Archive, conversation: Conversation) -> list[Json]:
    return await archive.conversations.items(conversation.id, (await now(archive, conversation)).end)


@pytest.mark.every_store
async def test_packed_items_come_back_unchanged_and_the_conversation_goes_on(cold: ColdStore, clock: Clock) -> None:
    items = questions(9)
    conversation = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    assert (await hot_items(cold), await runs(cold)) == (0, 3)
    # In a store without an index, what finds the items is in pages.
    assert bool(await cold.hot.range("j/", "j0", limit=1)) == (index_of(cold.hot) is not None)
    assert await stored_item(cold.archive, ALICE, items[5]["id"]) == items[5]
    assert (await hot_items(cold), await runs(cold)) == (4, 2)
    assert await cold.archive.conversations.find(conversation, items[2]["id"]) == items[2]
    assert await items_of(cold.archive, conversation) == items
    assert (await hot_items(cold), await runs(cold)) == (9, 0)
    further = [assistant("answer")]
    assert await cold.archive.conversations.add(conversation, further)
    await cold.packing.work()
    assert await hot_items(cold) == 10
    await pack(cold, clock)
    assert await hot_items(cold) == 0
    assert await items_of(cold.archive, conversation) == items + further


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_page_brings_back_only_the_runs_that_it_is_in(cold: ColdStore, clock: Clock, order: str) -> None:
    items = questions(20)
    listed = items if order == "asc" else items[::-1]
    conversation = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    assert await runs(cold) == 5
    after = None
    for at, run in ((0, 1), (3, 2), (6, 3), (9, 3), (12, 4)):
        page, has_more = await cold.archive.conversations.page(conversation, limit=3, after=after, order=order)  # type: ignore[arg-type]
        assert (page, has_more) == (listed[at : at + 3], True)
        assert await runs(cold) == 5 - run
        after = page[-1]["id"]
    page, has_more = await cold.archive.conversations.page(conversation, limit=9, after=after, order=order)  # type: ignore[arg-type]
    assert (page, has_more) == (listed[15:], False)


async def test_recent_items_bring_back_the_last_runs(cold: ColdStore, clock: Clock) -> None:
    prose = Prose()
    items = [user(prose.text(2_000)) for _ in range(20)]
    conversation, store = await begin(cold.archive, clock, *items), cold.archive.conversations
    await pack(cold, clock)
    recent = await store.recent(conversation.id, 19, ReadAllowance(9_000))
    assert recent
    assert recent == items[19 - len(recent) : 19]
    assert 1 < await runs(cold) < 5
    assert await store.opening(conversation.id, 20, 4_000, ReadAllowance()) == items[:1]
    with pytest.raises(TooLarge):
        await store.items(conversation.id, 20, ReadAllowance(9_000))
    assert await store.newest(conversation.id, 11, 1) == items[10:11]


@pytest.mark.every_store
async def test_packed_conversation_is_deleted_without_the_object_store(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    conversation = await begin(cold.archive, clock, *questions(9))
    await pack(cold, clock)
    await cold.packing.work()
    (tmp_path / "cold").rename(tmp_path / "away")
    assert await cold.archive.conversations.delete(conversation.id)
    assert not await cold.archive.conversations.delete(conversation.id)
    assert await left(cold.hot, clock, cold.archive) == []
    (tmp_path / "away").rename(tmp_path / "cold")
    await cold.packing.collect()
    assert await cold.stored() == {}


async def test_conversation_is_deleted_without_the_responses_that_have_its_items(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    """What finds the items leads to these responses, which stay packed."""
    conversation, made = await begin(cold.archive, clock), list[str]()
    for number in range(3):
        created = answer_in(conversation, assistant(f"answer {number}"))
        await turn(cold.archive, conversation, user(f"question {number}"), created)
        conversation = await now(cold.archive, conversation)
        made.append(created["id"])
    await pack(cold, clock)
    await cold.packing.work()
    assert await cold.packed() == {*made}
    (tmp_path / "cold").rename(tmp_path / "away")
    assert await cold.archive.conversations.delete(conversation.id)
    assert [key for key, _ in await cold.paged.range("!", "~", limit=1000) if conversation.id in key] == []
    assert await cold.packed() == {*made}
    for each in made:
        assert await cold.archive.delete(each)
    assert await left(cold.hot, clock, cold.archive) == []


async def test_only_packed_items_fail_while_the_object_store_is_away(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    items = questions(6)
    conversation = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    (tmp_path / "cold").rename(tmp_path / "away")
    new = questions(2, 6)
    assert await cold.archive.conversations.add(conversation, new)
    assert await cold.archive.conversations.set_metadata(conversation.id, {})
    assert await stored_item(cold.archive, ALICE, new[0]["id"]) == new[0]
    conversation = await now(cold.archive, conversation)
    page = await cold.archive.conversations.page(conversation, limit=1, after=None, order="desc")
    assert page == (new[1:], True)
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: items_of(cold.archive, conversation),
        lambda: cold.archive.conversations.find(conversation, items[2]["id"]),
        lambda: cold.archive.conversations.remove(conversation, items[2]["id"]),
    ]
    for read in reads:
        with pytest.raises(ApiError) as refused:
            await read()
        assert refused.value.status == 503
        assert refused.value.retry_after
    (tmp_path / "away").rename(tmp_path / "cold")
    assert await items_of(cold.archive, conversation) == items + new


async def test_removed_item_stays_removed(cold: ColdStore, clock: Clock) -> None:
    items = questions(9)
    conversation = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    for number in (5, 0):
        assert await cold.archive.conversations.remove(conversation, items[number]["id"])
        assert not await cold.archive.conversations.remove(conversation, items[number]["id"])
        assert await stored_item(cold.archive, ALICE, items[number]["id"]) is None
    await pack(cold, clock)
    await pack(cold, clock)
    assert await hot_items(cold) == 0
    assert await items_of(cold.archive, conversation) == [*items[1:5], *items[6:]]
    await cold.archive.conversations.delete(conversation.id)
    assert await left(cold.hot, clock, cold.archive) == []


async def test_item_of_a_packed_conversation_that_another_has_too_is_found_as_long_as_one_has_it(
    cold: ColdStore, clock: Clock
) -> None:
    items, store = questions(3), cold.archive.conversations
    first = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    second = await begin(cold.archive, clock, items[1])
    for each in (first, second):
        assert await stored_item(cold.archive, ALICE, items[1]["id"]) == items[1]
        assert await store.find(each, items[1]["id"]) == items[1]
        await store.delete(each.id)
    assert await stored_item(cold.archive, ALICE, items[1]["id"]) is None


async def test_item_of_a_packed_response_that_a_conversation_gets_is_found_as_long_as_one_has_it(
    cold: ColdStore, clock: Clock
) -> None:
    for is_read in (False, True):
        created = response(assistant("answer"), created_at=int(clock.now))
        await cold.archive.save(created, owner=ALICE, base=None, input_items=[user("question")])
        item = created["output"][0]
        await pack(cold, clock)
        conversation = await begin(cold.archive, clock)
        assert await cold.archive.conversations.add(conversation, [item])
        made = [conversation, await begin(cold.archive, clock, item)]
        if is_read:
            assert await cold.archive.load(created["id"])
        await cold.archive.delete(created["id"])
        for each in made:
            assert await stored_item(cold.archive, ALICE, item["id"]) == item
            await cold.archive.conversations.delete(each.id)
        assert await stored_item(cold.archive, ALICE, item["id"]) is None
    assert await left(cold.hot, clock, cold.archive) == []


async def test_packed_pointer_to_an_item_that_another_conversation_gets_is_deleted_with_its_own(
    cold: ColdStore, clock: Clock
) -> None:
    items = questions(3)
    first = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    second = await begin(cold.archive, clock, items[1])
    third = await begin(cold.archive, clock)
    assert await cold.archive.conversations.add(third, [items[1]])
    for each in (first, second, third):
        assert await stored_item(cold.archive, ALICE, items[1]["id"]) == items[1]
        await cold.archive.conversations.delete(each.id)
    assert await left(cold.hot, clock, cold.archive) == []


async def test_damaged_item_leaves_its_conversation_in_the_store(
    cold: ColdStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one is packed."""
    damaged = await begin(cold.archive, clock, *questions(2))
    await begin(cold.archive, clock, *questions(3))
    await cold.hot.commit([Put(f"m/{damaged.id}/00000001", b"\x0edamaged")])
    await pack(cold, clock)
    assert (await hot_items(cold), await runs(cold)) == (2, 1)
    assert "cannot be read, leaving it" in caplog.text


async def test_idle_conversation_expires_while_it_is_packed(cold: ColdStore, clock: Clock, tmp_path: Path) -> None:
    await begin(cold.archive, clock, *questions(5))
    await pack(cold, clock)
    (tmp_path / "cold").rename(tmp_path / "away")
    clock.now += 30 * DAY
    assert await cold.archive.conversations.expire(cold.archive.horizon(clock.now).oldest) == 1
    assert await left(cold.hot, clock, cold.archive) == []


async def test_response_continues_a_packed_conversation(cold: ColdStore, clock: Clock) -> None:
    items = questions(6)
    conversation = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    question, created = user("new"), response(assistant("answer"), conversation={"id": conversation.id})
    created["created_at"] = int(clock.now)
    await cold.archive.save(created, owner=ALICE, base=None, input_items=[stand_in(conversation), question])
    stored = await cold.archive.load(created["id"])
    assert stored
    assert await cold.archive.history(stored.input) == [*items, question]
    whole = [*items, question, *created["output"]]
    assert await items_of(cold.archive, conversation) == whole
    for _ in range(2):
        await pack(cold, clock)
    assert await hot_items(cold) == 0
    again = await cold.archive.load(created["id"])
    assert again
    assert await cold.archive.history(again.input) == [*items, question]
    await cold.archive.conversations.delete(conversation.id)
    assert await stored_item(cold.archive, ALICE, question["id"]) == question
    await cold.archive.delete(created["id"])
    assert await left(cold.hot, clock, cold.archive) == []


@pytest.mark.every_store
async def test_two_servers_pack_and_bring_back_at_once(
    records: Records, cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    other = ColdStore(records, in_folder(tmp_path), clock)
    items = [questions(6) for _ in range(4)]
    made = [await begin(cold.archive, clock, *each) for each in items]
    clock.now += AFTER + HOUR
    await asyncio.gather(cold.packing._pack(), other.packing._pack(), return_exceptions=True)
    await cold.packing._pack()
    assert (await hot_items(cold), await runs(cold)) == (0, 8)
    read = [items_of(each.archive, conversation) for conversation in made for each in (cold, other)]
    assert await asyncio.gather(*read) == [each for each in items for _ in range(2)]
    assert await runs(cold) == 0


async def test_one_server_looks_for_an_item_that_another_brings_back(
    records: Records, cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    """The other one does it between the two reads that say whether an item within a run is packed."""
    items = questions(4)
    conversation = await begin(cold.archive, clock, *items)
    await pack(cold, clock)
    came_back = False

    async def bring(name: str) -> None:
        nonlocal came_back
        if name == "get_many" and not came_back:
            came_back = True
            await items_of(cold.archive, conversation)

    there = ColdStore(WatchedRecords(records, after=bring), in_folder(tmp_path), clock)
    row = f"m/{conversation.id}/00000001"
    assert row in await there.records.get_many([row])


async def meddled(
    records: Records, clock: Clock, tmp_path: Path, meddle: Callable[[ColdStore, Conversation], Awaitable[object]]
) -> tuple[ColdStore, Conversation]:
    """Pack a conversation, and do something right before the commit that takes its items out of the store."""
    here = ColdStore(records, in_folder(tmp_path), clock)
    made = await begin(here.archive, clock, *questions(4))
    clock.now += AFTER + HOUR
    await pack_with(here, lambda: meddle(here, made))
    return here, made


async def test_conversation_that_is_deleted_while_it_is_packed_leaves_nothing(
    records: Records, clock: Clock, tmp_path: Path
) -> None:
    async def delete(here: ColdStore, made: Conversation) -> None:
        assert await here.archive.conversations.delete(made.id)

    here, _ = await meddled(records, clock, tmp_path, delete)
    assert await left(records, clock, here.archive) == []
    await here.packing.collect()
    assert await here.stored() == {}


async def test_item_that_is_removed_while_it_is_packed_stays_removed(
    records: Records, clock: Clock, tmp_path: Path
) -> None:
    async def remove(here: ColdStore, made: Conversation) -> None:
        second = (await items_of(here.archive, made))[1]
        assert await here.archive.conversations.remove(made, second["id"])

    here, made = await meddled(records, clock, tmp_path, remove)
    assert await hot_items(here) == 3
    assert [each["content"][0]["text"] for each in await items_of(here.archive, made)] == [
        f"question {number}" for number in (0, 2, 3)
    ]


async def test_conversation_that_goes_on_while_it_is_packed_stays(
    records: Records, clock: Clock, tmp_path: Path
) -> None:
    async def add(here: ColdStore, made: Conversation) -> None:
        assert await here.archive.conversations.add(made, [user("new")])

    here, _ = await meddled(records, clock, tmp_path, add)
    assert (await hot_items(here), await runs(here)) == (5, 0)


async def test_item_that_is_packed_while_it_is_removed_is_removed(
    records: Records, cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    """The removal has read where the item is, and it is packed before its commit, or before it reads the item."""
    for times in (1, 2):
        items = questions(6)
        conversation = await begin(cold.archive, clock, *items)
        await cold.archive.conversations.add(conversation, [])
        clock.now += AFTER + HOUR
        left_over = times

        async def work(name: str) -> None:
            nonlocal left_over
            left_over -= name == "get_many"
            if not left_over:
                await cold.packing.work()

        there = ColdStore(WatchedRecords(records, after=work), in_folder(tmp_path), clock)
        assert await there.archive.conversations.remove(conversation, items[1]["id"])
        assert await items_of(cold.archive, conversation) == [items[0], *items[2:]]
        await cold.archive.conversations.delete(conversation.id)
    clock.now += HOUR
    await cold.packing.work()
    assert await left(records, clock, cold.archive) == []


async def test_object_with_items_of_which_most_is_left_over_is_rewritten(cold: ColdStore, clock: Clock) -> None:
    prose = Prose()
    items = [[user(prose.text(300)) for _ in range(5)] for _ in range(4)]
    made = [await begin(cold.archive, clock, *each) for each in items]
    await pack(cold, clock)
    [(old, size)] = (await cold.stored()).items()
    for each in made[1:]:
        await cold.archive.conversations.delete(each.id)
    for _ in range(2):
        await cold.packing.work()
    [(new, smaller)] = (await cold.stored()).items()
    assert new != old
    assert smaller < size / 2
    assert await items_of(cold.archive, made[0]) == items[0]


@pytest.mark.parametrize("changed", [lambda data: data[:-1] + b"?", lambda data: data[:-1]], ids=["other", "short"])
async def test_object_that_is_damaged_fails_by_itself_and_others_are_packed_and_read(
    cold: ColdStore, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: Callable[[bytes], bytes]
) -> None:
    """Most of it is left over, so it would be rewritten."""
    items = [questions(8), questions(4), questions(4)]
    made = [await begin(cold.archive, clock, *each) for each in items[:2]]
    await pack(cold, clock)
    [file] = (tmp_path / "cold").rglob("*.pack")
    file.write_bytes(changed(file.read_bytes()))
    last = await begin(cold.archive, clock, *items[2])
    read = [await asyncio.gather(items_of(cold.archive, each), return_exceptions=True) for each in made]
    assert [each.status for [each] in read if isinstance(each, ApiError)] == [500]
    assert "a chain in the object store cannot be read: co/" in caplog.text
    await pack(cold, clock)
    assert "an object of which most is left over cannot be read, leaving it" in caplog.text
    assert await items_of(cold.archive, last) == items[2]


async def test_backup_is_merged_into_a_store_that_has_packed_since(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    items, created = questions(6), response(assistant("answer"), instructions="Be brief. " * 60)
    conversation, move = await begin(cold.archive, clock, *items), Move(cold.records, cold.records, tmp_path)
    created["created_at"] = int(clock.now)
    await cold.archive.save(created, owner=ALICE, base=None, input_items=[user("question")])
    path = await move.backup()
    await pack(cold, clock)
    await move.restore(path)
    for _ in range(2):
        await pack(cold, clock)
    assert await cold.archive.conversations.remove(conversation, items[1]["id"])
    assert await items_of(cold.archive, conversation) == [items[0], *items[2:]]
    assert (await cold.packed(), await runs(cold)) == ({created["id"]}, 1)
    assert await cold.archive.delete(created["id"])
    assert await cold.archive.load(created["id"]) is None
    await cold.archive.conversations.delete(conversation.id)
    assert await left(cold.hot, clock, cold.archive) == []


@pytest.mark.every_store
async def test_backup_has_packed_items(cold: ColdStore, clock: Clock, tmp_path: Path) -> None:
    items = questions(9)
    conversation = await begin(cold.archive, clock, *items)
    rows = {key: record.value for key, record in await cold.hot.range("!", "~", limit=1000)}
    await pack(cold, clock)
    await cold.packing.work()
    copy = MemoryRecords(clock=clock)
    async for some in cold.records.snapshot():
        await copy.commit(some)
    (tmp_path / "cold").rename(tmp_path / "away")
    assert {
        key: record.value for key, record in await copy.range("!", "~", limit=1000) if not key.startswith("x/")
    } == {key: value for key, value in rows.items() if not key.startswith("x/")}
    assert await items_of(Archive(copy, clock=clock), conversation) == items


async def test_packed_bytes_of_items_count_for_their_owner(cold: ColdStore, clock: Clock) -> None:
    await begin(cold.archive, clock, *questions(3))
    await pack(cold, clock)
    [(owner, size)] = [each async for each in PackedChains(cold.records).sizes()]
    assert owner.identity == ALICE.identity
    assert size > sum((await cold.stored()).values())


@pytest.mark.every_store
async def test_server_without_the_setting_names_it(records: Records, cold: ColdStore, clock: Clock) -> None:
    items = questions(5)
    made = [await begin(cold.archive, clock, *questions(5)), await begin(cold.archive, clock, *items)]
    await pack(cold, clock)
    without = Archive(UnconfiguredRecords(records, Telemetry()), clock=clock)
    with pytest.raises(ApiError, match="setting 'archive', which is not set here"):
        await items_of(without, made[0])
    assert await without.conversations.delete(made[0].id)
    assert await items_of(cold.archive, made[1]) == items
    await cold.archive.conversations.delete(made[1].id)
    assert await left(records, clock, cold.archive) == []


async def test_packed_conversations_are_not_looked_at_one_by_one(
    records: Records, cold: ColdStore, clock: Clock
) -> None:
    for _ in range(50):
        await begin(cold.archive, clock, *questions(2))
    await pack(cold, clock)
    await cold.packing.work()
    proxy = CountingProxy(records)
    await Packing(proxy, cold.objects, AFTER, least_bytes=1)._pack()
    assert proxy.reads < 20
    assert len(await cold.hot.range(HELD, "ch0", limit=99)) == 50


async def check(archive: Archive, conversation: Conversation, items: Sequence[Json], chance: random.Random) -> None:
    """Compare what a conversation has with these items, in one of the ways to read it."""
    there = await now(archive, conversation)
    match chance.randrange(5):
        case 0:
            assert await archive.conversations.items(there.id, there.end) == items
        case 1 if items:
            one = chance.choice(items)
            assert await archive.conversations.find(there, one["id"]) == one
            assert await stored_item(archive, ALICE, one["id"]) == one
        case 2:
            recent = await archive.conversations.recent(there.id, there.end, ReadAllowance(chance.randint(1, 3_000)))
            assert recent == items[len(items) - len(recent) :]
        case 3:
            assert [each async for page in archive.conversations.pages(there.id, there.end, 500) for each in page] == [
                *items
            ]
        case _:
            order, limit = chance.choice(["asc", "desc"]), chance.randint(1, 9)
            listed = items if order == "asc" else items[::-1]
            at = chance.randrange(len(items)) + 1 if items else 0
            after = listed[at - 1]["id"] if at else None
            page = await archive.conversations.page(there, limit=limit, after=after, order=order)  # type: ignore[arg-type]
            assert page == (listed[at : at + limit], len(items) > at + limit)


async def check_random_conversations(records: Records, clock: Clock, tmp_path: Path, seed: int) -> None:
    """Add to conversations, remove, read and pack; they always have what was added and not removed."""
    chance, cold = random.Random(seed), ColdStore(records, in_folder(tmp_path), clock)
    store, kept, packed = cold.archive.conversations, dict[str, tuple[Conversation, list[Json]]](), 0
    for number in range(80):
        what = chance.random()
        if what < 0.2 or not kept:
            items = questions(chance.randint(0, 11))
            made = await begin(cold.archive, clock, *items)
            kept[made.id] = (made, items)
        conversation, items = kept[chance.choice(list(kept))]
        if what < 0.4:
            items += (more := questions(chance.randint(1, 6)))
            await store.add(conversation, more)
        elif what < 0.6 and items:
            await store.remove(conversation, items.pop(chance.randrange(len(items)))["id"])
        elif what < 0.65:
            assert await store.delete(conversation.id)
            del kept[conversation.id]
            continue
        if number % 5 == 4:
            clock.now += chance.choice([HOUR, AFTER + HOUR])
            await cold.packing.work()
            packed += await runs(cold)
        await check(cold.archive, conversation, items, chance)
    for conversation, items in kept.values():
        assert await store.items(conversation.id, (await now(cold.archive, conversation)).end) == items
        await store.delete(conversation.id)
    assert packed
    clock.now += HOUR
    await cold.packing.work()
    assert await left(cold.hot, clock, cold.archive) == []


async def test_random_conversations_survive_being_packed(records: Records, clock: Clock, tmp_path: Path) -> None:
    await check_random_conversations(records, clock, tmp_path, 0)


@pytest.mark.extended
@pytest.mark.needs("in_memory")  # that they are packed right does not depend on the store
@pytest.mark.parametrize("seed", range(1, 11))
async def test_other_random_conversations_survive_being_packed(
    records: Records, clock: Clock, tmp_path: Path, seed: int
) -> None:
    await check_random_conversations(records, clock, tmp_path, seed)
