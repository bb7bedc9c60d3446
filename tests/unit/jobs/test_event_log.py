"""Events are stored in rows of bounded size, and are read as they were written."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put


def deltas(*texts: Any) -> list[dict[str, Any]]:
    return [
        {"type": "response.output_text.delta", "sequence_number": at, "delta": each} for at, each in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("events", "rows"),
    [
        ([], 0),
        (deltas("a"), 1),
        (deltas(*["word "] * 20), 1),
        (deltas("a", "\ud800", "b"), 1),
        (deltas("a", 2**70), 1),
        (deltas(*["\x01" * 1_000] * 20), 2),  # six bytes for each character
        (deltas(*["x" * 20_000] * 8), 3),
        (deltas("x" * 100_000, "y"), 2),
    ],
    ids=["none", "one", "several", "surrogate", "large number", "escapes", "large", "larger than a row"],
)
async def test_events_are_stored_in_bounded_rows(events: list[dict[str, Any]], rows: int) -> None:
    records = MemoryRecords(1_000, 2**24)
    event_log = EventLog(records, Notifier())
    ops = await event_log.batch("resp_1", events)
    assert len([op for op in ops if isinstance(op, Put)]) == rows
    await records.commit(ops)
    assert await event_log.read_all("resp_1", -1) == events
