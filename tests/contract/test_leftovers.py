"""On every backend, races and crashes leave no records of a deleted response in the store forever."""

from __future__ import annotations

import asyncio
import time

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Records
from tests.contract.backends import Clock
from tests.support.inference import Round, finish, text
from tests.support.leases import requeue_stalled
from tests.support.records import WatchedRecords, just_before_a_commit
from tests.support.waiting import turns, until
from tests.unit.jobs.harness import ID, KEEP, PATIENCE, ROUNDS, ProcessHarness

pytestmark = pytest.mark.needs("transactions")

LONG = 40 * 86_400.0
"""Seconds after which a response and every other expiring record have expired."""

HELLO: Round = [text("Hel"), text("lo"), finish(tokens=2)]


class Server(ProcessHarness):
    """A process whose worker is not started: its tasks run only when a test calls them."""

    def __init__(self, records: Records, clock: Clock, *rounds: Round) -> None:
        super().__init__(records, *rounds)
        self.archive = Archive(records, clock=lambda: max(clock(), time.time()))
        self.background = self.background_jobs()

    async def delete(self) -> None:
        """Delete the response, wherever it runs."""
        await self.background.cancel(ID)
        await self.archive.delete(ID)
        await self.background.forget(ID)

    async def read_to_end(self) -> None:
        """Read the events of the response until there are no more."""
        async with asyncio.timeout(PATIENCE):
            async for _ in self.background.events.follow(ID, -1, PATIENCE):
                pass


async def left(records: Records) -> list[str]:
    """Return all keys except those that expire.

    They are an owner's hours with responses, workers, turns in the queue, and marks of what was written in another
    partition.
    """
    rows = await records.range("!", "~", limit=1000)
    return [key for key, _ in rows if key[0] not in "xupz" and not key.startswith("oa/")]


async def left_in_the_end(records: Records, clock: Clock) -> list[str]:
    """Return all keys that remain after everything with an expiry has expired."""
    clock.now = max(clock.now, time.time()) + LONG
    last = Server(records, clock)
    await last.background.worker.sweep()
    await last.archive.sweep()
    return [key for key, _ in await records.range("!", "~", limit=1000)]


async def test_reader_registering_after_delete_leaves_no_records(records: Records, clock: Clock) -> None:
    here = Server(records, clock, *ROUNDS)
    there = Server(just_before_a_commit(records, here.delete), clock)
    await here.submit(here.background)
    await there.read_to_end()
    assert await left(records) == []
    assert await left_in_the_end(records, clock) == []


async def test_reader_cut_off_during_delete_leaves_no_records(records: Records, clock: Clock) -> None:
    cut = WatchedRecords(records)
    here, there = Server(records, clock), Server(cut, clock)
    await here.submit(here.background)
    silences = 0

    async def read() -> None:
        nonlocal silences
        async for events in there.background.events.follow(ID, -1, PATIENCE):
            silences += not events

    reader = asyncio.create_task(read())
    async with asyncio.timeout(PATIENCE):
        while f"s/{ID}" not in await left(records):
            await turns(1)
    cut.away = True
    there.notifier.notify_all()
    there.background._notifier.notify_all()
    await until(lambda: silences > 0)
    await here.delete()
    cut.away = False
    async with asyncio.timeout(PATIENCE):
        await reader
    assert await left(records) == []
    assert await left_in_the_end(records, clock) == []


async def test_response_deleted_while_running_stays_deleted(records: Records, clock: Clock) -> None:
    here = Server(records, clock, HELLO)
    await here.submit(here.background)
    runner = here.runner(await here.claim("w1"))
    conclude = runner._conclude

    async def deleted_first(*args: object) -> None:
        # The delete has waited for the end of the job, up to a limit.
        await here.archive.delete(ID)
        await here.background.forget(ID)
        await conclude(*args)  # type: ignore[arg-type]

    runner._conclude = deleted_first  # type: ignore[assignment,method-assign]
    async with asyncio.timeout(PATIENCE):
        await runner.run()
    assert await here.archive.load(ID) is None
    assert await requeue_stalled(here.jobs) == 1
    await here.run_job("w2")
    assert await left_in_the_end(records, clock) == []


@pytest.mark.extended
@pytest.mark.parametrize("dies", range(1, 12))
async def test_server_dying_during_delete_leaves_no_records(records: Records, clock: Clock, dies: int) -> None:
    """The server dies before this commit, counted from the end of the response."""
    here = Server(records, clock, *ROUNDS)
    await here.submit(here.background)
    await here.run_job()
    await here.read_to_end()
    dying = Server(dead_from_commit(records, dies), clock)
    try:
        await dying.delete()
    except ApiError:
        clock.now += DEFAULT.lease_seconds + 1
    assert await left_in_the_end(records, clock) == []


@pytest.mark.extended
@pytest.mark.parametrize("dies", range(1, 16))
async def test_server_dying_while_running_job_leaves_no_records(records: Records, clock: Clock, dies: int) -> None:
    """The server dies before this commit; another one ends the response, which expires."""
    here = Server(records, clock, *ROUNDS, *ROUNDS)
    await here.submit(here.background)
    dying = Server(dead_from_commit(records, dies), clock, *ROUNDS)
    reader = asyncio.create_task(here.read_to_end())
    try:
        held = await dying.claim()
        making = asyncio.create_task(dying.runner(held).run())
        async with asyncio.timeout(PATIENCE):
            while not (making.done() or dying.records.away):  # type: ignore[attr-defined]
                await turns(1)
        making.cancel()
        await asyncio.wait([making])
    except (ApiError, AssertionError):
        pass
    await requeue_stalled(here.jobs)
    if await here.jobs.find(ID):
        await here.run_job("w2")
    async with asyncio.timeout(PATIENCE):
        await reader
    clock.now += KEEP + 1
    assert await left_in_the_end(records, clock) == []


def dead_from_commit(records: Records, number: int) -> WatchedRecords:
    """Return records that a process can no longer reach from this commit on."""
    commits = 0
    dead: WatchedRecords

    async def before(name: str) -> None:
        nonlocal commits
        commits += name == "commit"
        dead.away |= commits >= number

    dead = WatchedRecords(records, before=before)
    return dead
