"""A server is healthy while a part of its store answers: the chains there go on."""

from __future__ import annotations

from typing import cast

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.jobs.worker import Worker
from llama_stack_responses.service.health import Health
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from tests.support.records import WatchedRecords


@pytest.mark.parametrize("number", [0, 5])
async def test_store_answers_although_a_partition_is_away(number: int) -> None:
    parts = [WatchedRecords(MemoryRecords()) for _ in range(64)]
    health = Health(PartitionedRecords(parts), cast("Worker", None))
    for _ in range(2):
        parts[number].away = True
        assert await health.store()
    for part in parts:
        part.away = True
    with pytest.raises(ApiError, match="cannot be reached"):
        await health.store()
    parts[health._answered].away = False
    assert await health.store()


async def test_store_with_one_partition_answers_or_not() -> None:
    records = WatchedRecords(MemoryRecords())
    health = Health(records, cast("Worker", None))
    assert await health.store()
    records.away = True
    with pytest.raises(ApiError, match="cannot be reached"):
        await health.store()
