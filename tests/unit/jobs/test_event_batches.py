"""Batches of an event log: which of them are encoded in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.store.memory import MemoryRecords

type Json = dict[str, Any]

TEXT: Final = "response.output_text.delta"


def delta(value: Any, **fields: Any) -> Json:
    return {"type": TEXT, "sequence_number": 0, "item_id": "msg_1", "output_index": 0, "delta": value, **fields}


@pytest.mark.parametrize(
    ("events", "in_thread"),
    [
        ([delta("word ")] * 16, False),
        ([delta("w" * 40_000)], True),
        ([delta("")] * 200, True),
        ([delta("", logprobs=[{"token": "w" * 40_000}])], True),
        ([delta({"stdout": "w" * 40_000})], True),
        ([delta(""), {"type": "response.output_text.done", "sequence_number": 1, "text": "w" * 40_000}], True),
        ([{"type": "response.output_text.done", "sequence_number": 0, "text": "word"}], False),
    ],
    ids=["words", "text", "many", "logprobs", "output of a shell", "another event", "small event"],
)
async def test_large_batch_is_encoded_in_thread(
    monkeypatch: pytest.MonkeyPatch, events: list[Json], in_thread: bool
) -> None:
    called: list[Callable[..., Any]] = []

    async def to_thread(call: Callable[..., Any], *given: Any) -> Any:
        called.append(call)
        return call(*given)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    ops = await EventLog(MemoryRecords(), Notifier()).batch("resp_1", events)
    assert len(ops) > 1
    assert bool(called) is in_thread
