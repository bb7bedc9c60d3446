"""Ids are each response's own, also where its content is shared with another response, on every backend."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.items.listed_items import with_ids
from llama_stack_responses.store import codec, item_ids
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.loaded_response import StoredResponse
from tests.contract.conversations import Json, Prose, assistant, new_id, response, stored_item, user
from tests.contract.counting_proxy import CountingProxy
from tests.contract.test_archive import keys, nothing_left

pytestmark = pytest.mark.needs("many_calls")

ALICE = Owner("alice")


async def save(
    archive: Archive, base: StoredResponse | None, inputs: Sequence[Json], *output: Json, **fields: Any
) -> StoredResponse:
    created = response(*output, previous_response_id=base.response["id"] if base else None, **fields)
    before = await archive.history(base.history) if base else []
    name = base.history if base else None
    await archive.save(created, owner=ALICE, base=name, input_items=inputs, base_items=before)
    stored = await archive.load(created["id"])
    assert stored is not None
    assert stored.response == created
    return stored


def without_id(text: str) -> Json:
    item = user(text)
    del item["id"]
    return item


def questions_of(*texts: str, generated: bool = True) -> list[Json]:
    """Return messages of a user; the client sent their ids unless they are `generated`."""
    return with_ids([without_id(text) for text in texts]) if generated else [user(text) for text in texts]


async def check(archive: Archive, stored: StoredResponse, items: Sequence[Json]) -> None:
    """Check that the response's history has these items with their ids, and that each is found by its id."""
    assert await archive.history(stored.history) == items
    outputs = len(stored.response["output"])
    assert await archive.history(stored.input) == items[: len(items) - outputs]
    found = {item_id: item async for item_id, item in archive.find_items(ALICE, [item["id"] for item in items])}
    assert found == {item["id"]: item for item in items}


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("size", [5, 5000])
async def test_same_words_twice_keep_separate_ids(archive: Archive, generated: bool, size: int) -> None:
    prose = Prose()
    words, text = prose.text(size), prose.text(size)
    for _ in range(3):
        question, answer = questions_of(words, "please", generated=generated), assistant(text)
        stored = await save(archive, None, question, answer)
        await check(archive, stored, [*question, answer])


@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("size", [5, 5000])
async def test_same_words_after_same_response_keep_separate_ids(archive: Archive, generated: bool, size: int) -> None:
    opening, hello = questions_of("hello", generated=generated), assistant("hi")
    base, words = await save(archive, None, opening, hello), Prose().text(size)
    for _ in range(3):
        question, answer = questions_of(words, generated=generated), assistant("same")
        stored = await save(archive, base, question, answer)
        await check(archive, stored, [*opening, hello, *question, answer])


async def test_same_question_with_other_answer_keeps_ids_of_question(archive: Archive) -> None:
    for number in range(3):
        question, answer = questions_of("why?"), assistant(f"{number}")
        await check(archive, await save(archive, None, question, answer), [*question, answer])


async def test_successors_continue_with_ids_of_the_response_that_they_name(archive: Archive) -> None:
    for _ in range(3):
        history: list[Json] = []
        stored = None
        for turn in range(3):
            question, answer = questions_of(f"q{turn}"), assistant(f"a{turn}")
            stored = await save(archive, stored, question, answer)
            history += [*question, answer]
            await check(archive, stored, history)


async def test_successor_of_deleted_response_keeps_its_ids(archive: Archive, counting: CountingProxy) -> None:
    first = await save(archive, None, questions_of("q"), assistant("a"))
    question, answer = questions_of("q"), assistant("a")
    second = await save(archive, None, question, answer)
    more, end = questions_of("more"), assistant("end")
    third = await save(archive, second, more, end)
    await archive.delete(second.response["id"])
    await archive.delete(first.response["id"])
    await check(archive, third, [*question, answer, *more, end])
    await archive.delete(third.response["id"])
    assert await stored_item(archive, ALICE, answer["id"]) is None
    assert await nothing_left(counting)


async def test_response_that_was_deleted_while_its_successor_ran_keeps_its_ids(archive: Archive) -> None:
    await save(archive, None, questions_of("q"), assistant("a"))
    question, answer = questions_of("q"), assistant("a")
    second = await save(archive, None, question, answer)
    before = await archive.history(second.history)
    await archive.delete(second.response["id"])
    more, end = questions_of("more"), assistant("end")
    created = response(end)
    await archive.save(created, owner=ALICE, base=second.history, base_items=before, input_items=more)
    stored = await archive.load(created["id"])
    assert stored is not None
    await check(archive, stored, [*question, answer, *more, end])


async def test_queued_response_keeps_its_ids_when_it_ends(archive: Archive, counting: CountingProxy) -> None:
    """A worker stores it on the history of the record that it found, without any input."""
    for _ in range(3):
        question, answer = questions_of("q"), assistant("a")
        queued = await save(archive, None, question, status="queued")
        created = queued.response | {"status": "completed", "output": [answer]}
        await archive.save(created, owner=ALICE, base=queued.input, input_items=[], version=queued.version)
        ended = await archive.load(created["id"])
        assert ended is not None
        await check(archive, ended, [*question, answer])
        assert await archive.own_inputs([ended]) == [question]
    for listed in (await archive.list(ALICE, limit=9, after=None, order="asc", model=None)).items:
        await archive.delete(listed.response["id"])
    assert await nothing_left(counting)


async def test_response_that_is_stored_again_takes_no_more_space(archive: Archive, counting: CountingProxy) -> None:
    question = questions_of("q", "r")
    stored = await save(archive, None, question, assistant("a"))
    before = await keys(counting)
    await archive.save(stored.response, owner=ALICE, base=None, input_items=question)
    assert await keys(counting) == before


