"""On stores with notifications, subscribers learn of commits of other processes without polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import pytest
from redis import Redis

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.jobs.queue import QUEUE
from llama_stack_responses.store.postgres_pubsub import PostgresPubSub
from llama_stack_responses.store.records import Conflict, Notify, PubSub, Put, Records, VersionIs
from llama_stack_responses.store.redis import RedisRecords
from tests.contract.backends import Backend, BackendLocation, Clock
from tests.support.inference import finish, text
from tests.support.waiting import until
from tests.unit.jobs.harness import ID, PATIENCE, ROUNDS, SAID, ProcessHarness, texts_of

pytestmark = [pytest.mark.needs("notifications"), pytest.mark.every_store]

AGES: Final = 3600.0


@pytest.fixture
async def there(backend: Backend, place: BackendLocation, clock: Clock) -> AsyncIterator[Records]:
    """The same records in another process."""
    opened = backend.open(place, clock)
    yield opened
    await opened.close()


@asynccontextmanager
async def subscribed(records: Records, *names: str) -> AsyncIterator[PubSub]:
    """Yield a connection that is subscribed to the names."""
    entering = records.pubsub()
    assert entering is not None
    async with asyncio.timeout(PATIENCE), entering as pubsub:
        await pubsub.subscribe(names)
        assert {await pubsub.receive() for _ in names} == set(names)
        yield pubsub


# Notifications


async def test_commit_notifies_subscriber_in_other_process(records: Records, there: Records) -> None:
    async with subscribed(there, "a", "b") as pubsub:
        for number in range(1, 4):
            await records.commit([Put("k", b""), Notify("a")])
            assert await pubsub.receive() == "a"
            assert (await there.get_many(["k"]))["k"].version == number
        await records.commit([Notify("b")])
        assert await pubsub.receive() == "b"


async def test_each_name_notified_by_commit_is_received_once(records: Records, there: Records) -> None:
    async with subscribed(there, "a", "b", "z") as pubsub:
        await records.commit([Notify("a"), Put("k", b""), Notify("b"), Notify("a")])
        assert {await pubsub.receive(), await pubsub.receive()} == {"a", "b"}
        await records.commit([Notify("z")])
        assert await pubsub.receive() == "z"


async def test_only_subscribed_names_are_received(records: Records, there: Records) -> None:
    async with subscribed(there, "a", "b", "z") as pubsub:
        await pubsub.unsubscribe(["a"])
        await records.commit([Notify("a"), Notify("c"), Notify("z")])
        assert await pubsub.receive() == "z"
        await pubsub.subscribe(["a"])
        assert await pubsub.receive() == "a"


async def test_process_does_not_receive_its_own_notifications(records: Records, there: Records) -> None:
    async with subscribed(there, "a", "z") as pubsub:
        await there.commit([Notify("a")])
        await records.commit([Notify("z")])
        assert await pubsub.receive() == "z"


async def test_failed_commit_sends_no_notification(records: Records, there: Records) -> None:
    async with subscribed(there, "a", "z") as pubsub:
        with pytest.raises(Conflict):
            await records.commit([Put("k", b""), Notify("a")], [VersionIs("k", 7)])
        await records.commit([Notify("z")])
        assert await pubsub.receive() == "z"


async def test_notifications_of_other_stores_on_server_are_not_received(
    records: Records, there: Records, backend: Backend, place: BackendLocation, clock: Clock
) -> None:
    stranger = backend.open(place.fresh(), clock)
    async with subscribed(there, "a", "z") as pubsub:
        await stranger.commit([Notify("a")])
        await stranger.close()
        await records.commit([Notify("z")])
        assert await pubsub.receive() == "z"


async def test_concurrent_notifications_are_all_received(records: Records, there: Records) -> None:
    names = {f"resp_{number:064d}" for number in range(200)}
    async with subscribed(there, *names) as pubsub:
        await asyncio.gather(*(records.commit([Notify(name)]) for name in names))
        assert {await pubsub.receive() for _ in names} == names


async def test_user_without_publish_permission_can_write(place: BackendLocation, clock: Clock) -> None:
    address = place.url_of("redis")
    with Redis.from_url(address) as admin:
        admin.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
    mute = RedisRecords(address.replace("//", "//mute:pw@"), prefix=f"{place.name}:", clock=clock)
    await mute.commit([Notify("a"), Put("k", b"1"), Notify("b")])
    assert (await mute.get_many(["k"]))["k"].value == b"1"
    with pytest.raises(ApiError, match="or to listen to these channels"):
        async with mute.pubsub():
            pass
    await mute.close()


async def test_pooler_that_drops_notifications_is_detected(place: BackendLocation) -> None:
    async def swallow(_: object) -> None:
        pass

    pubsub = PostgresPubSub(await asyncpg.connect(place.url_of("postgres")), "s", "own", swallow, 0.1)
    with pytest.raises(ApiError, match="Notifications do not arrive"):
        await pubsub.open()
    await pubsub.close()


# Waiting without polling


NEVER_POLLS: Final = Intervals(
    poll_seconds=AGES, fast_poll_seconds=AGES, event_poll_seconds=AGES, fallback_poll_seconds=AGES
)
"""Intervals with which only a notification ends a wait."""


class Process(ProcessHarness):
    """A process with a worker."""

    def __init__(self, records: Records, *rounds: object, size: int) -> None:
        super().__init__(records, *rounds, intervals=NEVER_POLLS)  # type: ignore[arg-type]
        self.background = self.background_jobs(size=size)

    async def __aenter__(self) -> Process:
        self.background.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.background.worker.stop()


async def test_job_of_full_process_runs_in_other_one_and_is_followed(records: Records, there: Records) -> None:
    async with Process(records, size=0) as full, Process(there, *ROUNDS, size=1) as free, asyncio.timeout(PATIENCE):
        await full.submit(full.background)
        batches = full.background.events.follow(ID, -1, AGES)
        events = [event async for batch in batches for event in batch]
        final = await free.result()
        assert (final["status"], texts_of(final)) == ("completed", SAID)
        assert events == await free.event_log.read_all(ID, -1)


async def test_cancel_and_its_end_are_notified_across_processes(records: Records, there: Records) -> None:
    async with Process(records, size=0) as here, asyncio.timeout(PATIENCE):
        async with Process(there, [text("And"), asyncio.Event(), finish()], size=1) as maker:
            await here.submit(here.background)
            await until(lambda: maker.inference.streaming == 1)
            ending = asyncio.create_task(here.background.events.ended(ID))
            await here.background.cancel(ID)
            await until(lambda: maker.inference.streaming == 0)
            await ending
        assert (await here.result())["status"] == "cancelled"


async def test_handed_over_job_is_claimed_by_other_process(records: Records, there: Records) -> None:
    async with asyncio.timeout(PATIENCE):
        async with Process(records, ROUNDS[0], [text("And"), asyncio.Event()], size=1) as ends:
            await ends.submit(ends.background)
            await until(lambda: ends.inference.sent == 6)
            async with Process(there, *ROUNDS[1:], size=1) as goes_on:
                await until(lambda: QUEUE in goes_on.background._notifier._remote)
                await ends.background.worker.stop()
                await goes_on.background.events.ended(ID)
                assert texts_of(await goes_on.result(), "completed") == SAID
