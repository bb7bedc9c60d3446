"""The newest turns of a history that is too large to be read whole, on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.codec import TooLarge
from llama_stack_responses.store.conversation_store import stand_in
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.store.read_allowance import ReadAllowance
from tests.contract.backends import Clock
from tests.contract.conversations import Json, assistant, response, user
from tests.contract.test_archive import ALICE, texts
from tests.contract.test_bounds import LARGE, PAGE, ReadSizeRecorder, conversation_of, noise

LIMIT: Final = 5 * LARGE
SYSTEM: Final[Json] = {**user("Be kind."), "role": "system"}


@pytest.fixture
def meter(records: object) -> ReadSizeRecorder:
    return ReadSizeRecorder(records)  # type: ignore[arg-type]


@pytest.fixture
def archive(meter: ReadSizeRecorder, clock: Clock) -> Archive:
    return Archive(meter, clock=clock, page_bytes=PAGE)


async def save(
    archive: Archive, base: StoredResponse | None, *items: Json, answer: Sequence[Json] = ()
) -> StoredResponse:
    created = response(*(answer or [assistant("a")]))
    await archive.save(created, owner=ALICE, base=base.history if base else None, input_items=items)
    stored = await archive.load(created["id"])
    assert stored
    return stored


async def chain(archive: Archive, lengths: Sequence[int]) -> StoredResponse:
    """Return the last response of a chain that begins with `SYSTEM`, with questions of these lengths."""
    stored = await save(archive, None, SYSTEM, user("first"))
    for number, length in enumerate(lengths):
        stored = await save(archive, stored, user(noise(number, length)))
    return stored


async def test_history_within_limit_is_whole(archive: Archive) -> None:
    last = await chain(archive, [LARGE] * 3)
    assert await archive.recent(last.history, ReadAllowance(LIMIT)) == await archive.history(last.history)
    assert await archive.recent(None, ReadAllowance(LIMIT)) == []


@pytest.mark.parametrize("turns", [5, 6, 20])
async def test_newest_turns_of_history_over_limit_are_read(
    archive: Archive, meter: ReadSizeRecorder, turns: int
) -> None:
    last = await chain(archive, [LARGE] * turns)
    whole = await archive.history(last.history)
    meter.forget()
    held: list[int] = []
    items = await archive.recent(last.history, ReadAllowance(LIMIT, held.append))
    assert items == [whole[0], *whole[-8:]]
    assert 4 * LARGE < sum(held) <= LIMIT
    # The search reads single records, of which the noise compresses to half.
    assert max(meter.brought) < LIMIT
    assert len(meter.brought) < 16


@pytest.mark.parametrize("seed", range(2))
async def test_history_is_cut_at_the_last_turn_that_fits(archive: Archive, seed: int) -> None:
    lengths = [(seed * 31 + number * 17) % 97 * 400 + 80 for number in range(24)]
    last = await chain(archive, lengths)
    whole = await archive.history(last.history)
    for most in range(60_000, 300_000, 80_000):
        held: list[int] = []
        items = await archive.recent(last.history, ReadAllowance(most, held.append))
        left_out = len(whole) - len(items)
        assert left_out > 1
        assert items == [whole[0], *whole[left_out + 1 :]]
        # The turn before them did not fit.
        assert most - sum(held) < len(whole[left_out - 1]["content"][0]["text"]) + 4_000


async def test_newest_turn_over_limit_is_refused(archive: Archive) -> None:
    last = await chain(archive, [LARGE, LARGE, 8 * LARGE])
    with pytest.raises(TooLarge):
        await archive.recent(last.history, ReadAllowance(LIMIT))
    alone = await save(archive, None, user(noise(1, 8 * LARGE)))
    with pytest.raises(TooLarge):
        await archive.recent(alone.history, ReadAllowance(LIMIT))


async def test_turn_of_many_responses_is_left_out_or_kept_whole(archive: Archive) -> None:
    """A turn whose calls the client answers one at a time."""
    stored = await save(archive, None, user("first"))
    for number in range(4):
        call = {"id": f"fc_{number}", "type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        stored = await save(archive, stored, user(noise(number, LARGE)), answer=[call])
        output = {"id": f"fco_{number}", "type": "function_call_output", "call_id": f"c{number}"}
        stored = await save(archive, stored, {**output, "output": noise(number, LARGE)})
    whole = await archive.history(stored.history)
    for most in range(2 * LARGE + 20_000, 8 * LARGE, LARGE):
        items = await archive.recent(stored.history, ReadAllowance(most))
        assert items[0]["role"] == "user"
        assert items == whole[-4 * (len(items) // 4) :]
    with pytest.raises(TooLarge):
        await archive.recent(stored.history, ReadAllowance(LARGE + LARGE // 2))


async def test_recent_items_have_their_own_ids(archive: Archive) -> None:
    """Two chains with the same words share what is stored, but not the ids."""
    lengths = [LARGE] * 7
    await chain(archive, lengths)
    last = await chain(archive, lengths)
    whole = await archive.history(last.history)
    assert await archive.recent(last.history, ReadAllowance(LIMIT)) == [whole[0], *whole[-8:]]
    # `last.input` ends before the last answer.
    assert await archive.recent(last.input, ReadAllowance(LIMIT)) == [whole[0], *whole[-8:-1]]


async def test_ids_of_history_too_large_to_compare_stay_shared(
    archive: Archive, meter: ReadSizeRecorder, clock: Clock
) -> None:
    base = await chain(archive, [LARGE] * 3)
    first = await save(archive, base, user("again"))
    compared = await save(archive, base, user("again"))
    bounded = Archive(meter, clock=clock, page_bytes=PAGE, compared_bytes=2 * LARGE)
    second = await save(bounded, base, user("again"))
    assert second.history == first.history != compared.history
    assert texts(await archive.history(second.history)) == texts(await archive.history(first.history))


async def test_newest_turns_of_conversation_over_limit_are_read(archive: Archive, meter: ReadSizeRecorder) -> None:
    messages = [item for number in range(12) for item in (user(noise(number)), assistant(f"a{number}"))]
    conversation = await conversation_of(archive, SYSTEM, *messages)
    end = conversation.end
    assert await archive.recent_of_conversation(conversation.id, end, ReadAllowance(20 * LARGE)) == [SYSTEM, *messages]
    meter.forget()
    held: list[int] = []
    items = await archive.recent_of_conversation(conversation.id, end, ReadAllowance(LIMIT, held.append))
    assert items == [SYSTEM, *messages[-8:]]
    assert sum(meter.brought) < 3 * LIMIT
    assert sum(held) < LIMIT + 2 * LARGE
    # A response in the conversation, whose history begins with a stand-in.
    stored = await save(archive, None, stand_in(conversation), user("And?"))
    items = await archive.recent(stored.history, ReadAllowance(LIMIT))
    assert items[:-2] == [SYSTEM, *messages[-6:]]
    assert texts(items[-2:]) == ["And?", "a"]
    with pytest.raises(TooLarge):
        await archive.recent_of_conversation(conversation.id, end - 1, ReadAllowance(LARGE // 2))


async def test_recent_part_of_deleted_history_is_not_found(archive: Archive) -> None:
    last = await chain(archive, [LARGE] * 8)
    assert last.history
    await archive.delete(last.response["id"])
    with pytest.raises(ApiError, match="no longer stored"):
        await archive.recent(last.history, ReadAllowance(LIMIT))
