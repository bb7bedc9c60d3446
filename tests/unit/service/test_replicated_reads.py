"""What another server has just written of a background response is read once the store cannot lose it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, override

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.features.webhooks.deliveries import Deliveries
from llama_stack_responses.features.webhooks.endpoints import Endpoints
from llama_stack_responses.features.webhooks.rows import Event, endpoint_key
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.jobs.event_follower import EventFollower
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.job import JobState
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.service.idempotency import IdempotencyClaim, IdempotencyKeys
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Delete, Op, Put, Record, read_replicated
from tests.contract.conversations import assistant, response, user
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.support.records import FailingOver, WatchedRecords
from tests.support.waiting import turns
from tests.unit.service.test_short_requests import server


class Lagging(WatchedRecords):
    """Records whose replicas may be behind."""

    behind = False

    async def replicated(self, tag: int, server: str) -> bool:
        if self.behind:
            raise ApiError(503, "too few replicas")
        return await super().replicated(tag, server)


async def test_what_a_replaced_server_had_alone_is_not_read() -> None:
    key, lost, other = "e/resp_1/00000001", MemoryRecords(), MemoryRecords()
    await lost.commit([Put(key, b"lost")])
    await other.commit([Put(key, b"again")])

    async def read_by(records: FailingOver) -> bytes:
        return (await records.get_many([key]))[key].value

    needed, unneeded = (FailingOver(lost, other, after=("get_many",)) for _ in range(2))
    assert await read_replicated(needed, 0, partial(read_by, needed), lambda _: True) == b"again"
    assert await read_replicated(unneeded, 0, partial(read_by, unneeded), lambda _: False) == b"lost"


async def test_reader_is_noted_although_a_replaced_server_alone_had_the_end_of_the_job() -> None:
    lost, other, notifier = MemoryRecords(), MemoryRecords(), Notifier()
    created = {"type": "response.created", "sequence_number": 0}
    for primary in (lost, other):
        await primary.commit(await EventLog(primary, notifier).batch("resp_1", [created]))
    await other.commit([Put("j/resp_1", JobState(ANONYMOUS, "1").encode())])
    records = FailingOver(lost, other, after=("get_many",))
    follower = EventFollower(notifier, JobQueue(records, 10), EventLog(records, notifier), Intervals())
    assert await anext(follower.follow("resp_1", -1, 60.0)) == [created]
    assert await records.get_many(["s/resp_1"]), "what it has read may not be taken back"


class Lost(WatchedRecords):
    """Records of which the first server has, or lacks, what the second one does not: `commit` is what only it has."""

    def __init__(self, only: Sequence[Op]) -> None:
        super().__init__(MemoryRecords())
        self._only, self.server = only, "first"

    def server_of(self, tag: int) -> str:
        return self.server

    async def replicated(self, tag: int, server: str) -> bool:
        self.server = "second"
        return server == "second"

    @override
    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        found = await super().get_many(keys, max_bytes=max_bytes)
        only = {op.key: op for op in self._only if self.server == "first" and isinstance(op, Put | Delete)}
        gone = {key for key, op in only.items() if isinstance(op, Delete)}
        new = {key: Record(op.value, 1) for key, op in only.items() if key in keys and isinstance(op, Put)}
        return {key: record for key, record in found.items() if key not in gone} | new


async def test_idempotency_key_that_a_lost_server_alone_had_is_free() -> None:
    claim = IdempotencyClaim.of(ANONYMOUS, "key", {"input": "Hi."})
    ops, _ = await IdempotencyKeys(MemoryRecords()).claim_ops(claim, "resp_1")
    assert await IdempotencyKeys(Lost(ops)).find(claim) is None


async def test_end_that_a_lost_server_alone_had_is_waited_for() -> None:
    records, notifier = Lost([Delete("j/resp_1")]), Notifier()
    await records.commit([Put("j/resp_1", JobState(ANONYMOUS, "1").encode())])
    follower = EventFollower(notifier, JobQueue(records, 10), EventLog(records, notifier), Intervals())
    waiting = asyncio.create_task(follower.ended("resp_1"))
    await turns(20)
    assert not waiting.done()
    waiting.cancel()


async def test_response_whose_deletion_is_lost_is_deleted_again() -> None:
    records = Lost([Delete("r/resp_1")])
    archive = Archive(records)
    await archive.save(
        response(assistant("Hello."), id="resp_1"), owner=ANONYMOUS, base=None, input_items=[user("Hi.")]
    )
    assert await archive.delete("resp_1")
    assert await archive.load("resp_1") is None


async def test_conversation_and_item_whose_deletion_is_lost_are_deleted_again() -> None:
    records = Lost([])
    conversations = Archive(records).conversations
    conversation = Conversation("conv_1", ANONYMOUS, 0, {})
    await conversations.create(conversation, [{**user("Hi."), "id": "msg_1"}])
    rows = [key for key, _ in await records.range("!", "~", limit=100)]
    records._only = [Delete(key) for key in rows]
    assert await conversations.load("conv_1")
    records.server = "first"
    assert await conversations.remove(conversation, "msg_1")


async def test_message_is_sent_once_replicas_have_the_end_of_the_response() -> None:
    records = Lagging(MemoryRecords())
    deliveries = Deliveries(records, Endpoints(records), {"we_1": ["response.completed"]}, 60.0)
    await records.commit([Event("response.completed", "resp_1", "", 1.0).put(2e10)])
    await deliveries.make()
    records.behind, now = True, await records.now() + 1
    with pytest.raises(ApiError, match="too few replicas"):
        await deliveries.due("we_1", now, 9)
    records.behind = False
    assert len(await deliveries.due("we_1", now, 9)) == 1


async def test_endpoint_whose_deletion_is_lost_is_there() -> None:
    records = Lost([])
    endpoints = Endpoints(records, Sealer([b"k" * 32]))
    created, _ = await endpoints.create(ANONYMOUS, "Jobs", "http://127.0.0.1", ["response.completed"], 9)
    of = Hasher(ANONYMOUS).owner
    records._only, records.server = [Delete(endpoint_key(of, created.id))], "first"
    assert await endpoints.find(of, created.id) == created
    records.server = "first"
    assert (await endpoints.update(ANONYMOUS, created.id, {"name": "Other"})).name == "Other"


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


async def test_end_of_a_background_response_that_comes_while_it_is_read_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[str]()

    async def note(name: str) -> None:
        calls.append(name)

    async def replicated(*_: object) -> bool:
        calls.append("replicated")
        return True

    records = Lagging(MemoryRecords(), before=note)
    monkeypatch.setattr(records, "replicated", replicated)
    impl = server(records, FakeInference([]), SingleUserAccess(), Intervals())
    queued = response(id="resp_1", status="queued", background=True, created_at=int(await records.now()))
    await impl.archive.save(queued, owner=ANONYMOUS, base=None, input_items=[user("Hi.")])
    calls.clear()
    # It has no job any more, so its end is read.
    assert (await impl.reader.retrieve("resp_1"))["status"] == "queued"
    assert calls.count("get_many") > 2
    assert calls[-1] == "replicated"
    await impl.shutdown()


async def test_item_is_added_behind_those_that_another_server_has_at_the_version_that_was_read() -> None:
    lost, other = MemoryRecords(), MemoryRecords()
    conversation = Conversation("conv_1", ANONYMOUS, 0, {})
    for primary, ids in ((lost, ["msg_lost"]), (other, ["msg_1", "msg_2"])):
        conversations = Archive(primary).conversations
        await conversations.create(conversation, [])
        await conversations.add(conversation, [{**user("Hi."), "id": each} for each in ids])
    records = FailingOver(lost, other, after=("get_many",))
    await Archive(records).conversations.add(conversation, [{**user("Hi."), "id": "msg_3"}])
    items = await Archive(other).conversations.items("conv_1", 9)
    assert [each["id"] for each in items] == ["msg_1", "msg_2", "msg_3"]
