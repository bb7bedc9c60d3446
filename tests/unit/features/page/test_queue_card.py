"""The card of the queue says what waits in each class, and since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llama_stack_responses.features.page.queue_card import queue_card
from llama_stack_responses.jobs.queue import Backlog
from llama_stack_responses.jobs.work_class import WorkClass


@dataclass
class Jobs:
    """Jobs of which these wait."""

    waiting: Mapping[WorkClass, Backlog]

    async def backlog(self) -> Mapping[WorkClass, Backlog]:
        return {kind: self.waiting.get(kind, Backlog(0, 0.0)) for kind in WorkClass}


async def test_queue_without_jobs_has_no_section() -> None:
    assert await queue_card(Jobs({})).sections() == []


async def test_classes_that_wait_have_a_row_each_in_their_order() -> None:
    waiting = {
        WorkClass.BATCH: Backlog(64, 7_380.0),
        WorkClass.PRIORITY: Backlog(1, 0.4),
        WorkClass.WINDOW: Backlog(2, 61.0),
    }
    [section] = await queue_card(Jobs(waiting)).sections()
    assert section["facts"] == ["67 wait", "the longest for 2 h 3 min"]
    assert section["rows"] == [
        ["Priority", "1", "0 s"],
        ["Completion windows", "2", "1 min"],
        ["Batches", "64", "2 h 3 min"],
    ]
