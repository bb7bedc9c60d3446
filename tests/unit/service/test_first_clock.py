"""A server that starts while its store is away stores no response by the clock of its own machine."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
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


async def created_at(impl: OpenAIResponsesImpl, **fields: Any) -> int:
    """Create a response, and return its time."""
    run = await impl.create({"model": "m", "input": "Hi.", **fields})
    assert isinstance(run, ForegroundRun)
    await run.begin()
    created: int = (await run.finish())["created_at"]
    return created


async def test_response_is_stored_once_the_clock_of_the_store_is_known() -> None:
    records = OtherClock(MemoryRecords(clock=lambda: NOW))
    rounds = [[text("Hello."), finish()] for _ in range(2)]
    # Nothing but the requests reads the clock.
    impl = server(records, FakeInference(*rounds), SingleUserAccess(), Intervals(store_retry_seconds=600.0))
    records.away = True
    await impl.prepare()
    impl.start()
    with pytest.raises(ApiError, match="cannot be reached") as refused:
        await created_at(impl)
    assert refused.value.status == 503
    assert await created_at(impl, store=False) != NOW
    records.away = False
    assert await created_at(impl) == NOW
    await impl.shutdown()
