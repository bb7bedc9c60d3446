"""A Redis or Valkey server at its `maxmemory` has room again once responses are packed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from redis import Redis

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.jobs.worker_leases import WorkerLeases
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import NoRoom
from llama_stack_responses.store.redis import RedisRecords
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, assistant, response, user
from tests.contract.test_cold import ALICE
from tests.support.access import SingleUserAccess
from tests.support.cluster import OneNode
from tests.support.cold import AFTER, ColdStore, in_folder
from tests.support.inference import FakeInference
from tests.support.valkey import PATIENCE, Valkey
from tests.unit.features.cold.test_full_store import shown
from tests.unit.service.test_short_requests import server


async def store(archive: Archive, number: int) -> str:
    created = response(assistant(random.Random(number).randbytes(100_000).hex()), created_at=CREATED + number)
    await archive.save(created, owner=ALICE, base=None, input_items=[user(f"question {number}")])
    return str(created["id"])


async def delete(impl: OpenAIResponsesImpl, response_id: str) -> None:
    await impl.delete(response_id)
    with pytest.raises(ApiError, match="not found"):
        await shown(impl, response_id)


@pytest.mark.parametrize("in_cluster", [False, pytest.param(True, marks=pytest.mark.extended)])
async def test_full_server_has_room_once_responses_are_packed(tmp_path: Path, in_cluster: bool) -> None:
    kind, clock = OneNode if in_cluster else Valkey, Clock(CREATED + 2 * AFTER)
    with (
        kind(tmp_path / "server", "--appendfsync", "no") as running,
        Redis.from_url(f"{running.url}?{PATIENCE}") as admin,
    ):
        records = RedisRecords(f"{running.url}?{PATIENCE}", partition=0 if in_cluster else None, clock=clock)
        cold = ColdStore(records, in_folder(tmp_path), clock)
        config = ResponsesConfig(retention_days=None)
        impl = server(cold.records, FakeInference(), SingleUserAccess(ALICE), config=config)
        made = [await store(cold.archive, number) for number in range(10)]
        before = {each: await shown(impl, each) for each in made}
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - 300_000)
        with pytest.raises(NoRoom):
            await store(cold.archive, 10)
        await delete(impl, made.pop())
        # A server packs as long as it has its lease.
        cold.packing.shares.worker = "worker"
        await WorkerLeases(records, 30, clock).renew("worker", clock.now, [], first_needed=True)
        await cold.packing.work()
        assert await cold.packed() == set(made)
        # What they have left stays for a while, for what has just read them.
        with pytest.raises(NoRoom):
            await store(cold.archive, 10)
        assert await shown(impl, made[0]) == before[made[0]]
        await delete(impl, made.pop())
        await WorkerLeases(records, 3600, clock).renew("worker", clock.now, [], first_needed=True)
        clock.now += 1800
        await cold.packing.work()
        await store(cold.archive, 10)
        assert [await shown(impl, each) for each in made] == [before[each] for each in made]
        await impl.shutdown()
        await records.close()
