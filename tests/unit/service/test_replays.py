"""Readers of one response share one copy of it, whose bytes count until the last reader has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from llama_stack_responses.admission import Admission, Quota, Reservation
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.core.schema.request import parse_create
from llama_stack_responses.core.stream.events import Event
from llama_stack_responses.core.stream.response import new_response
from llama_stack_responses.service.replays import Replays
from llama_stack_responses.store.archive import StoredResponse

SIZE = 100_000


def stored(response_id: str = "resp_1", status: str = "completed") -> StoredResponse:
    """Return a response of about `SIZE` bytes, as loaded anew for each reader."""
    text = {"type": "output_text", "text": "x" * SIZE, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    response = new_response(parse_create({"model": "m", "input": "x"}), id=response_id, created_at=1)
    made = response | {"status": status, "output": [item]}
    return StoredResponse(made, ANONYMOUS, None, None, 1 if status == "completed" else 2, size=SIZE + 1_000)


@pytest.fixture
def admission() -> Admission:
    """Room for one response but not for two."""
    return Admission(Quota("large answers", 10 * SIZE, SIZE + SIZE // 2))


@pytest.fixture
def lease(admission: Admission) -> Callable[[], Reservation]:
    """Make leases of one user."""
    return lambda: admission.lease(ANONYMOUS)


async def read(events: AsyncIterator[list[Event]]) -> list[Event]:
    """Return all remaining events."""
    return [event async for each in events for event in each]


async def test_readers_of_one_response_share_its_bytes(admission: Admission, lease: Callable[[], Reservation]) -> None:
    replays = Replays()
    readers = [replays.events(stored(), -1, lease) for _ in range(60)]
    assert SIZE < admission.held < 2 * SIZE
    last = readers.pop()
    readers.clear()
    assert admission.held > SIZE
    assert (await read(last))[-1]["type"] == "response.completed"
    del last
    assert admission.held == 0


async def test_other_response_needs_its_own_room(admission: Admission, lease: Callable[[], Reservation]) -> None:
    replays = Replays()
    first = replays.events(stored(), -1, lease)
    with pytest.raises(ApiError, match="You have too many large answers open") as refused:
        replays.events(stored("resp_2"), -1, lease)
    assert refused.value.status == 429
    del first
    assert admission.held == 0
    assert await read(replays.events(stored("resp_2"), -1, lease))


async def test_changed_response_is_not_shared() -> None:
    wide = Admission(Quota("large answers", 10 * SIZE, 10 * SIZE))
    replays = Replays()
    first = replays.events(stored(), -1, lambda: wide.lease(ANONYMOUS))
    second = replays.events(stored(status="incomplete"), -1, lambda: wide.lease(ANONYMOUS))
    events = await read(second)
    assert events[-1]["response"]["status"] == "incomplete"
    assert wide.held > SIZE
    del first


async def test_reconnecting_reader_gets_remaining_events(lease: Callable[[], Reservation]) -> None:
    replays = Replays()
    whole = await read(replays.events(stored(), -1, lease))
    rest = await read(replays.events(stored(), 4, lease))
    assert rest == whole[5:]
