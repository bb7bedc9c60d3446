"""What another server has just written of a background response is read once the store cannot lose it any more."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.support.records import WatchedRecords
from tests.support.waiting import turns
from tests.unit.service.test_short_requests import server


class Lagging(WatchedRecords):
    """Records whose replicas may be behind."""

    behind = False

    async def replicated(self, response_id: str) -> None:
        if self.behind:
            raise ApiError(503, "too few replicas")


async def test_background_response_is_read_once_replicas_have_it() -> None:
    records = Lagging(MemoryRecords())
    impl = server(records, FakeInference([text("Hello."), finish()]), SingleUserAccess(), Intervals())
    await impl.prepare()
    impl.start()
    try:
        created: Any = await impl.create({"model": "m", "input": "Hi.", "background": True})
        response_id = created.response["id"]
        while (await impl.reader.retrieve(response_id))["status"] != "completed":
            await turns(1)
        records.behind = True
        with pytest.raises(ApiError, match="too few replicas"):
            await impl.reader.retrieve(response_id)
        records.behind = False
        assert (await impl.reader.retrieve(response_id))["id"] == response_id
    finally:
        await impl.shutdown()
