"""A foreground response whose server died ends as failed, not unknown."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.items.listed_items import with_ids
from llama_stack_responses.jobs.foreground_leases import ForegroundLeases, Lease
from llama_stack_responses.jobs.heartbeat import Heartbeat
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Conflict, Put, Records, after_prefix
from llama_stack_responses.stream.response import new_response
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED
from tests.support.strict import validate_response

pytestmark = pytest.mark.needs("transactions")

ALICE = Owner("alice", {"teams": ["search"]})


class Server:
    """One process with its worker."""

    def __init__(self, records: Records, clock: Clock, worker: str) -> None:
        self.archive = Archive(records, clock=clock)
        self.jobs = JobQueue(records, 10)
        self.worker = worker
        self.leases: dict[str, Lease] = {}
        self.foreground_leases = ForegroundLeases(records, self.archive, worker, Heartbeat(self.jobs, worker))

    async def begin(self, **fields: Any) -> dict[str, Any]:
        """Begin a response on this server."""
        request = parse_create({"model": "m", "input": "hi"})
        created = new_response(request, id=new_id("resp"), created_at=CREATED) | fields
        items = with_ids([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}])
        await self.jobs.heartbeat(self.worker)
        lease = await self.foreground_leases.acquire(created, owner=ALICE, base=None, input_items=items, base_items=[])
        assert lease
        self.leases[created["id"]] = lease
        return created

    async def fail_abandoned(self) -> None:
        """Do what this server does about dead ones after it has renewed its lease."""
        await self.jobs.heartbeat(self.worker)
        await self.foreground_leases.fail_abandoned()

    async def end(self, response: dict[str, Any]) -> dict[str, Any]:
        """Store the final response, and return it."""
        done = response | {"status": "completed"}
        lease = self.leases[response["id"]]
        await self.archive.save(
            done, owner=ALICE, base=None, input_items=[], extra_ops=lease.ops, conditions=lease.conditions
        )
        return done


async def left(records: Records) -> list[str]:
    """Return the rows of foreground leases."""
    return [key for prefix in ("o/", "v/") for key, _ in await records.range(prefix, after_prefix(prefix), limit=99)]


async def test_foreground_response_of_dead_server_is_failed(records: Records, clock: Clock) -> None:
    dying, other = Server(records, clock, "worker_1"), Server(records, clock, "worker_2")
    created = await dying.begin()
    await other.fail_abandoned()
    assert await other.archive.load(created["id"]) is None
    clock.now += DEFAULT.lease_seconds + 1
    await other.fail_abandoned()
    stored = await other.archive.load(created["id"])
    assert stored is not None
    assert (stored.owner, stored.response["status"]) == (ALICE, "failed")
    assert stored.response["error"] == {
        "code": "server_error",
        "message": "The server ended while it generated this response.",
    }
    assert [item["content"][0]["text"] for item in await other.archive.history(stored.input)] == ["hi"]
    validate_response(stored.response)
    assert await left(records) == []


async def test_server_whose_own_lease_expired_fails_no_response_of_others(records: Records, clock: Clock) -> None:
    living, other = Server(records, clock, "worker_1"), Server(records, clock, "worker_2")
    created = await living.begin()
    await other.jobs.heartbeat("worker_2")
    # The clock jumps, or the machine sleeps, after the heartbeat and before the server looks at the leases.
    clock.now += DEFAULT.lease_seconds + 1
    await other.foreground_leases.fail_abandoned()
    assert await living.end(created)
    stored = await other.archive.load(created["id"])
    assert stored is not None
    assert stored.response["status"] == "completed"


async def test_stored_response_needs_no_lease(records: Records, clock: Clock) -> None:
    server = Server(records, clock, "worker_1")
    created = await server.begin()
    done = await server.end(created)
    assert await left(records) == []
    clock.now += DEFAULT.lease_seconds + 1
    await server.fail_abandoned()
    stored = await server.archive.load(created["id"])
    assert stored is not None
    assert stored.response == done


async def test_unreadable_lease_does_not_block_failing_others(records: Records, clock: Clock) -> None:
    dying, other = Server(records, clock, "worker_1"), Server(records, clock, "worker_2")
    created = [await dying.begin() for _ in range(3)]
    await records.commit([Put(f"v/{created[1]['id']}", b"\x02")])
    clock.now += DEFAULT.lease_seconds + 1
    await other.fail_abandoned()
    found = [await other.archive.load(each["id"]) is not None for each in created]
    assert found == [True, False, True]


@pytest.mark.parametrize("deleted", [False, True])
async def test_server_with_expired_lease_cannot_store_response(records: Records, clock: Clock, deleted: bool) -> None:
    stopped, other = Server(records, clock, "worker_1"), Server(records, clock, "worker_2")
    created = await stopped.begin()
    clock.now += DEFAULT.lease_seconds + 1
    await other.fail_abandoned()
    if deleted:
        await other.archive.delete(created["id"])
    buried = await other.archive.load(created["id"])
    await stopped.jobs.heartbeat("worker_1")
    with pytest.raises(Conflict):
        await stopped.end(created)
    assert await other.archive.load(created["id"]) == buried
    assert await left(records) == []


async def test_unstored_response_is_failed_with_error_sent_to_reader(records: Records, clock: Clock) -> None:
    server = Server(records, clock, "worker_1")
    created = await server.begin()
    server.leases[created["id"]].mark_unstored(ApiError(503, "The disk is full."))
    for _ in range(2):
        await server.foreground_leases.flush_unstored()
        stored = await server.archive.load(created["id"])
        assert stored is not None
        assert (stored.owner, stored.response["status"]) == (ALICE, "failed")
        assert stored.response["error"] == {"code": "server_error", "message": "The disk is full."}
        assert await left(records) == []


async def test_withdrawn_lease_leaves_no_records(records: Records, clock: Clock) -> None:
    server = Server(records, clock, "worker_1")
    created = await server.begin()
    await server.leases[created["id"]].withdraw()
    assert await left(records) == []
    clock.now += DEFAULT.lease_seconds + 1
    await server.fail_abandoned()
    assert await server.archive.load(created["id"]) is None


@pytest.mark.parametrize("size", [40_000, 70_000])
@pytest.mark.parametrize("field", ["instructions", "tools"])
async def test_oversized_fields_are_left_out_of_failed_response(
    records: Records, clock: Clock, field: str, size: int
) -> None:
    server = Server(records, clock, "worker_1")
    large = {
        "instructions": "x" * size,
        "tools": [{"type": "function", "name": "f", "parameters": None, "strict": None, "description": "x" * size}],
    }
    created = await server.begin(**{field: large[field]})
    clock.now += DEFAULT.lease_seconds + 1
    await Server(records, clock, "worker_2").fail_abandoned()
    stored = await server.archive.load(created["id"])
    assert stored is not None
    assert bool(stored.response[field]) is (size == 40_000)
    validate_response(stored.response)
