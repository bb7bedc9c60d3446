"""The card of the queue says what waits in each class, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Final, cast

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page.queue_card import queue_card
from llama_stack_responses.jobs.job import Job
from llama_stack_responses.jobs.queue import Backlog
from llama_stack_responses.jobs.work_class import WorkClass

ALICE: Final = Owner("alice")
BOB: Final = Owner("bob")


@dataclass
class Jobs:
    """Jobs of which these wait, and these are stalled, by response id with their owner."""

    waiting: Mapping[WorkClass, Backlog] = field(default_factory=dict)
    held: Mapping[str, Owner] = field(default_factory=dict)

    async def stalled(self) -> Mapping[str, str]:
        return dict.fromkeys(self.held, "worker_1")

    async def find_many(self, response_ids: Sequence[str]) -> dict[str, Job]:
        states = {each: SimpleNamespace(owner=self.held[each], tries=2) for each in response_ids}
        return {each: cast("Job", SimpleNamespace(state=state)) for each, state in states.items()}

    async def backlog(self) -> Mapping[WorkClass, Backlog]:
        return {kind: self.waiting.get(kind, Backlog(0, 0.0)) for kind in WorkClass}


async def test_queue_without_jobs_has_no_section() -> None:
    assert await queue_card(Jobs(), lambda: ALICE).sections() == []


async def test_classes_that_wait_have_a_row_each_in_their_order() -> None:
    waiting = {
        WorkClass.BATCH: Backlog(64, 7_380.0),
        WorkClass.PRIORITY: Backlog(1, 0.4),
        WorkClass.WINDOW: Backlog(2, 61.0),
    }
    [section] = await queue_card(Jobs(waiting), lambda: ALICE).sections()
    assert section["facts"] == ["67 wait", "the longest for 2 h 3 min"]
    assert section["rows"] == [
        ["Priority", "1", "0 s"],
        ["Completion windows", "2", "1 min"],
        ["Batches", "64", "2 h 3 min"],
    ]


async def test_stalled_jobs_are_counted_and_only_own_ones_are_named() -> None:
    held = {"resp_1": BOB, "resp_2": ALICE}
    [section] = await queue_card(Jobs(held=held), lambda: ALICE).sections()
    assert (section["title"], section["facts"]) == ("Stalled jobs", ["2 of all users"])
    assert section["rows"] == [["resp_2", "worker_1", "2"]]
    assert "leases" in section["trouble"]
