"""References to stored items: each item is loaded once, and all of them are bounded together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.inputs.history import HistoryBounds, HistoryReader
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from tests.contract.conversations import response, user
from tests.contract.counting_proxy import CountingProxy

Json = dict[str, Any]

ADA = Owner("ada")


async def history_reader(items: Sequence[Json], most: int) -> tuple[HistoryReader, CountingProxy]:
    """Return a history reader on a store that holds these items."""
    counting = CountingProxy(MemoryRecords(10_000, 2**20))
    archive = Archive(counting, clock=lambda: 0.0, retention=None)
    await archive.save(response(), owner=ADA, base=None, input_items=items)
    counting.reads = 0
    return HistoryReader(archive, access=None, bounds=HistoryBounds(most, 2**20, 2**20)), counting  # type: ignore[arg-type]


def reference(item: Json) -> Json:
    return {"type": "item_reference", "id": item["id"]}


async def test_references_are_replaced_in_place() -> None:
    items, between = [user("a"), user("b")], user("between")
    history, _ = await history_reader(items, 10_000)
    questions = [reference(items[1]), between, reference(items[0])]
    assert await history.dereference(ADA, questions) == [items[1], between, items[0]]


async def test_duplicate_reference_is_refused_before_loading() -> None:
    item = user("a")
    history, counting = await history_reader([item], 10_000)
    with pytest.raises(ApiError, match=f"Duplicate item found with id {item['id']}") as raised:
        await history.dereference(ADA, [reference(item)] * 1000)
    assert (raised.value.status, raised.value.param) == (400, "input")
    assert counting.reads == 0


async def test_references_over_limit_are_refused() -> None:
    items = [user("x" * 1000) for _ in range(5)]
    history, _ = await history_reader(items, 4000)
    assert len(await history.dereference(ADA, [reference(item) for item in items[:3]])) == 3
    with pytest.raises(ApiError, match="more than 4000 bytes together") as raised:
        await history.dereference(ADA, [reference(item) for item in items], "items")
    assert (raised.value.status, raised.value.param) == (400, "items")


async def test_unknown_reference_is_named() -> None:
    item = user("a")
    history, _ = await history_reader([item], 10_000)
    with pytest.raises(ApiError, match="'msg_unknown' not found") as raised:
        await history.dereference(ADA, [reference(item), {"type": "item_reference", "id": "msg_unknown"}])
    assert raised.value.status == 404
