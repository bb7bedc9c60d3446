"""A server that starts while its store is away stores and hides no response by the clock of its own machine."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.types import Json
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.support.records import WatchedRecords
from tests.unit.service.test_short_requests import server

NOW: Final = 1_000_000_000.0


class OtherClock(WatchedRecords):
    """Records of a server with a clock of its own, which is far from that of this machine."""

    @property
    def has_own_clock(self) -> bool:
        return True


async def created(impl: OpenAIResponsesImpl, **fields: Any) -> Json:
    """Create a response."""
    run = await impl.create({"model": "m", "input": "Hi.", **fields})
    assert isinstance(run, ForegroundRun)
    await run.begin()
    return await run.finish()


async def started_while_away(records: OtherClock, *rounds: Any) -> OpenAIResponsesImpl:
    """Return a server of which nothing but requests reads the clock."""
    impl = server(records, FakeInference(*rounds), SingleUserAccess(), Intervals(store_retry_seconds=600.0))
    records.away = True
    await impl.prepare()
    return impl


async def test_response_is_stored_once_the_clock_of_the_store_is_known() -> None:
    records = OtherClock(MemoryRecords(clock=lambda: NOW))
    impl = await started_while_away(records, *([text("Hello."), finish()] for _ in range(2)))
    impl.start()
    with pytest.raises(ApiError, match="cannot be reached") as refused:
        await created(impl)
    assert refused.value.status == 503
    assert (await created(impl, store=False))["created_at"] != NOW
    records.away = False
    assert (await created(impl))["created_at"] == NOW
    await impl.shutdown()


async def test_stored_response_has_not_expired_as_long_as_the_clock_of_the_store_is_not_known() -> None:
    records = OtherClock(MemoryRecords(clock=lambda: NOW))
    other = server(records, FakeInference([text("Hello."), finish()]), SingleUserAccess())
    response_id = (await created(other))["id"]
    impl = await started_while_away(records)
    records.away = False
    assert (await impl.reader.retrieve(response_id))["id"] == response_id
    listed = await impl.reader.list(limit=9, after=None, order="desc", model=None)
    assert [each["id"] for each in listed.data] == [response_id]
    await impl.delete(response_id)
    with pytest.raises(ApiError, match="not found"):
        await other.reader.retrieve(response_id)
    await other.shutdown()
    await impl.shutdown()
