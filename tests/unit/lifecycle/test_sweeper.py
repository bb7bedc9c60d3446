import asyncio
from typing import cast

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.lifecycle.sweeper import ResponseSweeper
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.clock import StoreClock
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.retention import Counts, Horizon, Retention
from llama_stack_responses.store.sweep_guard import SweepGuard


class FakeArchive:
    """Return the given number of swept records, or raise the given error, with each sweep."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.sweeps = 0
        self._swept = asyncio.Condition()
        self.horizon = Retention(None, float).horizon

    async def reached(self, sweeps: int) -> None:
        async with self._swept:
            await self._swept.wait_for(lambda: self.sweeps >= sweeps)

    async def count(self, _: Horizon) -> Counts:
        return Counts(0, 0)

    async def sweep(self, _: Horizon) -> int:
        async with self._swept:
            self.sweeps += 1
            self._swept.notify_all()
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        return answer


def sweeper_of(archive: FakeArchive, interval: float) -> ResponseSweeper:
    records = MemoryRecords()
    guard = SweepGuard(records, archive.count, 1.0)
    return ResponseSweeper(cast("Archive", archive), StoreClock(records), guard, interval)


async def swept(archive: FakeArchive, sweeps: int) -> None:
    sweeper = sweeper_of(archive, 0.001)
    sweeper.start()
    sweeper.start()
    async with asyncio.timeout(60):
        await archive.reached(sweeps)
    await sweeper.stop()
    before = archive.sweeps
    await asyncio.sleep(0.01)
    assert archive.sweeps == before


async def test_sweeper_repeats_until_nothing_is_left() -> None:
    archive = FakeArchive(100, 100, 7)
    await swept(archive, 5)
    assert archive.answers == []


@pytest.mark.parametrize("error", [ApiError(503, "The store is busy."), RuntimeError("a bug")])
async def test_sweeper_continues_after_error(error: Exception) -> None:
    await swept(FakeArchive(error, 1), 4)


async def test_what_was_deleted_before_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(ApiError):
        await sweeper_of(FakeArchive(100, ApiError(503, "The store is busy.")), 1).sweep()
    assert "deleted expired responses: 100" in caplog.messages


async def test_sweeper_stops_without_start() -> None:
    await sweeper_of(FakeArchive(), 1).stop()


async def test_sweeper_looks_often_whether_a_held_deletion_was_confirmed() -> None:
    sweeper = sweeper_of(FakeArchive(), 600)
    assert sweeper._pause(600) >= 300
    sweeper._guard.held = Counts(25, 25)
    assert sweeper._pause(600) <= 15
