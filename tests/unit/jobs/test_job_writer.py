"""A commit whose answer was lost, and which comes later, puts no older checkpoint in the place of a newer one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.job import Checkpoint, Job, JobState
from llama_stack_responses.jobs.job_writer import JobWriter
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.recorded_requests import RecordedRequests
from llama_stack_responses.jobs.store_retry import StoreRetry
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Conflict, Op, Put, Unanswered
from tests.support.records import WatchedRecords, settled
from tests.unit.jobs.harness import PATIENCE

ID: Final = "resp_1"
FIRST: Final = Checkpoint({"model": "m"}, version=1)


class Store(WatchedRecords):
    """Records that do not answer the next commits.

    Attributes:
        unanswered: for each of the next commits, whether it is applied at once; otherwise it is `late`.
        late: commits that are still on their way.
    """

    def __init__(self) -> None:
        super().__init__(MemoryRecords())
        self.unanswered: list[bool] = []
        self.late: list[tuple[Sequence[Op], Sequence[Condition]]] = []

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if not self.unanswered:
            return await super().commit(ops, conditions)
        applied = self.unanswered.pop(0)
        if applied:
            await super().commit(ops, conditions)
        else:
            self.late.append((ops, conditions))
        raise Unanswered("The response store has not answered.", settled(applied=applied))

    async def arrive(self) -> bool:
        """Let the late commit arrive; return whether it was applied."""
        try:
            await super().commit(*self.late.pop())
        except Conflict:
            return False
        return True

    async def rounds(self) -> int:
        """Return the rounds of the stored checkpoint."""
        found = await self.get_many([f"k/{ID}"])
        return (await Checkpoint.decode(found[f"k/{ID}"], Decoder())).rounds


async def writer_of(store: Store) -> JobWriter:
    """Return the writer of a new job."""
    await store.commit([Put(f"j/{ID}", b""), Put(f"k/{ID}", await FIRST.encode())])
    job = Job(ID, JobState(Owner("anna"), "1"), 1)
    buffer, log = EventBuffer(wanted=True), EventLog(store, Notifier())
    return JobWriter(job, store, log, buffer, RecordedRequests(store, ID), StoreRetry(0.001))


async def write(writer: JobWriter, rounds: int) -> None:
    """Store a checkpoint after so many rounds."""
    writer.due = replace(FIRST, rounds=rounds)
    async with asyncio.timeout(PATIENCE):
        await writer.write()


async def test_late_commit_does_not_bring_back_an_older_checkpoint() -> None:
    store = Store()
    writer = await writer_of(store)
    store.unanswered = [False]
    await write(writer, 1)
    await write(writer, 2)
    assert not await store.arrive()
    assert await store.rounds() == 2


async def test_checkpoint_is_stored_after_an_applied_commit_without_an_answer() -> None:
    store = Store()
    writer = await writer_of(store)
    store.unanswered = [True, True]
    await write(writer, 1)
    await write(writer, 2)
    assert (await store.rounds(), writer.due) == (2, None)
