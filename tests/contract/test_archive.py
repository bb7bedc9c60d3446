"""The content that an archive keeps, and its cost in calls and bytes, on every backend."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store import codec
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.store.records import Conflict, Delete, Put, Records
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.backends import Backend, Clock
from tests.contract.conversations import CREATED, Json, Prose, assistant, new_id, response, stored_item, user
from tests.contract.counting_proxy import CountingProxy

pytestmark = pytest.mark.needs("many_calls")

ALICE = Owner("alice", {"teams": ["search"]})
BOB = Owner("bob")
DAY = 86_400


@pytest.fixture
def archive(counting: CountingProxy, clock: Clock) -> Archive:
    """An archive whose lists do not end early on a busy machine."""
    return Archive(counting, clock=clock, scan_seconds=math.inf)


async def turn(
    archive: Archive, base: StoredResponse | None, question: str, answer: str, owner: Owner = ALICE, **fields: Any
) -> StoredResponse:
    """Save a response that continues `base`, and load it."""
    created = response(assistant(answer), previous_response_id=base.response["id"] if base else None, **fields)
    history = base.history if base else None
    await archive.save(created, owner=owner, base=history, input_items=[user(question)])
    stored = await archive.load(created["id"])
    assert stored is not None
    assert stored.response == created
    return stored


async def chain(archive: Archive, turns: int, size: int = 20) -> list[StoredResponse]:
    prose, stored, base = Prose(), [], None
    for index in range(turns):
        base = await turn(archive, base, prose.text(size), prose.text(size), created_at=CREATED + index // 3)
        stored.append(base)
    return stored


def texts(items: list[Json]) -> list[str]:
    contents = [item["content"] for item in items]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


async def keys(records: Records, prefix: str = "") -> list[str]:
    """Return the keys in the store, except those that only the deletion of their owner deletes."""
    rows = await records.range(prefix or "!", prefix + "~", limit=100_000)
    return [key for key, _ in rows if not key.startswith("up/")]


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def nothing_left(records: Records) -> bool:
    return [key for key in await keys(records) if not key.startswith("x/")] == []


async def test_saved_response_is_loaded_unchanged(archive: Archive) -> None:
    items = [user("one", id=None), {"type": "function_call_output", "call_id": "call_1", "output": "{}"}]
    created = response(
        {"id": "rs_1", "type": "reasoning", "summary": [], "content": None, "encrypted_content": "x" * 300},
        assistant("two", content=[{"type": "output_text", "text": "t", "annotations": [{"a": None}], "logprobs": []}]),
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}, "description": "d" * 400}],
        instructions="i" * 400,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"description": "s" * 400}}},
        metadata={"k": "v"},
    )
    before = copy.deepcopy((created, items))
    assert await archive.save(created, owner=ALICE, base=None, input_items=items) == 1
    assert (created, items) == before
    stored = await archive.load(created["id"])
    assert stored is not None
    assert (stored.response, stored.owner, stored.version) == (created, ALICE, 1)
    assert list(stored.response) == list(created)
    assert await archive.history(stored.input) == items
    assert await archive.history(stored.history) == items + created["output"]
    assert await archive.load(new_id("resp")) is None


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 0), (0, 1), (1, 0), (2, 3)])
async def test_input_and_output_may_be_empty(archive: Archive, inputs: int, outputs: int) -> None:
    first = await turn(archive, None, "q", "a")
    for base in (None, first):
        items = [user(f"q{index}") for index in range(inputs)]
        created = response(*(assistant(f"a{index}") for index in range(outputs)))
        await archive.save(created, owner=ALICE, base=base.history if base else None, input_items=items)
        stored = await archive.load(created["id"])
        assert stored is not None
        assert stored.response == created
        before = await archive.history(base.history if base else None)
        assert await archive.history(stored.input) == before + items
        assert await archive.history(stored.history) == before + items + created["output"]


@pytest.mark.parametrize("field", ["access_programs", "frequency_penalty", "store"])
async def test_response_of_earlier_version_gets_fields_added_since(archive: Archive, field: str) -> None:
    kept = response(assistant("4"))
    earlier = {name: value for name, value in kept.items() if name != field}
    await archive.save(earlier, owner=ALICE, base=None, input_items=[user("2 + 2?")])
    loaded = await archive.load(kept["id"])
    assert loaded
    assert loaded.response == kept
    [listed] = (await archive.list(ALICE, limit=2, after=None, order="desc", model=None)).items
    assert listed.response == kept


async def test_own_inputs_are_inputs_of_each_request(archive: Archive) -> None:
    stored = await chain(archive, 3)
    prose = Prose()
    messages = [prose.text(20) for _ in range(6)]
    long = await turn(archive, stored[-1], "n" * 5000, "m" * 5000)
    inputs = await archive.own_inputs([*stored, long])
    assert [texts(items) for items in inputs] == [[messages[0]], [messages[2]], [messages[4]], ["n" * 5000]]
    await archive.delete(long.response["id"])
    assert await archive.own_inputs([long]) == [[]]


async def test_history_is_whole_chain_in_order(archive: Archive) -> None:
    stored = await chain(archive, 40)
    prose = Prose()
    messages = [prose.text(20) for _ in range(80)]
    for index, each in enumerate(stored):
        assert texts(await archive.history(each.history)) == messages[: 2 * index + 2]
        assert texts(await archive.history(each.input)) == messages[: 2 * index + 1]
    assert await archive.history(None) == []


@pytest.mark.extended
async def test_history_of_many_turns_takes_few_reads(
    archive: Archive, counting: CountingProxy, backend: Backend
) -> None:
    """A thousand turns in memory, and fewer on the other stores, whose calls take longer."""
    turns, reads = (128, 5) if backend.persistent else (1000, 7)
    base, messages = None, []
    for index in range(turns):
        created = response(assistant(f"a{index}"))
        await archive.save(created, owner=ALICE, base=base, input_items=[user(f"q{index}", id=None), user("n" * 2100)])
        # Long inputs have their own nodes: this is the longest chain that this many turns create.
        stored = await archive.load(created["id"])
        assert stored is not None
        base = stored.history
        messages += [f"q{index}", "n" * 2100, f"a{index}"]
    counting.reads = 0
    assert texts(await archive.history(base)) == messages
    assert counting.reads <= math.ceil(math.log(2 * turns, 4)) + 1 == reads
    counting.reads = counting.commits = 0
    await archive.save(response(assistant("last")), owner=ALICE, base=base, input_items=[user("q")])
    assert (counting.reads, counting.commits) == (1, 1)


async def test_hundred_turns_take_little_more_space_than_their_text(clock: Clock, tmp_path: Path) -> None:
    archive, prose, base, content = Archive(SqliteRecords(tmp_path / "records.db"), clock=clock), Prose(), None, 0
    for _ in range(100):
        base = await turn(archive, base, prose.text(600), prose.text(1400))
        content += 2000
    assert len(await archive.history(base.history if base else None)) == 200
    await archive.close()
    assert 0.5 * content < size_of(tmp_path) <= 1.75 * content  # rows of lists repeat the first words


async def test_repeated_tools_and_instructions_are_stored_once(archive: Archive, counting: CountingProxy) -> None:
    prose = Prose()
    fields: Json = {"instructions": prose.text(10_000), "tools": [{"type": "function", "name": prose.text(20_000)}]}
    first = await turn(archive, None, "q", "a", **fields)
    once = counting.bytes
    for index in range(20):
        await turn(archive, first, f"q{index}", f"a{index}", **fields)
    assert counting.bytes - once < 20 * 1000
    assert once > 10_000
    await turn(archive, None, "q", "a", BOB, **fields)
    assert len(await keys(counting, "b/")) == 4


async def resend(archive: Archive, history: list[Json], prose: Prose, sent: Any) -> list[Json]:
    """Run one turn of a client that sends its whole history, with each output transformed by `sent`."""
    question, created = user(prose.text(600), id=None), response(assistant(prose.text(1400)))
    await archive.save(created, owner=ALICE, base=None, input_items=[*history, question])
    stored = await archive.load(created["id"])
    assert stored is not None
    assert stored.response == created
    found = await archive.history(stored.history)
    assert texts(found) == texts([*history, question, *created["output"]])
    return [*history, question, *map(sent, created["output"])]


def as_it_was(item: Json) -> Json:
    return item


def in_fewer_words(item: Json) -> Json:
    return {"role": "assistant", "content": item["content"][0]["text"], "phase": item["phase"]}


def without_id(item: Json) -> Json:
    parts = [{"type": "output_text", "text": part["text"]} for part in item["content"]]
    return {**item, "id": None, "status": None, "content": parts}


def rewritten(item: Json) -> Json:
    return {**in_fewer_words(item), "phase": None}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("sent", "bound"), [(as_it_was, 1.1), (in_fewer_words, 1.1), (without_id, 1.1), (rewritten, 1.9)]
)
async def test_resent_history_is_stored_once(
    archive: Archive, counting: CountingProxy, sent: Any, bound: float
) -> None:
    prose = Prose()
    history: list[Json] = []
    for _ in range(20):
        history = await resend(archive, history, prose, sent)
    assert counting.bytes < bound * 20 * 2000
    counting.reads = 0
    await resend(archive, history, prose, sent)
    assert counting.reads <= 8


async def test_resent_history_is_found_however_it_was_stored(archive: Archive, counting: CountingProxy) -> None:
    stored = await chain(archive, 30, size=500)
    items = await archive.history(stored[-1].history)
    counting.bytes = 0
    created = response(assistant("end"))
    await archive.save(created, owner=ALICE, base=None, input_items=[*items, *(user(f"q{n}") for n in range(50))])
    assert counting.bytes < 5000
    after = await archive.load(created["id"])
    assert after is not None
    assert texts(await archive.history(after.history)) == [*texts(items), *(f"q{n}" for n in range(50)), "end"]


async def test_two_answers_to_same_question_share_history(archive: Archive, counting: CountingProxy) -> None:
    prose = Prose()
    base = await turn(archive, None, prose.text(5000), prose.text(5000))
    long = prose.text(5000)
    left = await turn(archive, base, long, "left")
    counting.bytes = 0
    right = await turn(archive, base, long, "right")
    assert counting.bytes < 1000
    for each, word in ((left, "left"), (right, "right")):
        history = await archive.history(each.history)
        assert texts(history) == [*texts(await archive.history(base.history)), long, word]


async def test_identical_answers_keep_separate_ids(archive: Archive, counting: CountingProxy) -> None:
    base = await turn(archive, None, "q", "a")
    twice = [await turn(archive, base, "same", "same") for _ in range(2)]
    ids = [each.response["output"][0]["id"] for each in twice]
    assert ids[0] != ids[1]
    for each, item_id in zip(twice, ids, strict=True):
        assert await stored_item(archive, ALICE, item_id) == each.response["output"][0]
    assert await archive.delete(twice[0].response["id"])
    assert await archive.load(twice[1].response["id"]) == twice[1]
    assert await archive.delete(twice[1].response["id"])
    assert [await stored_item(archive, ALICE, item_id) for item_id in ids] == [None, None]
    assert await archive.delete(base.response["id"])
    assert await nothing_left(counting)


async def test_identical_approval_requests_keep_separate_ids(archive: Archive) -> None:
    requests = [
        {"id": new_id("mcpr"), "type": "mcp_approval_request", "server_label": "s", "name": "add", "arguments": "{}"}
        for _ in range(2)
    ]
    for request in requests:
        created = response(request)
        await archive.save(created, owner=ALICE, base=None, input_items=[user("Add.")])
        stored = await archive.load(created["id"])
        assert stored
        assert (await archive.history(stored.history))[-1] == request
        assert [found async for found in archive.find_items(ALICE, [request["id"]])] == [(request["id"], request)]


@pytest.mark.parametrize("stranger", [BOB, Owner("alice", tenant="north")], ids=["user", "tenant"])
async def test_owners_share_no_content(archive: Archive, counting: CountingProxy, stranger: Owner) -> None:
    hers, his = await turn(archive, None, "q", "a"), await turn(archive, None, "q", "a", stranger)
    assert hers.history != his.history
    assert (await archive.list(stranger, limit=9, after=None, order="asc", model=None)).items == [his]
    item_id = hers.response["output"][0]["id"]
    assert await stored_item(archive, stranger, item_id) is None
    assert await archive.delete(hers.response["id"])
    assert texts(await archive.history(his.history)) == ["q", "a"]


async def test_items_are_found_by_id(archive: Archive) -> None:
    stored = await chain(archive, 3)
    for item in await archive.history(stored[-1].history):
        assert await stored_item(archive, ALICE, item["id"]) == item
    assert await stored_item(archive, ALICE, "msg_unknown") is None


async def test_save_of_words_that_are_stored_reads_pointers_once(archive: Archive, counting: CountingProxy) -> None:
    await turn(archive, None, "q", "a")
    counting.reads = 0
    again = await turn(archive, None, "q", "a")
    # The history and the pointers of its input, the node with its own ids, and what is loaded.
    assert counting.reads == 3
    for item in await archive.history(again.history):
        assert await stored_item(archive, ALICE, item["id"]) == item


async def test_items_of_one_record_are_read_together(archive: Archive, counting: CountingProxy) -> None:
    items = [user(f"{number}") for number in range(250)]
    await archive.save(response(), owner=ALICE, base=None, input_items=items)
    counting.reads = 0
    ids = [item["id"] for item in items]
    assert {found: item async for found, item in archive.find_items(ALICE, ids)} == {item["id"]: item for item in items}
    # A hundred ids at a time, and one read of the record for each hundred.
    assert counting.reads == 6


async def test_repeated_item_id_does_not_replace_first_item(archive: Archive) -> None:
    first, second = user("first"), user("second")
    second["id"] = first["id"]
    responses = [response(assistant("a")) for _ in range(2)]
    for each, item in zip(responses, (first, second), strict=True):
        await archive.save(each, owner=ALICE, base=None, input_items=[item])
    assert await stored_item(archive, ALICE, first["id"]) == first
    await archive.delete(responses[1]["id"])
    assert await stored_item(archive, ALICE, first["id"]) == first


async def test_deleted_response_is_gone_and_its_successors_stay(archive: Archive, counting: CountingProxy) -> None:
    first, second, third = await chain(archive, 3)
    whole = await archive.history(third.history)
    assert await archive.delete(second.response["id"])
    assert not await archive.delete(second.response["id"])
    assert await archive.load(second.response["id"]) is None
    assert await archive.history(third.history) == whole
    assert await archive.load(first.response["id"]) == first
    assert await archive.delete(third.response["id"])
    assert texts(await archive.history(first.history)) == texts(whole)[:2]
    assert len(await keys(counting, "n/")) == 2
    assert await archive.delete(first.response["id"])
    assert await nothing_left(counting)


async def save_and_delete_in_order(archive: Archive, counting: CountingProxy, order: tuple[int, ...]) -> None:
    """Save a response, two that continue it, and one that continues the second of these; delete them in this order."""
    tools: Json = {"tools": [{"type": "function", "name": "x" * 300}]}
    root = await turn(archive, None, "q", "a", **tools)
    left = await turn(archive, root, "left", "a", **tools)
    right = await turn(archive, root, "n" * 3000, "a")
    stored = [root, left, right, await turn(archive, right, "q", "a", **tools)]
    histories = {index: await archive.history(each.history) for index, each in enumerate(stored)}
    for index in order:
        assert await archive.delete(stored[index].response["id"])
        del histories[index]
        for other, items in histories.items():
            assert await archive.history(stored[other].history) == items
            assert await archive.load(stored[other].response["id"]) == stored[other]
    assert await nothing_left(counting)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)], ids=str)
async def test_deletion_leaves_no_records(archive: Archive, counting: CountingProxy, order: tuple[int, ...]) -> None:
    await save_and_delete_in_order(archive, counting, order)


@pytest.mark.needs("in_memory")
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
async def test_deletion_in_any_order_leaves_no_records(
    archive: Archive, counting: CountingProxy, order: tuple[int, ...]
) -> None:
    await save_and_delete_in_order(archive, counting, order)


@pytest.mark.extended
async def test_deleting_end_of_long_chain_takes_few_commits(archive: Archive, counting: CountingProxy) -> None:
    stored = await chain(archive, 74)
    for each in stored[:-1]:
        await archive.delete(each.response["id"])
    assert len(await archive.history(stored[-1].history)) == 148
    counting.commits = 0
    await archive.delete(stored[-1].response["id"])
    # The response, and then 8, 64 and 2 nodes.
    assert counting.commits == 4
    assert await nothing_left(counting)


@pytest.mark.extended
async def test_sweep_finishes_interrupted_deletion(archive: Archive, counting: CountingProxy) -> None:
    async def delete_both(first: StoredResponse, second: StoredResponse) -> None:
        await archive.delete(first.response["id"])
        await archive.delete(second.response["id"])

    # Each deletion drops more than the eight nodes of its first commit.
    for allowed in range(1, 6):
        stored = await chain(archive, 18)
        other = await turn(archive, stored[8], "other", "end", instructions="i" * 500)
        kept = await archive.history(other.history)
        for each in stored[:-1]:
            await archive.delete(each.response["id"])
        counting.interrupt = counting.commits + allowed
        with pytest.raises(InterruptedError):
            await delete_both(stored[-1], other)
        counting.interrupt = math.inf
        assert await keys(counting, "g/") or await archive.load(other.response["id"])
        await archive.sweep()
        assert await keys(counting, "g/") == []
        if await archive.load(other.response["id"]):
            assert await archive.history(other.history) == kept
            await archive.delete(other.response["id"])
        assert await nothing_left(counting)


async def save_and_delete_at_once(archive: Archive, counting: CountingProxy, seed: int) -> None:
    """A small vocabulary makes responses share nodes and fields, so that one task drops content that another reuses."""
    chance = counting.jitter = random.Random(seed)
    expected: dict[str, list[str]] = {}

    async def save(base_id: str | None) -> None:
        base = await archive.load(base_id) if base_id else None
        items = await archive.history(base.history) if base else []
        question, answer = user(chance.choice("xy")), assistant(chance.choice("xy"))
        created = response(answer, instructions=chance.choice("ij") * 500)
        history = base.history if base else None
        await archive.save(created, owner=ALICE, base=history, input_items=[question], base_items=items)
        expected[created["id"]] = texts([*items, question, answer])
        loaded = await archive.load(created["id"])
        assert loaded is not None
        assert loaded.response == created

    for _ in range(12):
        doomed = chance.sample(sorted(expected), min(len(expected), 4))
        bases = [chance.choice([None, *sorted(set(expected) - set(doomed))]) for _ in range(5)]
        for response_id in doomed:
            del expected[response_id]
        await asyncio.gather(*map(save, bases), *map(archive.delete, doomed))
        for response_id, answer in expected.items():
            stored = await archive.load(response_id)
            assert stored is not None
            assert texts(await archive.history(stored.history)) == answer
    await asyncio.gather(*map(archive.delete, expected))
    assert await nothing_left(counting)


@pytest.mark.extended
async def test_concurrent_saves_and_deletes_lose_and_leak_nothing(archive: Archive, counting: CountingProxy) -> None:
    await save_and_delete_at_once(archive, counting, seed=0)


@pytest.mark.extended
@pytest.mark.needs("in_memory")
@pytest.mark.parametrize("seed", range(1, 6))
async def test_more_concurrent_saves_and_deletes_lose_and_leak_nothing(
    archive: Archive, counting: CountingProxy, seed: int
) -> None:
    await save_and_delete_at_once(archive, counting, seed)


async def test_sweep_finishes_interrupted_save_that_released_content(archive: Archive, counting: CountingProxy) -> None:
    stored = await turn(archive, None, "q", "a", instructions="i" * 500)
    counting.interrupt = counting.commits + 1
    with pytest.raises(InterruptedError):
        await archive.save(stored.response | {"instructions": None}, owner=ALICE, base=None, input_items=[user("q")])
    counting.interrupt = math.inf
    assert len(await keys(counting, "b/")) == 1
    await archive.sweep()
    assert await keys(counting, "b/") == []


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_content_reused_during_deletion_stays(archive: Archive, counting: CountingProxy, at: int) -> None:
    first = await turn(archive, None, "q", "a", instructions="i" * 500)
    again = response(assistant("a"), instructions="i" * 500)

    async def take_up() -> None:
        await archive.save(again, owner=ALICE, base=None, input_items=[user("q")])

    counting.meanwhile[counting.commits + at] = take_up
    await archive.delete(first.response["id"])
    assert not counting.meanwhile
    stored = await archive.load(again["id"])
    assert stored is not None
    assert stored.response == again
    assert texts(await archive.history(stored.history)) == ["q", "a"]
    await archive.delete(again["id"])
    assert await nothing_left(counting)


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_content_released_by_two_with_one_killed_is_dropped(
    archive: Archive, counting: CountingProxy, at: int
) -> None:
    first, second = [await turn(archive, None, "q", "a", instructions="i" * 500) for _ in range(2)]

    async def die() -> None:
        counting.interrupt = counting.commits + 1
        with pytest.raises(InterruptedError):
            await archive.delete(second.response["id"])
        counting.interrupt = math.inf

    counting.meanwhile[counting.commits + at] = die
    await archive.delete(first.response["id"])
    assert not counting.meanwhile
    await archive.sweep()
    assert await nothing_left(counting)


async def test_concurrent_saves_and_delete_of_one_response_leak_nothing(
    archive: Archive, counting: CountingProxy
) -> None:
    stored = await turn(archive, None, "q", "a")
    history = await archive.history(stored.input)

    async def save(answer: str) -> None:
        created = stored.response | {"output": [assistant(answer)]}
        await archive.save(created, owner=ALICE, base=None, input_items=history)

    counting.meanwhile[counting.commits + 1] = lambda: save("b")
    await save("c")
    assert len(await keys(counting, "n/")) == 2
    counting.meanwhile[counting.commits + 1] = lambda: save("d")
    await archive.delete(stored.response["id"])
    assert await nothing_left(counting)


async def test_response_with_deleted_base_keeps_its_whole_history(archive: Archive) -> None:
    base = await turn(archive, None, "q", "a")
    items = await archive.history(base.history)
    await archive.delete(base.response["id"])
    created = response(assistant("end"))
    await archive.save(created, owner=ALICE, base=base.history, input_items=[user("next")], base_items=items)
    stored = await archive.load(created["id"])
    assert stored is not None
    assert texts(await archive.history(stored.history)) == ["q", "a", "next", "end"]
    assert texts(await archive.history(stored.input)) == ["q", "a", "next"]


async def test_deleted_history_is_bad_request(archive: Archive) -> None:
    base = await turn(archive, None, "q", "a")
    await archive.delete(base.response["id"])
    with pytest.raises(ApiError) as error:
        await archive.history(base.history)
    assert (error.value.status, error.value.code) == (400, "previous_response_not_found")


async def test_response_can_be_saved_again(archive: Archive, counting: CountingProxy) -> None:
    base = await turn(archive, None, "q", "a")
    created = response(status="in_progress", instructions="i" * 500)
    save: Json = {"owner": ALICE, "base": base.history, "input_items": [user("next")]}
    assert await archive.save(created, **save) == 1
    created |= {"status": "completed", "output": [assistant("draft")], "instructions": "j" * 500}
    assert await archive.save(created, **save) == 2
    created["output"] = [assistant("end")]
    assert await archive.save(created, **save, version=2) == 3
    stored = await archive.load(created["id"])
    assert stored is not None
    assert (stored.response, stored.version) == (created, 3)
    assert texts(await archive.history(stored.history)) == ["q", "a", "next", "end"]
    assert [len(await keys(counting, prefix)) for prefix in ("b/", "g/", "l/")] == [1, 0, 2]
    assert len(await archive.history(stored.input)) == 3
    for each in (base, stored):
        await archive.delete(each.response["id"])
    assert await nothing_left(counting)


async def test_save_of_wrong_version_is_refused(archive: Archive) -> None:
    stored = await turn(archive, None, "q", "a")
    changed = {**stored.response, "status": "cancelled"}
    with pytest.raises(Conflict):
        await archive.save(changed, owner=ALICE, base=None, input_items=[], version=2)
    await archive.delete(stored.response["id"])
    with pytest.raises(Conflict):
        await archive.save(changed, owner=ALICE, base=None, input_items=[], version=1)
    assert await archive.load(stored.response["id"]) is None


async def listed(archive: Archive, **arguments: Any) -> tuple[list[str], bool]:
    page = await archive.list(ALICE, **{"limit": 5, "after": None, "order": "asc", "model": None, **arguments})
    return [stored.response["id"] for stored in page.items], page.has_more


async def test_list_is_in_order_of_creation(archive: Archive, clock: Clock) -> None:
    ids = []
    for index in range(12):
        # Four share a second of creation; the time of storing orders them.
        clock.now = CREATED + index / 4 + 0.1
        ids.append((await turn(archive, None, f"q{index}", "a", created_at=CREATED + index // 4)).response["id"])
    await turn(archive, None, "q", "a", BOB)
    assert await listed(archive, limit=12) == (ids, False)
    assert await listed(archive) == (ids[:5], True)
    assert await listed(archive, after=ids[4]) == (ids[5:10], True)
    assert await listed(archive, after=ids[9]) == (ids[10:], False)
    assert await listed(archive, order="desc") == (ids[:6:-1], True)
    assert await listed(archive, order="desc", after=ids[3]) == (ids[2::-1], False)
    await archive.delete(ids[5])
    assert await listed(archive, after=ids[3], limit=2) == ([ids[4], ids[6]], True)


async def test_list_can_be_filtered_by_model(archive: Archive) -> None:
    models = ["a", "b", *["c"] * 40, "a"]
    ids = [(await turn(archive, None, f"q{n}", "a", model=model)).response["id"] for n, model in enumerate(models)]
    wanted = {response_id for response_id, model in zip(ids, models, strict=True) if model == "a"}
    found, more = await listed(archive, model="a")
    assert (set(found), more) == (wanted, False)
    first, more = await listed(archive, model="a", limit=1)
    assert more
    assert set(first) | set((await listed(archive, model="a", after=first[0]))[0]) == wanted


@pytest.mark.parametrize(
    "bound", [{"scan_rows": 10, "scan_seconds": math.inf}, {"scan_seconds": 0.0}], ids=["rows", "time"]
)
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_filtered_page_ends_at_bound_of_rows_or_time(
    counting: CountingProxy, clock: Clock, bound: dict[str, Any], order: Any
) -> None:
    """The next page begins behind the last row that was looked at."""
    archive = Archive(counting, clock=clock, **bound)
    models = ["a", *["b"] * 25, "a", "b"]
    ids = [(await turn(archive, None, f"q{n}", "a", model=model)).response["id"] for n, model in enumerate(models)]
    found, pages, more = list[str](), 0, True
    after: str | None = None
    while more:
        page = await archive.list(ALICE, limit=10, after=after, order=order, model="a")
        found += [stored.response["id"] for stored in page.items]
        after, more, pages = page.last, page.has_more, pages + 1
    assert sorted(found) == sorted([ids[0], ids[-2]])
    assert pages == 3


@pytest.mark.parametrize("stranger", [BOB, Owner("alice", tenant="north")], ids=["user", "tenant"])
async def test_list_after_response_of_other_owner_is_refused(archive: Archive, stranger: Owner) -> None:
    his = await turn(archive, None, "q", "a", stranger)
    for after in (his.response["id"], new_id("resp")):
        with pytest.raises(ApiError) as error:
            await listed(archive, after=after)
        assert (error.value.status, error.value.param) == (400, "after")


async def test_responses_expire_after_retention(archive: Archive, counting: CountingProxy, clock: Clock) -> None:
    old = await turn(archive, None, "q", "a", created_at=CREATED)
    new = await turn(archive, old, "q", "a", created_at=CREATED + DAY)
    clock.now = CREATED + 30 * DAY
    assert await archive.sweep() == 0
    clock.now += 1
    assert await archive.load(old.response["id"]) is None
    assert await listed(archive) == ([new.response["id"]], False)
    assert texts(await archive.history(new.history)) == ["q", "a", "q", "a"]
    assert await archive.sweep() == 1
    assert await keys(counting, "r/") == [f"r/{new.response['id']}"]
    assert await archive.load(new.response["id"]) == new
    clock.now += 2 * DAY
    assert await archive.sweep() == 1
    assert await keys(counting) == []


@pytest.mark.parametrize("kind", ["r/", "n/"])
async def test_unreadable_record_does_not_block_sweep(
    archive: Archive, counting: CountingProxy, clock: Clock, kind: str
) -> None:
    for word in "abc":
        await turn(archive, None, f"q{word}", word)
    [key, *_] = await keys(counting, kind)
    await counting.commit([Put(key, b"\x02")])
    clock.now += 31 * DAY
    while await archive.sweep():
        pass
    assert await keys(counting, "r/") == []
    assert await keys(counting, "l/") == []
    assert len(await keys(counting, "n/")) <= 2


async def test_response_of_newer_version_is_read(archive: Archive, counting: CountingProxy) -> None:
    stored = await turn(archive, None, "q", "a")
    key = f"r/{stored.response['id']}"
    found = (await counting.get_many([key]))[key]
    await counting.commit([Put(key, codec.encode(codec.decode(found.value) | {"mood": "new"}))])
    read = await archive.load(stored.response["id"])
    assert read is not None
    assert read.response == stored.response


async def test_sweep_is_bounded_and_skips_unexpired_records(
    archive: Archive, counting: CountingProxy, clock: Clock
) -> None:
    for index in range(20):
        await turn(archive, None, f"q{index}", "a", Owner(f"user{index % 3}"), created_at=CREATED + index)
    for index in range(20):
        await turn(archive, None, f"q{index}", "a", Owner(f"late{index}"), created_at=CREATED + 20 * DAY)
    clock.now = CREATED + 31 * DAY
    assert [await archive.sweep(limit=8) for _ in range(4)] == [8, 8, 4, 0]
    counting.reads = 0
    assert await archive.sweep() == 0
    assert counting.reads == 4
    assert len(await keys(counting, "r/")) == 20


async def test_saves_of_one_owner_write_no_common_key(archive: Archive, counting: CountingProxy) -> None:
    words = "i" * 500
    await turn(archive, None, "q0", "a0", instructions=words)
    before = {key: record.version for key, record in await counting.range("!", "~", limit=1000)}
    stored = await turn(archive, None, "q1", "a1", instructions=words)
    await turn(archive, stored, "q2", "a2", instructions=words)
    after = {key: record.version for key, record in await counting.range("!", "~", limit=1000)}
    assert {key: after[key] for key in before} == before
    assert len(await keys(counting, "x/")) == 1
    assert [
        key for key, _ in counting.written[-1] + counting.written[-2] if key in before and not key.startswith("up/")
    ] == []


async def test_save_racing_expiry_of_older_responses_is_listed(
    archive: Archive, counting: CountingProxy, clock: Clock
) -> None:
    old = await turn(archive, None, "q", "a")
    clock.now = CREATED + 31 * DAY

    async def meanwhile() -> None:
        # The last response of the hour is deleted, and with it the row that marks the hour as not empty.
        [row] = await keys(counting, "x/")
        await archive.delete(old.response["id"])
        await counting.commit([Delete(row)])

    counting.meanwhile[counting.commits + 1] = meanwhile
    late = response(assistant("a"), created_at=CREATED + 1)
    await archive.save(late, owner=ALICE, base=None, input_items=[user("q")])
    assert await keys(counting, "r/") == [f"r/{late['id']}"]
    assert await archive.sweep() == 1
    assert await keys(counting) == []


async def test_response_stored_at_begin_and_end_releases_no_content(archive: Archive, counting: CountingProxy) -> None:
    first = await turn(archive, None, "q0", "a0")
    question, answer = user("q"), assistant("a")
    created = response(answer, instructions="i" * 500)
    begun = created | {"output": [], "status": "in_progress"}
    counting.commits = 0
    for each in (begun, created):
        await archive.save(each, owner=ALICE, base=first.history, input_items=[question])
    assert counting.commits == 2
    assert await keys(counting, "g/") == []
    await archive.delete(first.response["id"])
    stored = await archive.load(created["id"])
    assert stored is not None
    assert texts(await archive.history(stored.history)) == ["q0", "a0", "q", "a"]
    await archive.delete(created["id"])
    assert await nothing_left(counting)


async def test_nothing_expires_without_retention(counting: CountingProxy, clock: Clock) -> None:
    archive = Archive(counting, retention=None, clock=clock)
    stored = await turn(archive, None, "q", "a")
    clock.now *= 2
    assert await archive.sweep() == 0
    assert await archive.load(stored.response["id"]) == stored
