"""On the stores that wake: who watches hears of the commits of other processes, and need not look again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import pytest
from redis import Redis

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.jobs import event_log as journal
from llama_stack_responses.jobs import notifier as bell
from llama_stack_responses.jobs import worker as crew
from llama_stack_responses.jobs.queue import QUEUE
from llama_stack_responses.store.postgres_watch import PostgresWatch
from llama_stack_responses.store.records import Conflict, Put, Records, VersionIs, Wake, Watch
from llama_stack_responses.store.redis import RedisRecords
from tests.contract.backends import Backend, Clock, Place
from tests.support.inference import finish, text
from tests.unit.jobs.office import ID, PATIENCE, ROUNDS, SAID, Office, said, until

pytestmark = pytest.mark.needs("wakes")

AGES: Final = 3600.0


@pytest.fixture
async def there(backend: Backend, place: Place, clock: Clock) -> AsyncIterator[Records]:
    """The same records in another process."""
    opened = backend.open(place, clock)
    yield opened
    await opened.close()


@asynccontextmanager
async def watching(records: Records, *names: str) -> AsyncIterator[Watch]:
    """A watch that hears all that wakes the names."""
    entering = records.watch()
    assert entering is not None
    async with asyncio.timeout(PATIENCE), entering as watch:
        await watch.listen(names)
        assert {await watch.heard() for _ in names} == set(names)
        yield watch


# Watching


async def test_a_commit_wakes_who_watches_in_another_process(records: Records, there: Records) -> None:
    async with watching(there, "a", "b") as watch:
        for number in range(1, 4):
            await records.commit([Put("k", b""), Wake("a")])
            assert await watch.heard() == "a"
            assert (await there.get_many(["k"]))["k"].version == number
        await records.commit([Wake("b")])
        assert await watch.heard() == "b"


async def test_of_several_that_a_commit_wakes_each_is_heard_once(records: Records, there: Records) -> None:
    async with watching(there, "a", "b", "z") as watch:
        await records.commit([Wake("a"), Put("k", b""), Wake("b"), Wake("a")])
        assert {await watch.heard(), await watch.heard()} == {"a", "b"}
        await records.commit([Wake("z")])
        assert await watch.heard() == "z"


async def test_only_what_is_listened_for_is_heard(records: Records, there: Records) -> None:
    async with watching(there, "a", "b", "z") as watch:
        await watch.leave(["a"])
        await records.commit([Wake("a"), Wake("c"), Wake("z")])
        assert await watch.heard() == "z"
        await watch.listen(["a"])
        assert await watch.heard() == "a"


async def test_what_a_process_wakes_itself_it_does_not_hear(records: Records, there: Records) -> None:
    async with watching(there, "a", "z") as watch:
        await there.commit([Wake("a")])
        await records.commit([Wake("z")])
        assert await watch.heard() == "z"


async def test_what_is_not_committed_wakes_nobody(records: Records, there: Records) -> None:
    async with watching(there, "a", "z") as watch:
        with pytest.raises(Conflict):
            await records.commit([Put("k", b""), Wake("a")], [VersionIs("k", 7)])
        await records.commit([Wake("z")])
        assert await watch.heard() == "z"


async def test_other_stores_on_the_server_are_not_heard(
    records: Records, there: Records, backend: Backend, place: Place, clock: Clock
) -> None:
    stranger = backend.open(place.fresh(), clock)
    async with watching(there, "a", "z") as watch:
        await stranger.commit([Wake("a")])
        await stranger.close()
        await records.commit([Wake("z")])
        assert await watch.heard() == "z"


async def test_of_many_none_is_missed(records: Records, there: Records) -> None:
    names = {f"resp_{number:064d}" for number in range(200)}
    async with watching(there, *names) as watch:
        await asyncio.gather(*(records.commit([Wake(name)]) for name in names))
        assert {await watch.heard() for _ in names} == names


async def test_a_user_who_may_not_publish_writes_all_the_same(place: Place, clock: Clock) -> None:
    address = place.url_of("redis")
    with Redis.from_url(address) as admin:
        admin.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
    mute = RedisRecords(address.replace("//", "//mute:pw@"), prefix=f"{place.name}:", clock=clock)
    await mute.commit([Wake("a"), Put("k", b"1"), Wake("b")])
    assert (await mute.get_many(["k"]))["k"].value == b"1"
    with pytest.raises(ApiError, match="not listen to these channels"):
        async with mute.watch():
            pass
    await mute.close()


async def test_a_pooler_that_swallows_notifications_is_found_out(place: Place) -> None:
    async def swallow(_: object) -> None:
        pass

    watch = PostgresWatch(await asyncpg.connect(place.url_of("postgres")), "s", "own", swallow, 0.1)
    with pytest.raises(ApiError, match="Notifications do not come through"):
        await watch.open()
    await watch.close()


# Waiting: nobody here looks by themselves


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not told waits for ever."""
    monkeypatch.setattr(journal, "_POLL", AGES)
    monkeypatch.setattr(bell, "SELDOM", AGES)
    for name in ("_LOOK", "_GLANCE"):
        monkeypatch.setattr(crew, name, AGES)


class Process(Office):
    """A process with workers."""

    def __init__(self, records: Records, *rounds: object, size: int) -> None:
        super().__init__(records, *rounds)  # type: ignore[arg-type]
        self.workers = self.crew(size=size)

    async def __aenter__(self) -> Process:
        self.workers.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.workers.stop()


@pytest.mark.usefixtures("told")
async def test_who_has_no_room_has_others_make_it_and_reads_along(records: Records, there: Records) -> None:
    async with Process(records, size=0) as full, Process(there, *ROUNDS, size=1) as free, asyncio.timeout(PATIENCE):
        await full.submit(full.workers)
        batches = full.workers.follow(ID, -1, AGES)
        events = [event async for batch in batches for event in batch]
        final = await free.result()
        assert (final["status"], said(final)) == ("completed", SAID)
        assert events == await free.journal.read_all(ID, -1)


@pytest.mark.usefixtures("told")
async def test_a_cancel_is_heard_by_who_makes_it_and_its_end_by_who_cancels(records: Records, there: Records) -> None:
    async with Process(records, size=0) as here, asyncio.timeout(PATIENCE):
        async with Process(there, [text("And"), asyncio.Event(), finish()], size=1) as maker:
            await here.submit(here.workers)
            await until(lambda: maker.inference.streaming == 1)
            ending = asyncio.create_task(here.workers.ended(ID))
            await here.workers.cancel(ID)
            await until(lambda: maker.inference.streaming == 0)
            await ending
        assert (await here.result())["status"] == "cancelled"


@pytest.mark.usefixtures("told")
async def test_what_one_hands_over_another_takes_up(records: Records, there: Records) -> None:
    async with asyncio.timeout(PATIENCE):
        async with Process(records, ROUNDS[0], [text("And"), asyncio.Event()], size=1) as ends:
            await ends.submit(ends.workers)
            await until(lambda: ends.inference.sent == 6)
            async with Process(there, *ROUNDS[1:], size=1) as goes_on:
                await until(lambda: QUEUE in goes_on.workers._bell._told)
                await ends.workers.stop()
                await goes_on.workers.ended(ID)
                assert said(await goes_on.result(), "completed") == SAID
