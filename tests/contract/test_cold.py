"""Idle responses are packed into an object store and come back unchanged, on every backend, whatever happens."""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.cold import units
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.pages import PagedRecords
from llama_stack_responses.features.cold.prefixes import CHAINS, FOLDER
from llama_stack_responses.features.cold.rows import Chain
from llama_stack_responses.features.cold.stored import PackedChains
from llama_stack_responses.features.cold.unconfigured import UnconfiguredRecords
from llama_stack_responses.features.cold.unpacking_records import UnpackingRecords
from llama_stack_responses.features.page.search.texts import Texts
from llama_stack_responses.items.listed_items import with_ids
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.codec import unpacked
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Delete, Put, Records, reader_of
from llama_stack_responses.store.saving import Recording
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, Json, Prose, assistant, new_id, response, stored_item, user
from tests.contract.counting_proxy import CountingProxy
from tests.contract.test_moving import Move
from tests.contract.test_own_ids import check, questions_of, save
from tests.support.cold import AFTER, ColdStore, in_folder, pack_with
from tests.support.records import WatchedRecords, just_before_a_commit

pytestmark = pytest.mark.needs("transactions")

ALICE: Final = Owner("alice")
HOUR: Final = 3600.0
DAY: Final = 86_400.0


@pytest.fixture
def cold(records: Records, clock: Clock, tmp_path: Path) -> ColdStore:
    return ColdStore(records, in_folder(tmp_path), clock)


async def turn(archive: Archive, base: StoredResponse | None, number: int, **fields: Any) -> StoredResponse:
    """Store a response that continues `base`."""
    created = response(
        assistant(f"answer {number}"),
        previous_response_id=base.response["id"] if base else None,
        instructions="Be brief. " * 60,
        created_at=CREATED + number,
        **fields,
    )
    recording = Recording({"rounds": [number]}, [f"request {number}".encode()])
    await archive.save(
        created,
        owner=ALICE,
        base=base.history if base else None,
        input_items=[user(f"question {number}")],
        recording=recording,
    )
    stored = await archive.load(created["id"])
    assert stored
    return stored


async def chain(archive: Archive, turns: int = 3, first: int = 0) -> list[StoredResponse]:
    """Store responses of which each continues the one before."""
    made: list[StoredResponse] = []
    for number in range(first, first + turns):
        made.append(await turn(archive, made[-1] if made else None, number))
    return made


def ids(stored: Sequence[StoredResponse]) -> set[str]:
    return {each.response["id"] for each in stored}


async def pack(cold: ColdStore, clock: Clock) -> None:
    """Let two days pass, have idle responses packed, and what they leave behind deleted."""
    clock.now += AFTER + HOUR
    await cold.packing.work()
    clock.now += HOUR
    await cold.packing.work()


async def whole(archive: Archive, response_id: str) -> tuple[Any, ...]:
    """Return all that is stored with a response, except names and versions."""
    stored = await archive.load(response_id)
    assert stored
    history, inputs = await archive.history(stored.history), await archive.history(stored.input)
    return stored.response, stored.owner, stored.timing, stored.recorded, stored.transcript, history, inputs


async def left(records: Records, clock: Clock, archive: Archive) -> list[str]:
    """Return the keys that stay once all that expires has expired, except marks of the owner's hours and tags, and the folder."""
    await archive.sweep()
    clock.now += 10 * DAY
    await records.sweep(clock.now)
    keys = [key for key, _ in await records.range("!", "~", limit=1000)]
    return [key for key in keys if not key.startswith(("x/", "up/")) and key != "cp/folder"]


@pytest.mark.every_store
async def test_packed_chain_comes_back_unchanged_and_is_continued(cold: ColdStore, clock: Clock) -> None:
    made = await chain(cold.archive)
    before = [await whole(cold.archive, each) for each in ids(made)]
    requests = [record.value for _, record in await cold.hot.range("cr/", "cr0", limit=9)]
    await pack(cold, clock)
    assert await cold.packed() == ids(made)
    left_hot = [key for key, _ in await cold.hot.range("!", "~", limit=1000)]
    assert {key[:2] for key in left_hot} <= {"r/", "l/", "i/", "x/", "up", "co", "cp", "ck"}

    item = made[0].response["output"][0]
    assert await stored_item(cold.archive, ALICE, item["id"]) == item
    assert await cold.packed() == set()
    assert [await whole(cold.archive, each) for each in ids(made)] == before
    assert [record.value for _, record in await cold.hot.range("cr/", "cr0", limit=9)] == requests
    last = await cold.archive.load(made[-1].response["id"])
    assert last
    after = await turn(cold.archive, last, 9)
    assert len(await cold.archive.history(after.history)) == 8


