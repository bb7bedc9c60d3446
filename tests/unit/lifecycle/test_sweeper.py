import asyncio
from typing import cast

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.lifecycle.sweeper import Sweeper
from llama_stack_responses.store.archive import Archive


class FakeArchive:
    """Return the given number of swept records, or raise the given error, with each sweep."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.sweeps = 0
        self._swept = asyncio.Condition()

    async def reached(self, sweeps: int) -> None:
        async with self._swept:
            await self._swept.wait_for(lambda: self.sweeps >= sweeps)

    async def sweep(self) -> int:
        async with self._swept:
            self.sweeps += 1
            self._swept.notify_all()
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        return answer


async def swept(archive: FakeArchive, sweeps: int) -> None:
    sweeper = Sweeper(cast("Archive", archive), interval=0.001)
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


async def test_sweeper_stops_without_start() -> None:
    await Sweeper(cast("Archive", FakeArchive()), interval=1).stop()
