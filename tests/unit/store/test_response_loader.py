"""Pages of responses of which part of the content is gone."""

from __future__ import annotations

import pytest

from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Delete, Records
from llama_stack_responses.store.response_loader import ResponseLoader
from llama_stack_responses.store.retention import Retention
from tests.contract.conversations import CREATED, assistant, response, user

PAGE_BYTES = 2_000


async def stored(records: Records, gone: range) -> list[str]:
    """Store six responses, of which two fill a page; return their ids, newest first. Contents of some are deleted."""
    archive, ids = Archive(records, clock=lambda: CREATED + 9), list[str]()
    for number in range(6):
        created = response(assistant(f"{number} " * 600), created_at=CREATED + number)
        before = {key for key, _ in await records.range("n/", "n0", limit=99)}
        await archive.save(created, owner=ANONYMOUS, base=None, input_items=[user(str(number))])
        ids.insert(0, created["id"])
        if number in gone:
            after = {key for key, _ in await records.range("n/", "n0", limit=99)}
            await records.commit([Delete(key) for key in after - before])
    return ids


@pytest.mark.parametrize("gone", [range(3, 6), range(6), range(2, 4)])
async def test_responses_whose_content_is_gone_are_left_out(gone: range) -> None:
    records = MemoryRecords()
    ids = await stored(records, gone)
    loader = ResponseLoader(records, Decoder(), Retention(None, lambda: CREATED), PAGE_BYTES)
    kept = [each for number, each in enumerate(ids) if 5 - number not in gone]
    assert [found.response["id"] async for found, _ in loader.with_inputs(ids)] == kept

    archive = Archive(records, clock=lambda: CREATED + 9, page_bytes=PAGE_BYTES)
    listed, after = list[str](), None
    while True:
        page = await archive.list(ANONYMOUS, limit=2, after=after, order="desc", model=None)
        listed += [each.response["id"] for each in page.items]
        if not page.has_more:
            break
        after = page.last
        assert after
    assert listed == kept
