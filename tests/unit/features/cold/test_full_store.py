"""What is packed is read where it is while the store has no room to bring it back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.cold import units
from llama_stack_responses.items.listed_items import Page
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, NoRoom, Op
from llama_stack_responses.store.wrapped import WrappedRecords
from tests.contract.conversations import CREATED
from tests.contract.test_cold import ALICE, chain, with_pictures
from tests.support.access import SingleUserAccess
from tests.support.cold import AFTER, ColdStore, in_folder
from tests.support.inference import FakeInference
from tests.unit.service.test_short_requests import server


class Full(WrappedRecords):
    """A store that may be full."""

    is_full = False

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if self.is_full:
            raise NoRoom(503, "The response store has no room left.", retry_after=1)
        await super().commit(ops, conditions)


async def shown(impl: OpenAIResponsesImpl, response_id: str) -> tuple[object, object]:
    items = await impl.reader.input_items(response_id, limit=100, after=None, order="asc")
    return await impl.reader.retrieve(response_id), items


async def listed(impl: OpenAIResponsesImpl) -> Page:
    return await impl.reader.list(limit=100, after=None, order="asc", model=None)


@pytest.mark.parametrize("store", [chain, with_pictures])
async def test_response_is_shown_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Callable[[Archive, int], Awaitable[list[StoredResponse]]]
) -> None:
    monkeypatch.setattr(units, "PART_BYTES", 20_000)
    monkeypatch.setattr(units, "UNIT_BYTES", 100_000)
    now = CREATED + 2 * AFTER
    records = Full(MemoryRecords(clock=lambda: now))
    cold = ColdStore(records, in_folder(tmp_path), lambda: now)
    config = ResponsesConfig(retention_days=None)
    impl = server(cold.records, FakeInference(), SingleUserAccess(ALICE), config=config)
    made = [each.response["id"] for each in await store(cold.archive, 3)]
    before, list_before = [await shown(impl, each) for each in made], await listed(impl)
    await cold.packing.work()
    assert await cold.packed() == set(made)
    records.is_full = True
    assert [await shown(impl, each) for each in made] == before
    assert await listed(impl) == list_before
    assert await cold.packed() == set(made)
    with pytest.raises(ApiError, match="no room"):
        await impl.reader.find(made[-1], "update")
    records.is_full = False
    assert await shown(impl, made[-1]) == before[-1]
    assert await cold.packed() == set()
    await impl.shutdown()
