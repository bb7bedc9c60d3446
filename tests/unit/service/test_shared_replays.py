"""Readers of one response share one copy of it, whose bytes count until the last reader has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from llama_stack_responses.admission import Admission, Quota, Reservation
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.service.shared_replays import Replays
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.stream.events import Event
from llama_stack_responses.stream.response import new_response

SIZE = 100_000

type Reserve = Callable[[], Reservation]


def stored(response_id: str = "resp_1", status: str = "completed", version: int = 1) -> StoredResponse:
    """Return a response of about `SIZE` bytes, as loaded anew for each reader."""
    text = {"type": "output_text", "text": "x" * SIZE, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    response = new_response(parse_create({"model": "m", "input": "x"}), id=response_id, created_at=1)
    created = response | {"status": status, "output": [item]}
    return StoredResponse(created, ANONYMOUS, None, None, version, size=SIZE + 1_000)


class Store:
    """A store that counts how often a response is loaded.

    Attributes:
        loaded: number of loads.
        errors: errors of the next loads.
    """

    def __init__(self) -> None:
        self.loaded = 0
        self.errors: list[ApiError] = []

    async def load(self, response: StoredResponse) -> StoredResponse:
        """Return the response after a moment."""
        self.loaded += 1
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        return response


async def begin(
    replays: Replays,
    reserve: Reserve,
    response: StoredResponse | None = None,
    after: int = -1,
    store: Store | None = None,
) -> AsyncIterator[list[Event]]:
    """Begin a replay."""
    events = await try_to_begin(replays, reserve, response, after, store)
    assert events
    return events


async def try_to_begin(
    replays: Replays,
    reserve: Reserve,
    response: StoredResponse | None = None,
    after: int = -1,
    store: Store | None = None,
) -> AsyncIterator[list[Event]] | None:
    """Begin a replay if the response has ended."""
    response, store = response or stored(), store or Store()
    return await replays.events(response.response["id"], response.version, lambda: store.load(response), after, reserve)


@pytest.fixture
def admission() -> Admission:
    """Room for one response but not for two."""
    return Admission(Quota("large answers", 10 * SIZE, SIZE + SIZE // 2))


@pytest.fixture
def reserve(admission: Admission) -> Reserve:
    """Make leases of one user."""
    return lambda: admission.reserve(ANONYMOUS)


async def read(events: AsyncIterator[list[Event]]) -> list[Event]:
    """Return all remaining events."""
    return [event async for each in events for event in each]


async def test_readers_of_one_response_share_its_bytes(admission: Admission, reserve: Reserve) -> None:
    replays = Replays()
    readers = [await begin(replays, reserve) for _ in range(60)]
    assert SIZE < admission.held < 2 * SIZE
    last = readers.pop()
    readers.clear()
    assert admission.held > SIZE
    assert (await read(last))[-1]["type"] == "response.completed"
    del last
    assert admission.held == 0


async def test_concurrent_readers_load_the_response_once(admission: Admission, reserve: Reserve) -> None:
    replays, store = Replays(), Store()
    readers = await asyncio.gather(*(begin(replays, reserve, store=store) for _ in range(60)))
    assert store.loaded == 1
    assert admission.held < 2 * SIZE
    assert (await read(readers[-1]))[-1]["type"] == "response.completed"


async def test_failed_load_is_repeated_for_the_readers_that_wait(reserve: Reserve) -> None:
    replays, store = Replays(), Store()
    store.errors = [ApiError(503, "The store is unavailable.")]
    first, *others = await asyncio.gather(
        *(begin(replays, reserve, store=store) for _ in range(3)), return_exceptions=True
    )
    assert isinstance(first, ApiError)
    assert store.loaded == 2
    for other in others:
        assert not isinstance(other, BaseException)
        assert (await read(other))[-1]["type"] == "response.completed"


async def test_cancelled_load_is_repeated_for_the_readers_that_wait(reserve: Reserve) -> None:
    replays, store = Replays(), Store()
    first, other = (asyncio.create_task(begin(replays, reserve, store=store)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await read(await other))[-1]["type"] == "response.completed"
    assert store.loaded == 2


async def test_other_response_needs_its_own_room(admission: Admission, reserve: Reserve) -> None:
    replays = Replays()
    first = await begin(replays, reserve)
    with pytest.raises(ApiError, match="You have too many large answers open") as refused:
        await begin(replays, reserve, stored("resp_2"))
    assert refused.value.status == 429
    del first
    assert admission.held == 0
    assert await read(await begin(replays, reserve, stored("resp_2")))


async def test_changed_response_is_not_shared() -> None:
    wide = Admission(Quota("large answers", 10 * SIZE, 10 * SIZE))
    replays = Replays()
    first = await begin(replays, lambda: wide.reserve(ANONYMOUS))
    second = await begin(replays, lambda: wide.reserve(ANONYMOUS), stored(status="incomplete", version=2))
    events = await read(second)
    assert events[-1]["response"]["status"] == "incomplete"
    assert wide.held > SIZE
    del first


async def test_response_whose_end_was_lost_is_read_again_once_it_has_ended(
    admission: Admission, reserve: Reserve
) -> None:
    replays = Replays()
    running = stored(status="in_progress")
    assert await asyncio.gather(*(try_to_begin(replays, reserve, running) for _ in range(3))) == [None, None, None]
    assert admission.held == 0
    assert (await read(await begin(replays, reserve)))[-1]["type"] == "response.completed"


async def test_reconnecting_reader_gets_remaining_events(reserve: Reserve) -> None:
    replays = Replays()
    whole = await read(await begin(replays, reserve))
    rest = await read(await begin(replays, reserve, after=4))
    assert rest == whole[5:]