async def test_list_has_what_is_packed_without_the_object_store(cold: ColdStore, clock: Clock, tmp_path: Path) -> None:
    made = await chain(cold.archive)
    listed = await cold.paged.range("l/", "l0", limit=10)
    await pack(cold, clock)
    (tmp_path / "cold").rename(tmp_path / "away")
    found = await cold.paged.range("l/", "l0", limit=10)
    assert [(key, unpacked(each.value)) for key, each in found] == [(key, unpacked(each.value)) for key, each in listed]
    assert (await cold.archive.count(cold.archive.horizon(clock.now))).stored == len(made)


@pytest.mark.every_store
async def test_packed_chain_is_deleted_without_the_object_store(cold: ColdStore, clock: Clock, tmp_path: Path) -> None:
    made = await chain(cold.archive)
    await pack(cold, clock)
    (tmp_path / "cold").rename(tmp_path / "away")
    for each in sorted(ids(made)):
        assert len(await cold.paged.range(CHAINS, "co0", limit=9)) == 1
        assert await cold.archive.delete(each)
        assert not await cold.archive.delete(each)
    assert await left(cold.hot, clock, cold.archive) == []
    (tmp_path / "away").rename(tmp_path / "cold")
    await cold.packing.collect()
    assert await cold.stored() == {}


async def test_deleted_response_stays_deleted_when_its_chain_comes_back(cold: ColdStore, clock: Clock) -> None:
    first, second, third = await chain(cold.archive)
    before = await whole(cold.archive, second.response["id"])
    await pack(cold, clock)
    for each in (first, third):
        await cold.archive.delete(each.response["id"])
    assert await whole(cold.archive, second.response["id"]) == before
    assert await cold.archive.load(first.response["id"]) is None
    assert await cold.archive.load(third.response["id"]) is None
    await cold.archive.sweep()
    assert await stored_item(cold.archive, ALICE, third.response["output"][0]["id"]) is None
    # Its content is that of the history of the second.
    assert await stored_item(cold.archive, ALICE, first.response["output"][0]["id"])
    await cold.archive.delete(second.response["id"])
    assert await left(cold.hot, clock, cold.archive) == []


