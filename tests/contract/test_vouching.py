"""A foreground response whose server died is failed, not unknown."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.listing import with_ids
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.schema.request import parse_create
from llama_stack_responses.core.stream.response import new_response
from llama_stack_responses.jobs.foreground_leases import Vouchers
from llama_stack_responses.jobs.queue import LEASE, Jobs
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Conflict, Put, Records, after_prefix
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED
from tests.support.strict import validate_response

pytestmark = pytest.mark.needs("work")

ALICE = Owner("alice", {"teams": ["search"]})


class Server:
    """One process with its worker."""

    def __init__(self, records: Records, clock: Clock, worker: str) -> None:
        self.archive = Archive(records, clock=clock)
        self.jobs = Jobs(records, 10)
        self.worker = worker
        self.vouchers = Vouchers(records, self.archive, worker)

    async def begin(self, **fields: Any) -> dict[str, Any]:
        """A response that this server makes."""
        request = parse_create({"model": "m", "input": "hi"})
        made = new_response(request, id=new_id("resp"), created_at=CREATED) | fields
        items = with_ids([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}])
        await self.jobs.breathe(self.worker)
        await self.vouchers.vouch(made, owner=ALICE, base=None, input_items=items, base_items=[])
        return made

    async def end(self, made: dict[str, Any]) -> dict[str, Any]:
        """The response as it is stored at its end."""
        done = made | {"status": "completed"}
        beside, unburied = self.vouchers.settled(made["id"])
        await self.archive.save(done, owner=ALICE, base=None, input_items=[], beside=beside, conditions=[unburied])
        return done


async def left(records: Records) -> list[str]:
    """The rows that vouch for something."""
    return [key for prefix in ("o/", "v/") for key, _ in await records.range(prefix, after_prefix(prefix), limit=99)]


async def test_the_response_of_a_dead_server_is_failed(records: Records, clock: Clock) -> None:
    dying, other = Server(records, clock, "worker_1"), Server(records, clock, "worker_2")
    made = await dying.begin()
    await other.vouchers.bury()
    assert await other.archive.load(made["id"]) is None
    clock.now += LEASE + 1
    await other.vouchers.bury()
    stored = await other.archive.load(made["id"])
    assert stored is not None
    assert (stored.owner, stored.response["status"]) == (ALICE, "failed")
    assert stored.response["error"] == {
        "code": "server_error",
        "message": "The server ended while it made this response.",
    }
    assert [item["content"][0]["text"] for item in await other.archive.history(stored.input)] == ["hi"]
    validate_response(stored.response)
    assert await left(records) == []


async def test_what_is_stored_needs_nobody_to_vouch(records: Records, clock: Clock) -> None:
    server = Server(records, clock, "worker_1")
    made = await server.begin()
    done = await server.end(made)
    assert await left(records) == []
    clock.now += LEASE + 1
    await server.vouchers.bury()
    stored = await server.archive.load(made["id"])
    assert stored is not None
    assert stored.response == done


async def test_one_that_cannot_be_read_keeps_no_other_from_being_failed(records: Records, clock: Clock) -> None:
    dying, other = Server(records, clock, "worker_1"), Server(records, clock, "worker_2")
    made = [await dying.begin() for _ in range(3)]
    await records.commit([Put(f"v/{made[1]['id']}", b"\x02")])
    clock.now += LEASE + 1
    await other.vouchers.bury()
    found = [await other.archive.load(each["id"]) is not None for each in made]
    assert found == [True, False, True]


@pytest.mark.parametrize("deleted", [False, True])
async def test_who_was_taken_for_dead_stores_nothing_more(records: Records, clock: Clock, deleted: bool) -> None:
    stopped, other = Server(records, clock, "worker_1"), Server(records, clock, "worker_2")
    made = await stopped.begin()
    clock.now += LEASE + 1
    await other.vouchers.bury()
    if deleted:
        await other.archive.delete(made["id"])
    buried = await other.archive.load(made["id"])
    await stopped.jobs.breathe("worker_1")
    with pytest.raises(Conflict):
        await stopped.end(made)
    assert await other.archive.load(made["id"]) == buried
    assert await left(records) == []


async def test_what_the_store_did_not_take_is_failed_as_its_reader_was_told(records: Records, clock: Clock) -> None:
    server = Server(records, clock, "worker_1")
    made = await server.begin()
    server.vouchers.give_up(made["id"], ApiError(503, "The disk is full."))
    for _ in range(2):
        await server.vouchers.own_up()
        stored = await server.archive.load(made["id"])
        assert stored is not None
        assert (stored.owner, stored.response["status"]) == (ALICE, "failed")
        assert stored.response["error"] == {"code": "server_error", "message": "The disk is full."}
        assert await left(records) == []


async def test_of_a_response_that_is_not_stored_nothing_is_left(records: Records, clock: Clock) -> None:
    server = Server(records, clock, "worker_1")
    made = await server.begin()
    await server.vouchers.withdraw(made["id"])
    assert await left(records) == []
    clock.now += LEASE + 1
    await server.vouchers.bury()
    assert await server.archive.load(made["id"]) is None


@pytest.mark.parametrize("size", [40_000, 70_000])
@pytest.mark.parametrize("field", ["instructions", "tools"])
async def test_very_large_fields_are_left_out(records: Records, clock: Clock, field: str, size: int) -> None:
    server = Server(records, clock, "worker_1")
    large = {
        "instructions": "x" * size,
        "tools": [{"type": "function", "name": "f", "parameters": None, "strict": None, "description": "x" * size}],
    }
    made = await server.begin(**{field: large[field]})
    clock.now += LEASE + 1
    await server.vouchers.bury()
    stored = await server.archive.load(made["id"])
    assert stored is not None
    assert bool(stored.response[field]) is (size == 40_000)
    validate_response(stored.response)
