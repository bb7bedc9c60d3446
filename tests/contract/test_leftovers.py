"""On every backend: whatever races and dies, nothing of a response that is gone stays in the store for ever."""

from __future__ import annotations

import asyncio
import time

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.jobs.queue import LEASE
from llama_stack_responses.jobs.worker import Crew
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Records
from tests.contract.backends import Clock
from tests.support.inference import Round, finish, text
from tests.support.records import WatchedRecords, just_before_a_commit
from tests.unit.jobs.office import ID, KEEP, PATIENCE, ROUNDS, Office, turns, until

pytestmark = pytest.mark.needs("work")

LONG = 40 * 86_400.0
"""Seconds after which a response has expired, and whatever else has an expiry."""

HELLO: Round = [text("Hel"), text("lo"), finish(tokens=2)]


class Server(Office):
    """A process whose workers are not started: what they do happens when a test says so."""

    def __init__(self, records: Records, clock: Clock, *rounds: Round) -> None:
        super().__init__(records, *rounds)
        self.archive = Archive(records, clock=lambda: max(clock(), time.time()))
        self.workers: Crew = self.crew()

    async def delete(self) -> None:
        """Deletes the response, wherever it is made."""
        await self.workers.cancel(ID)
        await self.archive.delete(ID)
        await self.workers.forget(ID)

    async def read_to_end(self) -> None:
        """Reads the events of the response for as long as there are any."""
        async with asyncio.timeout(PATIENCE):
            async for _ in self.workers.follow(ID, -1, PATIENCE):
                pass


async def left(records: Records) -> list[str]:
    """All keys, but for those that expire: an owner's hours with responses, workers, and turns in the queue."""
    return [key for key, _ in await records.range("!", "~", limit=1000) if key[0] not in "xupz"]


async def left_in_the_end(records: Records, clock: Clock) -> list[str]:
    """All keys that are there once everything has expired that does."""
    clock.now = max(clock.now, time.time()) + LONG
    last = Server(records, clock)
    await last.workers.sweep()
    await last.archive.sweep()
    return [key for key, _ in await records.range("!", "~", limit=1000)]


async def test_reader_that_announces_itself_after_the_delete_leaves_nothing(records: Records, clock: Clock) -> None:
    here = Server(records, clock, *ROUNDS)
    there = Server(just_before_a_commit(records, here.delete), clock)
    await here.submit(here.workers)
    await there.read_to_end()
    assert await left(records) == []
    assert await left_in_the_end(records, clock) == []


async def test_reader_that_was_cut_off_from_the_store_during_the_delete_leaves_nothing(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_stack_responses.jobs.worker.RETRY", 0.001)
    cut = WatchedRecords(records)
    here, there = Server(records, clock), Server(cut, clock)
    await here.submit(here.workers)
    silences = 0

    async def read() -> None:
        nonlocal silences
        async for events in there.workers.follow(ID, -1, PATIENCE):
            silences += not events

    reader = asyncio.create_task(read())
    async with asyncio.timeout(PATIENCE):
        while f"s/{ID}" not in await left(records):
            await turns(1)
    cut.away = True
    there.bell.ring_all()
    there.workers._bell.ring_all()
    await until(lambda: silences > 0)
    await here.delete()
    cut.away = False
    async with asyncio.timeout(PATIENCE):
        await reader
    assert await left(records) == []
    assert await left_in_the_end(records, clock) == []


async def test_response_that_is_deleted_while_it_is_made_stays_deleted(records: Records, clock: Clock) -> None:
    here = Server(records, clock, HELLO)
    await here.submit(here.workers)
    attempt = here.attempt(await here.claim("w1"))
    conclude = attempt._conclude

    async def deleted_first(*args: object) -> None:
        # Who deletes has waited for the end of the job, but not for ever.
        await here.archive.delete(ID)
        await here.workers.forget(ID)
        await conclude(*args)  # type: ignore[arg-type]

    attempt._conclude = deleted_first  # type: ignore[assignment,method-assign]
    async with asyncio.timeout(PATIENCE):
        await attempt.run()
    assert await here.archive.load(ID) is None
    assert await here.jobs.rescue() == 1
    await here.work("w2")
    assert await left_in_the_end(records, clock) == []


@pytest.mark.parametrize("dies", range(1, 12))
async def test_server_that_dies_while_it_deletes_leaves_nothing_for_ever(
    records: Records, clock: Clock, dies: int
) -> None:
    """It dies before its commit of this number, from when the response has ended on."""
    here = Server(records, clock, *ROUNDS)
    await here.submit(here.workers)
    await here.work()
    await here.read_to_end()
    dying = Server(dead_from_commit(records, dies), clock)
    try:
        await dying.delete()
    except ApiError:
        clock.now += LEASE + 1
    assert await left_in_the_end(records, clock) == []


@pytest.mark.parametrize("dies", range(1, 16))
async def test_server_that_dies_while_it_makes_leaves_nothing_for_ever(
    records: Records, clock: Clock, dies: int
) -> None:
    """It dies before its commit of this number; another ends the response, which expires."""
    here = Server(records, clock, *ROUNDS, *ROUNDS)
    await here.submit(here.workers)
    dying = Server(dead_from_commit(records, dies), clock, *ROUNDS)
    reader = asyncio.create_task(here.read_to_end())
    try:
        held = await dying.claim()
        making = asyncio.create_task(dying.attempt(held).run())
        async with asyncio.timeout(PATIENCE):
            while not (making.done() or dying.records.away):  # type: ignore[attr-defined]
                await turns(1)
        making.cancel()
        await asyncio.wait([making])
    except (ApiError, AssertionError):
        pass
    await here.jobs.rescue()
    if await here.jobs.find(ID):
        await here.work("w2")
    async with asyncio.timeout(PATIENCE):
        await reader
    clock.now += KEEP + 1
    assert await left_in_the_end(records, clock) == []


def dead_from_commit(records: Records, number: int) -> WatchedRecords:
    """The records of a process that reaches them no more from its commit of this number on."""
    made = 0
    dead: WatchedRecords

    async def before(name: str) -> None:
        nonlocal made
        made += name == "commit"
        dead.away |= made >= number

    dead = WatchedRecords(records, before=before)
    return dead