async def test_expired_responses_are_deleted_while_they_are_packed(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    made = await chain(cold.archive)
    await pack(cold, clock)
    (tmp_path / "cold").rename(tmp_path / "away")
    clock.now += 30 * DAY
    assert await cold.archive.sweep() == len(made)
    assert await left(cold.hot, clock, cold.archive) == []


async def test_only_what_is_packed_fails_while_the_object_store_is_away(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    [old] = await chain(cold.archive, 1)
    await pack(cold, clock)
    new = response(assistant("new"), created_at=int(clock.now))
    await cold.archive.save(new, owner=ALICE, base=None, input_items=[user("new")])
    (tmp_path / "cold").rename(tmp_path / "away")
    with pytest.raises(ApiError) as refused:
        await cold.archive.load(old.response["id"])
    assert refused.value.status == 503
    assert refused.value.retry_after
    assert await cold.archive.load(new["id"])
    page = await cold.archive.list(ALICE, limit=1, after=None, order="desc", model=None)
    assert ([each.response for each in page.items], page.has_more) == ([new], True)
    with pytest.raises(ApiError):
        await cold.archive.list(ALICE, limit=2, after=None, order="desc", model=None)
    (tmp_path / "away").rename(tmp_path / "cold")
    assert await cold.archive.list(ALICE, limit=1, after=None, order="desc", model=None) == page
    assert await cold.packed() == ids([old])
    assert await cold.archive.load(old.response["id"])


async def test_list_and_search_go_on_beside_damaged_chains(
    cold: ColdStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first = [(await chain(cold.archive, 1, first=number))[0].response for number in (10, 30)]
    await pack(cold, clock)
    damaged = await cold.stored()
    others = [(await chain(cold.archive, 1, first=number))[0].response for number in (0, 20, 40)]
    await pack(cold, clock)
    made = sorted([*first, *others], key=itemgetter("created_at"))
    assert len(await cold.packed()) == 5
    for name in damaged:
        await cold.objects.delete(name)
    texts = await Texts(reader_of(cold.records)).of([each["id"] for each in made])
    assert texts.keys() == {made[number]["id"] for number in (0, 2, 4)}
    shown, after = list[Json](), None
    while True:
        page = await cold.archive.list(ALICE, limit=2, after=after, order="asc", model=None)
        shown += [each.response for each in page.items]
        if not page.has_more:
            break
        after = page.last
    assert [each["id"] for each in shown] == [each["id"] for each in made]
    for number, (listed, was) in enumerate(zip(shown, made, strict=True)):
        if number in (1, 3):
            assert "missing" in listed["error"].pop("message")
            assert listed["error"] == {"code": "server_error"}
            same = ("id", "object", "created_at", "status", "model", "previous_response_id", "metadata")
            assert {name: listed[name] for name in same} == {name: was[name] for name in same}
            assert listed["output"] == []
            assert listed.keys() >= was.keys()
        else:
            assert listed == was
    inputs = await cold.archive.own_inputs(
        (await cold.archive.list(ALICE, limit=9, after=None, order="asc", model=None)).items
    )
    assert [bool(each) for each in inputs] == [True, False, True, False, True]
    assert sum("cannot be read" in each for each in caplog.messages) == 2, "each is logged once"


@pytest.mark.every_store
async def test_two_servers_pack_and_bring_back_at_once(
    records: Records, cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    other = ColdStore(records, in_folder(tmp_path), clock)
    made = [each for number in range(8) for each in await chain(cold.archive, 2, 10 * number)]
    before = {each: await whole(cold.archive, each) for each in ids(made)}
    clock.now += AFTER + HOUR
    # Shares only save work: as long as each server knows of no other, both pack all.
    await asyncio.gather(cold.packing._pack(), other.packing._pack(), return_exceptions=True)
    await cold.packing._pack()
    assert await cold.packed() == ids(made)
    read = [whole(each.archive, response_id) for response_id in before for each in (cold, other)]
    assert await asyncio.gather(*read) == [each for each in before.values() for _ in range(2)]
    assert await cold.paged.range(CHAINS, "co0", limit=9) == []


@pytest.mark.every_store
async def test_server_without_the_setting_names_it(records: Records, cold: ColdStore, clock: Clock) -> None:
    proxy = CountingProxy(records)
    without = UnconfiguredRecords(proxy, Telemetry())
    archive = Archive(without, clock=clock)
    made = await chain(archive, 2)
    calls = proxy.reads
    for each in ids(made):
        assert await archive.load(each)
    assert proxy.reads == calls + 4  # Whether something was packed is looked at once.
    await pack(cold, clock)
    [new] = await chain(cold.archive, 1, 9)
    for server in (archive, Archive(UnconfiguredRecords(records, Telemetry()), clock=clock)):
        without._look_at = 0.0  # a minute later
        await server.load(new.response["id"])
        await without._later_look.wait()
        with pytest.raises(ApiError, match="setting 'archive', which is not set here") as refused:
            await server.load(made[0].response["id"])
        assert refused.value.status == 503
        assert await server.load(new.response["id"])
    assert await archive.delete(made[0].response["id"])
    assert await cold.archive.load(made[0].response["id"]) is None
    assert await cold.archive.load(made[1].response["id"])


async def test_server_without_the_setting_reads_on_while_it_cannot_look_for_packed_responses(clock: Clock) -> None:
    away = False

    async def fail(name: str) -> None:
        if away and name == "get_many":
            raise ApiError(503, "The first partition is away.")

    records = MemoryRecords(clock=clock)
    watched = WatchedRecords(records, before=fail)
    without = UnconfiguredRecords(watched, Telemetry())
    archive = Archive(without, clock=clock)
    await chain(archive, 1)
    away, without._look_at = True, 0.0
    assert await without.range("l/", "l0", limit=9)
    await without._later_look.wait()
    away, without._look_at = False, 0.0
    await records.commit([Put(FOLDER, b"")])
    await without.range("l/", "l0", limit=9)
    await without._later_look.wait()
    assert isinstance(await without._there(), UnpackingRecords)
    await without.close()


async def meddled(
    records: Records, clock: Clock, tmp_path: Path, meddle: Callable[[ColdStore, StoredResponse], Awaitable[object]]
) -> ColdStore:
    """Pack one response, and do something right before the commit that takes it out of the store."""
    here = ColdStore(records, in_folder(tmp_path), clock)
    [made] = await chain(here.archive, 1)
    clock.now += AFTER + HOUR
    await pack_with(here, lambda: meddle(here, made))
    return here


async def test_response_that_is_deleted_while_it_is_packed_stays_deleted(
    records: Records, clock: Clock, tmp_path: Path
) -> None:
    async def delete(here: ColdStore, made: StoredResponse) -> None:
        await here.archive.delete(made.response["id"])

    here = await meddled(records, clock, tmp_path, delete)
    assert await left(records, clock, here.archive) == []
    await here.packing.collect()
    assert await here.stored() == {}


async def test_response_that_is_continued_while_it_is_packed(records: Records, clock: Clock, tmp_path: Path) -> None:
    after: list[StoredResponse] = []

    async def go_on(here: ColdStore, made: StoredResponse) -> None:
        after.append(await turn(here.archive, made, 1))

    here = await meddled(records, clock, tmp_path, go_on)
    assert len(await here.archive.history(after[0].history)) == 4
    previous = after[0].response["previous_response_id"]
    assert await here.packed() == {previous}
    assert (await whole(here.archive, previous))[0]["id"] == previous
    for each in (previous, after[0].response["id"]):
        await here.archive.delete(each)
    clock.now += HOUR
    await here.packing.work()
    assert await left(records, clock, here.archive) == []


async def test_what_has_just_read_a_response_reads_its_content_after_it_is_packed(
    cold: ColdStore, clock: Clock
) -> None:
    [made] = await chain(cold.archive, 1)
    clock.now += AFTER + HOUR
    read = await cold.archive.load(made.response["id"])
    await cold.packing.work()
    assert await cold.packed()
    await cold.packing.work()
    assert read
    assert len(await cold.archive.history(read.history)) == 2


async def test_response_that_is_deleted_while_it_comes_back_stays_deleted(
    records: Records, clock: Clock, tmp_path: Path
) -> None:
    here = ColdStore(records, in_folder(tmp_path), clock)
    [made] = await chain(here.archive, 1)
    await pack(here, clock)

    async def delete() -> None:
        assert await here.archive.delete(made.response["id"])

    there = ColdStore(records, in_folder(tmp_path), clock, lambda hot: just_before_a_commit(hot, delete))
    assert await there.archive.load(made.response["id"]) is None
    assert await left(records, clock, here.archive) == []


async def test_items_that_others_share_are_theirs(cold: ColdStore, clock: Clock) -> None:
    """Whether others share content with a packed response before it is packed, or while it is."""
    before, during = user("before"), user("during")
    alone = await save(cold.archive, None, [during], assistant("one"), created_at=CREATED)
    packed = await save(cold.archive, None, [before], assistant("one"), created_at=CREATED)
    clock.now += 9 * AFTER
    others = [await save(cold.archive, None, [before], assistant("two"), created_at=int(clock.now))]
    await cold.packing.work()
    assert await cold.packed() == ids([alone, packed])
    others.append(await save(cold.archive, None, [during], assistant("two"), created_at=int(clock.now)))
    back = await cold.packed()
    assert await stored_item(cold.archive, ALICE, before["id"]) == before
    assert await cold.packed() == back == ids([packed])
    await cold.packing.work()
    for each in (alone, packed):
        assert await cold.archive.delete(each.response["id"])
    clock.now += HOUR
    await cold.packing.work()
    for item in (before, during):
        assert await stored_item(cold.archive, ALICE, item["id"]) == item
    for other in others:
        await cold.archive.delete(other.response["id"])
    assert await left(cold.hot, clock, cold.archive) == []


async def test_object_of_a_server_that_was_killed_is_deleted_later(
    cold: ColdStore, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await chain(cold.archive)
    clock.now += AFTER + HOUR
    killed = ColdStore(cold.hot, in_folder(tmp_path), clock)

    async def kill(*_: object) -> bool:
        raise asyncio.CancelledError

    monkeypatch.setattr(killed.packing, "_commit", kill)
    with pytest.raises(asyncio.CancelledError):
        await killed.packing.work()
    assert len(await cold.stored()) == 1
    await cold.packing.collect()
    assert len(await cold.stored()) == 1  # It may still be packing.
    clock.now += 2 * HOUR
    await cold.packing.work()
    assert await cold.packed() == ids(made)
    assert len(await cold.stored()) == 1


async def test_server_that_stood_still_takes_nothing_out_of_the_store(
    records: Records, clock: Clock, tmp_path: Path
) -> None:
    async def stand_still(here: ColdStore, _: StoredResponse) -> None:
        clock.now += 2 * HOUR
        await here.packing.collect()
        assert await here.stored() == {}

    here = await meddled(records, clock, tmp_path, stand_still)
    assert await here.packed() == set()
    assert len(await here.paged.range("r/", "r0", limit=9)) == 1


async def test_object_of_which_most_is_left_over_is_rewritten(cold: ColdStore, clock: Clock) -> None:
    prose = Prose()
    made = [await turn(cold.archive, None, number, metadata={"text": prose.text(500)}) for number in range(4)]
    before = await whole(cold.archive, made[0].response["id"])
    await pack(cold, clock)
    [(old, size)] = (await cold.stored()).items()
    for each in made[1:]:
        await cold.archive.delete(each.response["id"])
    await cold.packing.work()
    assert old in await cold.stored()  # Others may be reading it.
    await cold.packing.work()
    [(new, smaller)] = (await cold.stored()).items()
    assert new != old
    assert smaller < size / 2
    assert await whole(cold.archive, made[0].response["id"]) == before
    await cold.archive.delete(made[0].response["id"])
    assert await left(cold.hot, clock, cold.archive) == []


async def test_what_runs_or_came_back_or_goes_on_is_not_packed(cold: ColdStore, clock: Clock) -> None:
    running = response(status="in_progress")
    await cold.archive.save(running, owner=ALICE, base=None, input_items=[user("run")])
    [made] = await chain(cold.archive, 1)
    await pack(cold, clock)
    assert await cold.packed() == ids([made])
    back = await cold.archive.load(made.response["id"])
    await cold.packing.work()
    assert await cold.packed() == set()
    # It goes on, so its beginning waits for its end.
    clock.now += AFTER
    assert back
    created = response(assistant("new"), previous_response_id=back.response["id"], created_at=int(clock.now))
    await cold.archive.save(created, owner=ALICE, base=back.history, input_items=[user("new")])
    await cold.packing.work()
    assert await cold.packed() == set()
    await pack(cold, clock)
    assert await cold.packed() == {made.response["id"], created["id"]}


@pytest.mark.every_store
async def test_backup_has_what_is_packed(cold: ColdStore, clock: Clock, tmp_path: Path) -> None:
    made = await chain(cold.archive)
    before = [await whole(cold.archive, each) for each in ids(made)]
    await pack(cold, clock)
    copy = MemoryRecords(clock=clock)
    async for rows in cold.records.snapshot():
        await copy.commit(rows)
    (tmp_path / "cold").rename(tmp_path / "away")
    restored = Archive(copy, clock=clock)
    assert [await whole(restored, each) for each in ids(made)] == before
    for each in ids(made):
        await restored.delete(each)
    assert await left(copy, clock, restored) == []


async def test_backup_whose_objects_are_deleted_meanwhile_is_made_again(clock: Clock, tmp_path: Path) -> None:
    cold = ColdStore(MemoryRecords(clock=clock), in_folder(tmp_path), clock)
    made = await chain(cold.archive)
    await pack(cold, clock)
    snapshot = cold.records.snapshot()
    assert await anext(snapshot)
    assert await cold.archive.load(made[0].response["id"])
    clock.now += HOUR
    await cold.packing.work()
    assert await cold.stored() == {}
    with pytest.raises(ApiError, match="have moved while the backup was made") as refused:
        [rows async for rows in snapshot]
    assert refused.value.status == 409


async def test_backup_of_what_was_packed_since_the_last_one_leaves_no_content_under_former_names(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    target = MemoryRecords(clock=clock)
    move, there = Move(cold.records, target, tmp_path), Archive(target, clock=clock)
    made = await chain(cold.archive)
    await move.go()
    await pack(cold, clock)
    for _ in range(2):
        await move.go()
    for each in made:
        response_id = each.response["id"]
        assert await whole(there, response_id) == await whole(cold.archive, response_id)
    for each in made:
        assert await there.delete(each.response["id"])
    assert await left(target, clock, there) == []


@pytest.mark.parametrize("deleted_here", [False, True])
async def test_what_both_sides_of_a_move_have_packed_leaves_nothing(
    clock: Clock, tmp_path: Path, *, deleted_here: bool
) -> None:
    there, here = (
        ColdStore(MemoryRecords(clock=clock), in_folder(tmp_path / name), clock) for name in ("there", "here")
    )
    move, made = Move(there.records, here.records, tmp_path), await chain(there.archive)
    await move.go()
    for each in made if deleted_here else ():
        assert await here.archive.delete(each.response["id"])
    for side in (there, here):
        await pack(side, clock)
    for _ in range(2):
        await move.go()
    for each in () if deleted_here else made:
        response_id = each.response["id"]
        assert await whole(here.archive, response_id) == await whole(there.archive, response_id)
        assert await here.archive.delete(response_id)
    assert await left(here.hot, clock, here.archive) == []


async def test_reader_of_many_reads_packed_responses_where_they_are(cold: ColdStore, clock: Clock) -> None:
    made = await chain(cold.archive, 20)
    await pack(cold, clock)
    texts = await Texts(reader_of(cold.records)).of(sorted(ids(made)))
    assert all(f"question {number}" in "".join(texts.values()) for number in range(20))
    assert await cold.packed() == ids(made)


async def test_packed_bytes_count_for_their_owner(cold: ColdStore, clock: Clock) -> None:
    await chain(cold.archive)
    await pack(cold, clock)
    [(owner, size)] = [each async for each in PackedChains(cold.records).sizes()]
    assert owner.identity == ALICE.identity
    assert size > sum((await cold.stored()).values())


async def test_what_is_missing_costs_no_further_call(cold: ColdStore, clock: Clock) -> None:
    made = await chain(cold.archive)
    await pack(cold, clock)
    proxy = CountingProxy(cold.hot)
    keys = ["r/none", "i/none", f"r/{made[0].response['id']}", "n/none", f"r/{made[-1].response['id']}"]
    assert set(await PagedRecords(proxy).get_many(keys)) == {keys[2], keys[4]}
    assert proxy.reads == 1


async def test_packing_takes_few_calls(records: Records, clock: Clock, tmp_path: Path) -> None:
    cold = ColdStore(records, in_folder(tmp_path), clock)
    for number in range(20):
        await chain(cold.archive, 4, 10 * number)
    proxy = CountingProxy(records)
    packing = Packing(proxy, cold.objects, AFTER, least_bytes=1, keep_seconds=0)
    clock.now += AFTER + HOUR
    await packing._pack()
    calls = proxy.reads + proxy.commits
    assert calls < 20 * 3
    await packing.release()
    assert proxy.reads + proxy.commits - calls < 20 * 3
    assert not await records.range("n/", "n0", limit=9)


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let large rows have 20 KB and more, and chains with more than 100 KB be packed row by row."""
    monkeypatch.setattr(units, "PART_BYTES", 20_000)
    monkeypatch.setattr(units, "UNIT_BYTES", 100_000)


def data_of(seed: int, size: int = 40_000) -> str:
    return b64encode(random.Random(seed).randbytes(size)).decode()


async def with_pictures(archive: Archive, turns: int = 4, first: int = 0) -> list[StoredResponse]:
    """Store responses with an image and a file in the input, and images in the output."""
    made: list[StoredResponse] = []
    for number in range(first, first + turns):
        asked = user(f"question {number}")
        asked["content"] += [
            {"type": "input_image", "image_url": f"data:image/png;base64,{data_of(4 * number)}", "detail": "auto"},
            {"type": "input_file", "filename": "a.pdf", "file_data": data_of(4 * number + 1)},
        ]
        drawn: Json = {"id": new_id("ig"), "type": "image_generation_call", "status": "completed"}
        drawn["result"] = data_of(4 * number + 2)
        plotted = {"type": "image", "url": f"data:image/png;base64,{data_of(4 * number + 3)}"}
        computed: Json = {"id": new_id("ci"), "type": "code_interpreter_call", "status": "completed", "code": "plot()"}
        computed |= {"container_id": "cntr_1", "outputs": [plotted]}
        base = made[-1] if made else None
        created = response(drawn, computed, assistant("see"), created_at=CREATED + number)
        created["previous_response_id"] = base.response["id"] if base else None
        await archive.save(created, owner=ALICE, base=base.history if base else None, input_items=[asked])
        stored = await archive.load(created["id"])
        assert stored
        made.append(stored)
    return made


async def bytes_of(records: Records) -> int:
    return sum(len(record.value) for _, record in await records.range("!", "~", limit=1000))


@pytest.mark.every_store
@pytest.mark.usefixtures("small_bounds")
async def test_images_and_files_of_a_large_chain_are_packed_and_come_back(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    made = await with_pictures(cold.archive)
    other = await with_pictures(cold.archive, 2, 10)
    before = {each: await whole(cold.archive, each) for each in ids([*made, *other])}
    hot = await bytes_of(cold.hot)
    await pack(cold, clock)
    assert await cold.packed() == ids([*made, *other])
    assert hot > 600_000
    assert await bytes_of(cold.hot) < hot / 20
    chains = [Chain.decode(record) for _, record in await cold.paged.range(CHAINS, "co0", limit=9)]
    assert sorted(len(each.parts) for each in chains) == [4, 8]
    [(owner, size), (_, more)] = [each async for each in PackedChains(cold.records).sizes()]
    assert owner.identity == ALICE.identity
    assert size + more > sum((await cold.stored()).values()) > hot / 2
    copy = MemoryRecords(clock=clock)
    async for rows in cold.records.snapshot():
        await copy.commit(rows)
    assert {each: await whole(Archive(copy, clock=clock), each) for each in before} == before
    # Those of the other chain come from an object that is rewritten.
    for each in made:
        await cold.archive.delete(each.response["id"])
    for _ in range(2):
        await cold.packing.work()
    assert sum((await cold.stored()).values()) < hot / 2
    image = other[0].response["output"][0]
    assert await stored_item(cold.archive, ALICE, image["id"]) == image
    assert await cold.packed() == set()
    for response_id in ids(other):
        assert await whole(cold.archive, response_id) == before[response_id]
        await cold.archive.delete(response_id)
    assert await left(cold.hot, clock, cold.archive) == []


@pytest.mark.usefixtures("small_bounds")
async def test_reader_of_many_reads_large_chains_where_they_are(cold: ColdStore, clock: Clock) -> None:
    made = await with_pictures(cold.archive)
    await pack(cold, clock)
    reader = Archive(reader_of(cold.records), clock=clock)
    last = await reader.load(made[-1].response["id"])
    assert last
    assert len(await reader.history(last.history)) == 16
    assert await cold.packed() == ids(made)


@pytest.mark.usefixtures("small_bounds")
async def test_only_large_chains_fail_and_are_deleted_while_the_object_store_is_away(
    cold: ColdStore, clock: Clock, tmp_path: Path
) -> None:
    made = await with_pictures(cold.archive, 2)
    await pack(cold, clock)
    (tmp_path / "cold").rename(tmp_path / "away")
    with pytest.raises(ApiError) as refused:
        await cold.archive.load(made[0].response["id"])
    assert refused.value.status == 503
    for each in made:
        assert await cold.archive.delete(each.response["id"])
    assert await left(cold.hot, clock, cold.archive) == []


class Pictures(NamedTuple):
    """A large chain that is packed, and what its last response was before."""

    made: Sequence[StoredResponse]
    before: tuple[Any, ...]


@pytest.fixture
async def pictures(cold: ColdStore, clock: Clock, small_bounds: None) -> Pictures:
    del small_bounds
    made = await with_pictures(cold.archive, 2)
    before = await whole(cold.archive, made[-1].response["id"])
    await pack(cold, clock)
    return Pictures(made, before)


async def test_large_chain_that_came_back_in_part_leaves_nothing(
    records: Records, cold: ColdStore, clock: Clock, tmp_path: Path, pictures: Pictures
) -> None:
    """A server is killed after each of the commits that bring a large chain back; others sweep, and bring it back."""
    made, before = pictures
    small = await bytes_of(cold.hot)
    for after in range(1, 5):
        done = count(1)

        async def kill(name: str, after: int = after, done: count[int] = done) -> None:
            if name == "commit" and next(done) == after:
                raise asyncio.CancelledError

        killed = ColdStore(records, in_folder(tmp_path), clock, partial(WatchedRecords, after=kill))
        with pytest.raises(asyncio.CancelledError):
            await killed.archive.load(made[0].response["id"])
        assert await bytes_of(cold.hot) > small + 30_000
        if after % 2:
            await cold.archive.sweep()
            assert await bytes_of(cold.hot) < small + 3_000
    assert await whole(cold.archive, made[-1].response["id"]) == before
    for each in made:
        await cold.archive.delete(each.response["id"])
    assert await left(records, clock, cold.archive) == []


async def test_part_that_is_swept_while_its_chain_comes_back_is_brought_again(
    records: Records, cold: ColdStore, clock: Clock, tmp_path: Path, pictures: Pictures
) -> None:
    made, before = pictures
    done = count(1)

    async def sweep(name: str) -> None:
        if name == "commit" and next(done) == 4:
            await cold.archive.sweep()

    there = ColdStore(records, in_folder(tmp_path), clock, partial(WatchedRecords, before=sweep))
    assert await whole(there.archive, made[-1].response["id"]) == before


@pytest.mark.usefixtures("small_bounds")
async def test_large_row_that_is_gone_when_it_is_packed_leaves_its_chain_in_the_store(
    records: Records, clock: Clock, tmp_path: Path
) -> None:
    """The responses of another chain that is written to the same object are packed."""
    cold = ColdStore(records, in_folder(tmp_path), clock)
    await with_pictures(cold.archive, 2)
    nodes = await records.range("n/", "n0", limit=9)
    other = await chain(cold.archive, 1, 5)

    async def delete(name: str) -> None:
        if name == "commit" and await records.range("cp/6", "cp/7", limit=1):
            await records.commit([Delete(key) for key, record in nodes if len(record.value) > 30_000])

    clock.now += AFTER + HOUR
    packing = Packing(WatchedRecords(records, after=delete), cold.objects, AFTER, least_bytes=1)
    await packing.work()
    assert await cold.packed() == ids(other)
    assert await cold.archive.load(other[0].response["id"])


async def pack_random_histories(cold: ColdStore, archive: Archive, clock: Clock, seed: int) -> None:
    """Store, continue, resend and delete responses, some of which are packed in between, and check what they have."""
    chance = random.Random(seed)
    kept: dict[str, list[Json]] = {}
    packed = 0
    for number in range(40):
        base_id = chance.choice([None, *kept])
        base = await archive.load(base_id) if base_id else None
        question = questions_of(*chance.choices("xy", k=chance.randint(0, 3)), generated=chance.random() < 0.6)
        output = [assistant(text) for text in chance.choices("ab", k=chance.randint(0, 2))]
        given = [*(kept[base_id] if base_id else []), *question]
        if base and chance.random() < 0.4:
            given = with_ids([{name: field for name, field in item.items() if name != "id"} for item in given])
            stored = await save(archive, None, given, *output, created_at=int(clock.now))
        else:
            stored = await save(archive, base, question, *output, created_at=int(clock.now))
        kept[stored.response["id"]] = [*given, *output]
        if chance.random() < 0.3:
            removed = chance.choice(list(kept))
            del kept[removed]
            await archive.delete(removed)
        if number % 4 == 3:
            clock.now += chance.choice([HOUR, AFTER + HOUR, AFTER * 9])
            await cold.packing.work()
            packed += len(await cold.packed())
        for each in chance.sample(list(kept), min(len(kept), 3)):
            await checked(archive, each, kept[each])
    for each, items in kept.items():
        await checked(archive, each, items)
        await archive.delete(each)
    clock.now += HOUR
    await cold.packing.work()
    assert packed
    assert await left(cold.hot, clock, archive) == []


async def checked(archive: Archive, response_id: str, items: Sequence[Json]) -> None:
    """Check that a response has these items, each with its id."""
    stored = await archive.load(response_id)
    assert stored
    await check(archive, stored, items)


async def test_random_history_survives_being_packed(records: Records, clock: Clock, tmp_path: Path) -> None:
    await check_random_histories(records, clock, tmp_path, 0)


@pytest.mark.extended
@pytest.mark.needs("in_memory")  # that it is packed right does not depend on the store
@pytest.mark.parametrize("seed", [1, 2])
async def test_other_random_histories_survive_being_packed(
    records: Records, clock: Clock, tmp_path: Path, seed: int
) -> None:
    await check_random_histories(records, clock, tmp_path, seed)


async def check_random_histories(records: Records, clock: Clock, tmp_path: Path, seed: int) -> None:
    """Pack histories, and check that they are read as they were."""
    cold = ColdStore(records, in_folder(tmp_path), clock)
    archive = Archive(cold.records, clock=clock, retention=None)
    await pack_random_histories(cold, archive, clock, seed)
