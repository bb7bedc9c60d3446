"""A reader waits for room while other readers of its user hold all that they may, and is refused in the end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.intervals import DEFAULT, Intervals
from llama_stack_responses.jobs.event_follower import EventFollower
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.store.memory import MemoryRecords

SIZE: Final = 100_000
ID: Final = "resp_1"
EVENTS: Final[list[dict[str, Any]]] = [
    {"type": kind, "sequence_number": number, "response": {"instructions": "x" * SIZE}}
    for number, kind in enumerate(("response.created", "response.completed"))
]


async def follower(intervals: Intervals) -> EventFollower:
    """Return a follower of a log with these events."""
    records, notifier = MemoryRecords(1_000, 2**24), Notifier()
    event_log = EventLog(records, notifier)
    await records.commit(await event_log.batch(ID, EVENTS))
    return EventFollower(notifier, JobQueue(records, 10), event_log, intervals)


@pytest.mark.parametrize("patient", [True, False])
async def test_reader_without_room_waits_and_is_refused_in_the_end(patient: bool) -> None:
    intervals = replace(DEFAULT, store_retry_seconds=0.001, room_seconds=60.0 if patient else 0.0)
    follows, room = await follower(intervals), Admission(Quota("large answers", 10 * SIZE, SIZE + SIZE // 2))
    stalled, other = (follows.follow(ID, after, 60.0, lambda: room.lease(ANONYMOUS)) for after in (-1, 0))
    assert await anext(stalled) == EVENTS[:1]
    if not patient:
        with pytest.raises(ApiError, match="You have too many large answers open"):
            await anext(other)
        return
    assert [await anext(other) for _ in range(3)] == [[]] * 3  # keep-alives
    del stalled
    async with asyncio.timeout(60):
        assert [events async for events in other if events] == [EVENTS[1:]]
