"""The content that conversations keep, and its cost in calls and bytes, on every backend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation, ConversationStore, stand_in
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.store.records import Conflict, Put, Records, VersionIs
from tests.contract.backends import Backend, Clock
from tests.contract.conversations import CREATED, Json, Prose, assistant, new_id, response, stored_item, user
from tests.contract.counting_proxy import CountingProxy
from tests.contract.test_archive import ALICE, BOB, DAY, chain, keys, nothing_left, texts


@pytest.fixture
def store(archive: Archive) -> ConversationStore:
    return archive.conversations


async def begin(store: ConversationStore, *items: Json, owner: Owner = ALICE, **metadata: str) -> Conversation:
    """Create a conversation with these items."""
    conversation = Conversation(new_id("conv"), owner, CREATED, metadata)
    await store.create(conversation, items)
    return await now(store, conversation)


async def now(store: ConversationStore, conversation: Conversation) -> Conversation:
    """Return the conversation as it is now."""
    found = await store.load(conversation.id)
    assert found is not None
    return found


def answer_in(conversation: Conversation, *output: Json, **fields: Any) -> Json:
    """Return a response in the conversation."""
    return response(*output, conversation={"id": conversation.id}, **fields)


async def turn(archive: Archive, conversation: Conversation, question: Json, created: Json) -> StoredResponse:
    """Store a response to the conversation as `conversation` describes it, and load it."""
    await archive.save(created, owner=ALICE, base=None, input_items=[stand_in(conversation), question])
    stored = await archive.load(created["id"])
    assert stored is not None
    assert stored.response == created
    return stored


async def item_texts(store: ConversationStore, conversation: Conversation) -> list[str]:
    """Return the texts of all items of the conversation."""
    return texts(await store.items(conversation.id, (await now(store, conversation)).end))


async def test_created_conversation_is_loaded_unchanged(store: ConversationStore) -> None:
    items = [user("one"), assistant("two")]
    conversation = await begin(store, *items, topic="demo")
    assert (conversation.owner, conversation.created_at, conversation.metadata) == (ALICE, CREATED, {"topic": "demo"})
    assert await store.items(conversation.id, conversation.end) == items
    with pytest.raises(Conflict):
        await store.create(conversation, [])
    changed = await store.set_metadata(conversation.id, {"topic": "other"})
    assert changed == await now(store, conversation)
    assert changed is not None
    assert (changed.metadata, changed.end) == ({"topic": "other"}, 2)
    for none in ("conv_unknown", conversation.id[:-1]):
        assert await store.load(none) is None
        assert await store.set_metadata(none, {}) is None
        assert not await store.delete(none)


async def test_item_is_added_only_once(store: ConversationStore) -> None:
    first, second = user("one"), user("two")
    conversation = await begin(store, first)
    assert await store.add(conversation, [second])
    with pytest.raises(ApiError, match=second["id"]) as error:
        await store.add(conversation, [user("three"), second])
    assert (error.value.status, error.value.param) == (400, "items")
    assert await item_texts(store, conversation) == ["one", "two"]
    other = await begin(store, second)
    assert await item_texts(store, other) == ["two"]


@pytest.mark.needs("many_calls")
async def test_concurrent_additions_all_take_effect(store: ConversationStore, counting: CountingProxy) -> None:
    """The items of each addition stay together."""
    conversation = await begin(store)
    counting.jitter = random.Random(3)
    names = [f"{who}{part}" for who in "abcdefgh" for part in "123"]
    groups = [names[start : start + 3] for start in range(0, len(names), 3)]
    await asyncio.gather(*(store.add(conversation, [user(name) for name in group]) for group in groups))
    counting.jitter = None
    received = await item_texts(store, conversation)
    assert sorted(received) == names
    assert [received[start : start + 3] for start in range(0, len(received), 3)] == sorted(
        groups, key=lambda group: received.index(group[0])
    )


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_items_have_no_gaps(store: ConversationStore, order: Literal["asc", "desc"]) -> None:
    conversation = await begin(store, *(user(str(number)) for number in range(11)))
    gone = (await store.items(conversation.id, 11))[4]
    await store.remove(conversation, gone["id"])
    found: list[str] = []
    after, has_more = None, True
    while has_more:
        items, has_more = await store.page(conversation, limit=4, after=after, order=order)
        found += texts(items)
        after = items[-1]["id"]
    expected = [str(number) for number in range(11) if number != 4]
    assert found == (expected if order == "asc" else expected[::-1])
    assert await store.page(conversation, limit=4, after=after, order=order) == ([], False)
    for unknown in (gone["id"], "msg_unknown"):
        with pytest.raises(ApiError, match=unknown):
            await store.page(conversation, limit=4, after=unknown, order=order)


async def test_deleted_item_is_gone(archive: Archive, store: ConversationStore) -> None:
    first, second, third = user("one"), user("two"), user("three")
    conversation = await begin(store, first, second, third)
    assert await store.find(conversation, second["id"]) == second
    assert await stored_item(archive, ALICE, second["id"]) == second
    assert await store.remove(conversation, second["id"])
    assert not await store.remove(conversation, second["id"])
    assert await store.find(conversation, second["id"]) is None
    assert await stored_item(archive, ALICE, second["id"]) is None
    assert await item_texts(store, conversation) == ["one", "three"]
    await store.add(conversation, [second])
    assert await item_texts(store, conversation) == ["one", "three", "two"]


async def test_item_of_two_conversations_outlives_one(archive: Archive, store: ConversationStore) -> None:
    item = user("both")
    first, second = await begin(store, item), await begin(store, item)
    await store.delete(first.id)
    assert await store.find(second, item["id"]) == item
    assert await stored_item(archive, ALICE, item["id"]) == item
    assert await stored_item(archive, BOB, item["id"]) is None


async def test_newer_conversation_with_an_item_is_deleted_and_the_older_one_keeps_its_id(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    item = user("both")
    first, second = await begin(store, item), await begin(store, item)
    await store.delete(second.id)
    assert await stored_item(archive, ALICE, item["id"]) == item
    third = await begin(store, item)
    assert await store.remove(third, item["id"])
    assert await stored_item(archive, ALICE, item["id"]) == item
    await store.delete(first.id)
    assert await stored_item(archive, ALICE, item["id"]) is None
    await store.delete(third.id)
    assert await nothing_left(counting)


@pytest.mark.parametrize("one_by_one", [True, False])
async def test_items_of_stored_response_outlive_its_conversation(
    archive: Archive, store: ConversationStore, counting: CountingProxy, one_by_one: bool
) -> None:
    conversation = await begin(store)
    question, answer = user("q"), assistant("a")
    stored = await turn(archive, conversation, question, answer_in(conversation, answer))
    for item in (question, answer):
        if one_by_one:
            assert await store.remove(conversation, item["id"])
        assert await stored_item(archive, ALICE, item["id"]) == item
    await store.delete(conversation.id)
    for item in (question, answer):
        assert await stored_item(archive, ALICE, item["id"]) == item
    await archive.delete(stored.response["id"])
    assert await stored_item(archive, ALICE, answer["id"]) is None
    assert await nothing_left(counting)


@pytest.mark.parametrize("first", ["response", "conversation"])
async def test_item_of_response_that_a_client_adds_to_conversation_outlives_either(
    archive: Archive, store: ConversationStore, counting: CountingProxy, first: str
) -> None:
    """The conversation did not make the response: the client sent its output as an item, with its id."""
    conversation, answer = await begin(store), assistant("a")
    created = response(answer)
    await archive.save(created, owner=ALICE, base=None, input_items=[user("q")])
    assert await store.add(conversation, [answer])
    for end in ("response", "conversation") if first == "response" else ("conversation", "response"):
        assert await stored_item(archive, ALICE, answer["id"]) == answer
        await (archive.delete(created["id"]) if end == "response" else store.delete(conversation.id))
    assert await stored_item(archive, ALICE, answer["id"]) is None
    assert await nothing_left(counting)


@pytest.mark.needs("many_calls")
async def test_deleted_conversation_leaves_no_records(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    conversation = await begin(store, *(user(str(number)) for number in range(210)))
    stays = await begin(store, user("other"))
    assert await store.delete(conversation.id)
    assert await store.load(conversation.id) is None
    assert not await store.add(conversation, [user("late")])
    assert await item_texts(store, stays) == ["other"]
    await store.delete(stays.id)
    assert await nothing_left(counting)


async def test_sweep_finishes_interrupted_conversation_deletion(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    conversation = await begin(store, user("one"), user("two"))
    counting.interrupt = counting.commits + 1
    with pytest.raises(InterruptedError):
        await store.delete(conversation.id)
    counting.interrupt = float("inf")
    assert await store.load(conversation.id) is None
    assert await keys(counting, "m/") != []
    await archive.sweep()
    assert await nothing_left(counting)


async def test_response_joins_conversation_in_same_commit(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    conversation = await begin(store, user("hello"))
    counting.interrupt = counting.commits
    with pytest.raises(InterruptedError):
        await turn(archive, conversation, user("q"), answer_in(conversation, assistant("a")))
    assert await item_texts(store, conversation) == ["hello"]
    counting.interrupt = counting.commits + 1
    stored = await turn(archive, conversation, user("q"), answer_in(conversation, assistant("a")))
    assert await item_texts(store, conversation) == ["hello", "q", "a"]
    assert texts(await archive.history(stored.input)) == ["hello", "q"]
    assert texts(await archive.history(stored.history)) == ["hello", "q", "a"]


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled", "in_progress", "queued"])
async def test_unfinished_response_adds_nothing_to_conversation(
    archive: Archive, store: ConversationStore, status: str
) -> None:
    conversation = await begin(store)
    await turn(archive, conversation, user("q"), answer_in(conversation, assistant("a"), status=status))
    assert await item_texts(store, conversation) == (["q", "a"] if status in ("completed", "incomplete") else [])


async def test_response_stored_twice_is_added_to_conversation_once(archive: Archive, store: ConversationStore) -> None:
    """A server repeats the save when its reply was lost, or after its lease expired."""
    conversation = await begin(store)
    created, items = answer_in(conversation, assistant("a")), [stand_in(conversation), user("q")]
    for _ in range(2):
        await archive.save(created, owner=ALICE, base=None, input_items=items)
        assert await item_texts(store, conversation) == ["q", "a"]
    await store.remove(conversation, items[1]["id"])
    await archive.save(created, owner=ALICE, base=None, input_items=items)
    assert await item_texts(store, conversation) == ["a"]


async def test_queued_response_adds_question_and_answer_when_done(archive: Archive, store: ConversationStore) -> None:
    conversation = await begin(store, user("hello"))
    created = answer_in(conversation, status="queued")
    waiting = await turn(archive, conversation, user("q"), created)
    await store.add(conversation, [user("meanwhile")])
    assert texts(await archive.history(waiting.input)) == ["hello", "q"]
    done = created | {"status": "completed", "output": [assistant("a")]}
    await archive.save(done, owner=ALICE, base=waiting.input, input_items=[])
    assert await item_texts(store, conversation) == ["hello", "meanwhile", "q", "a"]


async def test_concurrent_turns_are_added_one_after_other(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    conversation = await begin(store, user("hello"))
    counting.jitter = random.Random(5)
    responses = [answer_in(conversation, assistant(f"a{number}")) for number in range(6)]
    await asyncio.gather(
        *(turn(archive, conversation, user(f"q{number}"), each) for number, each in enumerate(responses))
    )
    counting.jitter = None
    first, *received = await item_texts(store, conversation)
    assert first == "hello"
    assert sorted(zip(received[::2], received[1::2], strict=True)) == [
        (f"q{number}", f"a{number}") for number in range(6)
    ]
    for number, each in enumerate(responses):
        stored = await archive.load(each["id"])
        assert stored is not None
        assert texts(await archive.history(stored.history)) == ["hello", f"q{number}", f"a{number}"]


async def test_identical_turns_of_conversation_are_both_kept(archive: Archive, store: ConversationStore) -> None:
    conversation = await begin(store)
    responses = [answer_in(conversation, assistant("a")) for _ in range(2)]
    for each in responses:
        await turn(archive, conversation, user("q"), each)
    assert await item_texts(store, conversation) == ["q", "a", "q", "a"]
    ids = [item["id"] for item in await store.items(conversation.id, 4)]
    assert len(set(ids)) == 4
    assert ids[1::2] == [each["output"][0]["id"] for each in responses]


async def test_identical_queued_turns_of_conversation_are_both_kept(archive: Archive, store: ConversationStore) -> None:
    conversation = await begin(store)
    questions, responses = [user("q"), user("q")], [answer_in(conversation, status="queued") for _ in range(2)]
    waiting = [
        await turn(archive, conversation, question, each) for question, each in zip(questions, responses, strict=True)
    ]
    for stored, each in zip(waiting, responses, strict=True):
        done = each | {"status": "completed", "output": [assistant("a")]}
        await archive.save(done, owner=ALICE, base=stored.input, input_items=[])
    assert await item_texts(store, conversation) == ["q", "a", "q", "a"]
    assert (await store.items(conversation.id, 4))[::2] == questions


async def test_question_sent_twice_by_id_is_added_once(archive: Archive, store: ConversationStore) -> None:
    """A client that missed the first answer sends its own item again."""
    conversation = await begin(store)
    question = user("q")
    for answer in ("a", "b"):
        await turn(archive, conversation, question, answer_in(conversation, assistant(answer)))
    assert await item_texts(store, conversation) == ["q", "a", "b"]


async def test_response_is_stored_although_its_conversation_was_deleted_meanwhile(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    conversation = await begin(store, user("hello"))
    counting.meanwhile[counting.commits + 1] = lambda: store.delete(conversation.id)
    stored = await turn(archive, conversation, user("q"), answer_in(conversation, assistant("a")))
    assert await store.load(conversation.id) is None
    assert texts(await archive.history(stored.history)) == ["q", "a"]
    await archive.delete(stored.response["id"])
    assert await nothing_left(counting)


async def test_deleted_items_leave_histories_based_on_conversation(archive: Archive, store: ConversationStore) -> None:
    first, second = user("one"), user("two")
    conversation = await begin(store, first, second)
    stored = await turn(archive, conversation, user("q"), answer_in(conversation, assistant("a")))
    await store.remove(conversation, first["id"])
    assert texts(await archive.history(stored.input)) == ["two", "q"]
    follow = response(assistant("b"), previous_response_id=stored.response["id"])
    await archive.save(follow, owner=ALICE, base=stored.history, input_items=[user("and?")])
    assert await item_texts(store, conversation) == ["two", "q", "a"]
    await store.delete(conversation.id)
    after = await archive.load(follow["id"])
    assert after is not None
    assert texts(await archive.history(after.history)) == ["q", "a", "and?", "b"]
    assert await archive.load(stored.response["id"]) == stored


async def test_conversation_outlives_its_responses(
    archive: Archive, store: ConversationStore, clock: Clock, counting: CountingProxy
) -> None:
    conversation = await begin(store)
    output = assistant("a")
    stored = await turn(archive, conversation, user("q"), answer_in(conversation, output))
    clock.now = CREATED + 31 * DAY
    assert await archive.sweep() == 1
    assert await archive.load(stored.response["id"]) is None
    assert await item_texts(store, conversation) == ["q", "a"]
    assert await stored_item(archive, ALICE, output["id"]) == output
    await store.delete(conversation.id)
    assert await nothing_left(counting)


async def test_unstored_response_is_added_to_conversation(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    conversation = await begin(store, user("hello"))
    created = answer_in(conversation, assistant("a"), store=False)
    exchange = {"name": "f", "arguments": "{}", "output": "told"}
    exchanges = {created["output"][0]["id"]: exchange}
    await archive.join(created, owner=ALICE, input_items=[stand_in(conversation), user("q")], exchanges=exchanges)
    assert await item_texts(store, conversation) == ["hello", "q", "a"]
    assert (await store.items(conversation.id, 3))[2]["exchange"] == exchange
    assert [key for key in await keys(counting) if key[0] in "rnblx"] == []
    await archive.join(created | {"status": "failed"}, owner=ALICE, input_items=[user("q")], exchanges={})
    await archive.join(response(assistant("b")), owner=ALICE, input_items=[user("q")], exchanges={})
    assert (await now(store, conversation)).end == 3
    await store.delete(conversation.id)
    await archive.join(created, owner=ALICE, input_items=[user("q")], exchanges={})
    assert await nothing_left(counting)


@pytest.mark.parametrize("stored", [True, False])
async def test_response_of_other_user_is_added_to_conversation_once(
    archive: Archive, store: ConversationStore, stored: bool
) -> None:
    conversation = await begin(store, user("hello"))
    created = answer_in(conversation, assistant("a"), store=stored)
    items = [stand_in(conversation), user("q")]
    for _ in range(2):
        if stored:
            await archive.save(created, owner=BOB, base=None, input_items=items)
        else:
            await archive.join(created, owner=BOB, input_items=items, exchanges={})
    assert await item_texts(store, conversation) == ["hello", "q", "a"]
    assert await store.find(conversation, created["output"][0]["id"]) == created["output"][0]


async def test_turn_of_conversation_takes_one_read_and_one_commit(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    conversation = await begin(store, user("hello"))
    created = answer_in(conversation, assistant("a"))
    counting.reads = counting.commits = 0
    await archive.save(created, owner=ALICE, base=None, input_items=[stand_in(conversation), user("q")])
    assert (counting.reads, counting.commits) == (1, 1)
    assert await item_texts(store, conversation) == ["hello", "q", "a"]


@pytest.mark.needs("many_calls")
async def test_turn_of_long_conversation_costs_same_as_short_one(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    prose = Prose()
    conversation = await begin(store)
    written: list[int] = []
    for _ in range(40):
        conversation = await now(store, conversation)
        before = counting.bytes
        await turn(archive, conversation, user(prose.text(300)), answer_in(conversation, assistant(prose.text(300))))
        written.append(counting.bytes - before)
    assert max(written[5:]) < 1.1 * min(written[5:])
    counting.reads = 0
    conversation = await now(store, conversation)
    items = await store.items(conversation.id, conversation.end)
    assert (len(items), counting.reads) == (80, 2)
    counting.reads = 0
    page, _ = await store.page(conversation, limit=20, after=items[40]["id"], order="asc")
    assert (page, counting.reads) == (items[41:61], 3)


@pytest.mark.needs("many_calls")
async def test_conversation_and_chain_of_same_items_are_deleted_separately(
    archive: Archive, store: ConversationStore, counting: CountingProxy
) -> None:
    """Both hold the same items; deleting one does not delete the other."""
    [*_, last] = await chain(archive, 3)
    items: Sequence[Json] = await archive.history(last.history)
    conversation = await begin(store, *items)
    for key in await keys(counting, "r/"):
        await archive.delete(key.removeprefix("r/"))
    assert await store.items(conversation.id, conversation.end) == items
    await store.delete(conversation.id)
    assert await nothing_left(counting)


async def test_addition_survives_repeated_conflicts(
    store: ConversationStore, counting: CountingProxy, records: Records, backend: Backend
) -> None:
    """The conversation changes ten times between the read and the commit."""
    conversation = await begin(store)

    async def change() -> None:
        found = await now(store, conversation)
        key = found.key
        record = (await records.get_many([key]))[key]
        await records.commit([Put(key, record.value)], [VersionIs(key, record.version)])

    for number in range(10):
        counting.meanwhile[counting.commits + 1 + number] = change
    assert await store.add(conversation, [user("at last")])
    assert counting.meanwhile == {}
    assert await item_texts(store, conversation) == ["at last"]