@pytest.mark.parametrize("size", [5, 5000])
async def test_list_has_own_ids_of_inputs(archive: Archive, size: int) -> None:
    words = Prose().text(size)
    base = await save(archive, None, questions_of("hello"), assistant("hi"))
    questions = [questions_of(words) for _ in range(6)]
    created = [
        await save(archive, base if number % 2 else None, question, assistant("same" if number < 4 else f"{number}"))
        for number, question in enumerate(questions)
    ]
    assert await archive.own_inputs(created) == questions


async def test_client_that_resends_everything_stores_no_list_of_ids(archive: Archive, counting: CountingProxy) -> None:
    """Each request has new ids for all earlier questions, since the client does not send any."""
    history: list[Json] = []
    for turn in range(30):
        history.append(without_id(f"question {turn}"))
        answer, given = assistant(f"answer {turn}"), with_ids(history)
        stored = await save(archive, None, given, answer)
        history.append(answer)
    await check(archive, stored, [*given, answer])
    values = [record.value for _, record in await counting.range("n/", "n/~", limit=999)]
    owned = [value for value in values if item_ids.are_own_ids(codec.decode(value))]
    assert len(owned) == 29
    assert max(len(value) - len(codec.head(value)) for value in owned) < 200


async def test_resent_ids_of_earlier_answers_are_not_stored_again(archive: Archive, counting: CountingProxy) -> None:
    history: list[Json] = []
    for turn in range(3):
        question, answer = questions_of(f"q{turn}", generated=False), assistant(f"a{turn}")
        await save(archive, None, [*history, *question], answer)
        history += [*question, answer]
    # One node for the whole first turn's input, and one for each output; no ids in addition.
    assert len(await keys(counting, "n/")) == 6


async def keep_ids_of_random_histories(archive: Archive, counting: CountingProxy, seed: int) -> None:
    chance = random.Random(seed)
    kept: dict[str, tuple[StoredResponse, list[Json]]] = {}
    for _ in range(40):
        base, before = chance.choice([(None, []), *kept.values()])
        question = questions_of(*chance.choices("xy", k=chance.randint(0, 3)), generated=chance.random() < 0.6)
        output = [assistant(text) for text in chance.choices("ab", k=chance.randint(0, 2))]
        given = [*before, *question]
        if before and chance.random() < 0.4:
            # A client that sends everything itself, with new ids.
            given = with_ids([{name: field for name, field in item.items() if name != "id"} for item in given])
            stored = await save(archive, None, given, *output)
        else:
            stored = await save(archive, base, question, *output)
        kept[stored.response["id"]] = (stored, [*given, *output])
        if chance.random() < 0.4:
            removed = chance.choice(list(kept))
            del kept[removed]
            await archive.delete(removed)
        for each, items in chance.sample(list(kept.values()), min(len(kept), 4)):
            await check(archive, each, items)
    for each, items in kept.values():
        await check(archive, each, items)
    for response_id in kept:
        await archive.delete(response_id)
    assert await nothing_left(counting)


async def test_random_histories_keep_their_ids(archive: Archive, counting: CountingProxy) -> None:
    await keep_ids_of_random_histories(archive, counting, seed=0)


@pytest.mark.extended
@pytest.mark.needs("in_memory")
@pytest.mark.parametrize("seed", range(1, 6))
async def test_more_random_histories_keep_their_ids(archive: Archive, counting: CountingProxy, seed: int) -> None:
    await keep_ids_of_random_histories(archive, counting, seed)


@pytest.mark.relatives
@pytest.mark.parametrize("generated", [True, False])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("before", [1, 40])
async def test_resent_item_is_found_by_its_id_after_its_first_response_is_deleted(
    archive: Archive, counting: CountingProxy, generated: bool, is_shared: bool, before: int
) -> None:
    """Each response holds the resent items in a node of its own, or under its own ids in a node that it shares."""
    question, answer = questions_of("q", "r", generated=generated), assistant("a")
    sent = [*question, answer]
    created = [await save(archive, None, question, answer)]
    for number in range(3):
        given = [*questions_of(*(f"{number} {at}" for at in range(before)), generated=False), *sent, user(f"{number}")]
        if is_shared:
            other = [{**item, "id": new_id("msg")} for item in given]
            created.append(await save(archive, None, other, assistant("else")))
        created.append(await save(archive, None, given, assistant(f"{number}")))
    for stored in created:
        assert [await stored_item(archive, ALICE, item["id"]) for item in sent] == sent
        await archive.delete(stored.response["id"])
    assert [await stored_item(archive, ALICE, item["id"]) for item in sent] == [None] * 3
    assert await nothing_left(counting)


async def test_id_that_two_clients_send_at_once_leads_to_the_response_that_stays(
    archive: Archive, counting: CountingProxy
) -> None:
    for keeps in range(2):
        item = user("the same")
        responses = [response(assistant(f"{number}")) for number in range(2)]
        await asyncio.gather(
            *(archive.save(each, owner=ALICE, base=None, input_items=[user(each["id"]), item]) for each in responses)
        )
        await archive.delete(responses[1 - keeps]["id"])
        assert await stored_item(archive, ALICE, item["id"]) == item
        await archive.delete(responses[keeps]["id"])
    assert await nothing_left(counting)


async def test_seed_of_ids_finds_no_item(archive: Archive) -> None:
    await save(archive, None, questions_of("q"), assistant("a"))
    question = questions_of("q")
    await save(archive, None, question, assistant("a"))
    seed = question[0]["id"].removeprefix("msg_")[:24]
    for wrong in (seed, f"msg_{seed}000001", f"rs_{seed}000000", new_id("msg")):
        assert await stored_item(archive, ALICE, wrong) is None
