"""What another server has just written of a background response is read once the store cannot lose it any more."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put, read_replicated
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.support.records import WatchedRecords
from tests.support.waiting import turns
from tests.unit.service.test_short_requests import server


class Lagging(WatchedRecords):
    """Records whose replicas may be behind."""

    behind = False

    async def replicated(self, response_id: str, server: str) -> bool:
        if self.behind:
            raise ApiError(503, "too few replicas")
        return await super().replicated(response_id, server)


class FailingOver(WatchedRecords):
    """Records whose server has been replaced once something was read; replicas have all that the new one has."""

    server = "first"

    def server_of(self, response_id: str) -> str:
        return self.server

    async def replicated(self, response_id: str, server: str) -> bool:
        return self.server == server


async def test_what_a_replaced_server_had_alone_is_not_read() -> None:
    records = FailingOver(MemoryRecords())
    await records.commit([Put("e/resp_1/00000001", b"lost")])

    async def read() -> bytes:
        found = (await records.get_many(["e/resp_1/00000001"]))["e/resp_1/00000001"].value
        if records.server == "first":
            records.server = "second"
            await records.commit([Put("e/resp_1/00000001", b"again")])
        return found

    assert await read_replicated(records, "resp_1", read, bool) == b"again"
    records.server = "first"
    assert await read_replicated(records, "resp_1", read, lambda _: False) == b"again"


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
