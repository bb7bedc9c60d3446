"""What the operator's commands read of a store, on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.admin.store_view import StoreView
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.read_allowance import PAGE_BYTES
from llama_stack_responses.store.records import Record, Records, bytes_of
from tests.contract.conversations import CREATED, assistant, new_id, response, user
from tests.support.records import WatchedRecords

pytestmark = pytest.mark.needs("many_calls")

ALICE = Owner("alice")


class MeasuredRecords(WatchedRecords):
    """Notes the bytes of the largest read of rows."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.largest = 0

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        found = await super().range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)
        self.largest = max(self.largest, bytes_of(record for _, record in found))
        return found


async def saved(archive: Archive, words: Sequence[str], created: int = CREATED) -> list[str]:
    """Save a chain of responses, one a second and one for each of these words; return their ids."""
    ids: list[str] = []
    base = None
    for number, text in enumerate(words):
        result = response(assistant("answer"), created_at=created + number)
        await archive.save(result, owner=ALICE, base=base, input_items=[user(text)])
        ids.append(result["id"])
        entry = await archive.entry(result["id"])
        assert entry
        base = entry.whole
    return ids


async def test_input_over_the_limit_is_shown_as_its_newest_turns(records: Records) -> None:
    last = (await saved(Archive(records, retention=None), [f"{number} " * 500 for number in range(30)]))[-1]
    whole = await StoreView(records).show(last)
    assert whole
    assert len(whole["input"]) == 59
    assert "input_cut" not in whole
    cut = await StoreView(records, input_bytes=20_000).show(last)
    assert cut
    assert cut["input_cut"] is True
    assert 2 < len(cut["input"]) < 30
    assert cut["input"] == whole["input"][-len(cut["input"]) :]
    nothing = await StoreView(records, input_bytes=10).show(last)
    assert nothing
    assert (nothing["input"], nothing["input_cut"]) == ([], True)


@pytest.mark.extended
async def test_items_of_a_large_conversation_are_read_in_pages(records: Records) -> None:
    measured = MeasuredRecords(records)
    view = StoreView(measured)
    # Hexadecimal digits are compressed to half their size.
    texts = [Random(number).randbytes(1_000_000).hex() for number in range(12)]
    items = [user(text) for text in texts]
    talk = Conversation(new_id("conv"), ALICE, CREATED, {})
    await view.archive.conversations.create(talk, items)
    loaded = await view.archive.conversations.load(talk.id)
    assert loaded
    assert [item async for item in view.items_of(loaded)] == items
    assert 4_000_000 < measured.largest < PAGE_BYTES + 2_000_000
