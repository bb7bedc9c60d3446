"""What `tail` sees of a store, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.types import Json
from llama_stack_responses.features.admin.follow import ChangeFollower
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Records
from tests.contract.conversations import assistant, response, user

pytestmark = pytest.mark.needs("many_calls")

ALICE = Owner("alice")
BOB = Owner("bob")


def any_row(_: Json) -> bool:
    return True


def completed(row: Json) -> bool:
    return bool(row["status"] == "completed")


class Store:
    """Saves responses in a store, as servers do."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.archive = Archive(records, retention=None)

    async def save(self, ago: float, owner: Owner = ALICE, **fields: Any) -> str:
        """Save a response that was created so many seconds ago; return its id."""
        created = response(assistant("answer"), created_at=int(await self.records.now() - ago), **fields)
        await self.archive.save(created, owner=owner, base=None, input_items=[user("question")])
        return str(created["id"])


@pytest.fixture
def store(records: Records) -> Store:
    return Store(records)


async def ids(follower: ChangeFollower, wanted: Callable[[Json], bool] = any_row) -> list[str]:
    return [row["id"] for row in await follower.changed(wanted)]


async def test_response_stored_after_one_that_was_created_later_is_seen_once(records: Records, store: Store) -> None:
    follower = ChangeFollower(records, None)
    assert await follower.first(10, any_row) == []
    fast = await store.save(1)
    assert await ids(follower) == [fast]
    slow = await store.save(600, BOB)
    [row] = await follower.changed(any_row)
    assert (row["id"], row["owner"].principal) == (slow, "bob")
    assert await ids(follower) == []


async def test_response_whose_status_becomes_wanted_is_seen(records: Records, store: Store) -> None:
    follower = ChangeFollower(records, None)
    await follower.first(10, any_row)
    created = response(status="queued", background=True, created_at=int(await records.now()) - 5)
    await store.archive.save(created, owner=ALICE, base=None, input_items=[user("question")])
    assert await ids(follower, completed) == []
    waiting = await store.archive.load(created["id"])
    assert waiting
    done = created | {"status": "completed", "output": [assistant("answer")]}
    await store.archive.save(done, owner=ALICE, base=waiting.input, input_items=[])
    assert await ids(follower, completed) == [created["id"]]
    assert await ids(follower, completed) == []


async def test_responses_before_the_first_look_are_not_new(records: Records, store: Store) -> None:
    created = [await store.save(30 - number) for number in range(4)]
    follower = ChangeFollower(records, ALICE)
    assert [row["id"] for row in await follower.first(2, any_row)] == created[2:]
    assert await ids(follower) == []
    await store.save(0, BOB)
    new = await store.save(0)
    assert await ids(follower) == [new]


async def test_look_reads_the_newest_rows_of_each_owner(records: Records, store: Store) -> None:
    created = [await store.save(100 - number) for number in range(5)]
    follower = ChangeFollower(records, None, max_rows=3, min_rows=2)
    await follower.first(1, any_row)
    await store.archive.delete(created[-1])
    assert await ids(follower) == []
    await store.save(500)
    theirs = [await store.save(400, BOB), await store.save(300, BOB)]
    assert await ids(follower) == theirs
    newer = [await store.save(2), await store.save(1)]
    assert await ids(follower) == newer
    assert await ids(follower) == []


async def test_response_of_an_earlier_hour_is_not_seen(records: Records, store: Store) -> None:
    follower = ChangeFollower(records, None)
    await follower.first(10, any_row)
    await store.save(3700)
    assert await ids(follower) == []
