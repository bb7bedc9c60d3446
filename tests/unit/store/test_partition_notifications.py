"""Notifications of several partitions, of which some are away."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, override

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.intervals import Intervals
from llama_stack_responses.jobs.notification_listener import NotificationListener
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.store import partitions
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import PubSub
from tests.support.waiting import turns, until

OPENING: Final = "notifications of what is away"
NAMES: Final = [new_id("resp", tag) for tag in range(4)]


class Names:
    """Returns each name once it is subscribed to."""

    def __init__(self) -> None:
        self._names = asyncio.Queue[str | ApiError]()

    async def subscribe(self, names: Collection[str]) -> None:
        for name in names:
            self._names.put_nowait(name)

    async def unsubscribe(self, names: Collection[str]) -> None:
        pass

    def lose(self) -> None:
        """Lose the connection."""
        self._names.put_nowait(ApiError(503, "lost"))

    async def receive(self) -> str:
        name = await self._names.get()
        if isinstance(name, ApiError):
            raise name
        return name


class Notifying(MemoryRecords):
    """A partition on one of two servers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.place, self.away, self.tried = f"server {number % 2}", False, 0
        self.opened: list[Names] = []

    async def server(self) -> str:
        return self.place

    @override
    def pubsub(self) -> AbstractAsyncContextManager[PubSub]:  # type: ignore[override]
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[PubSub]:
        self.tried += 1
        if self.away:
            raise ApiError(503, "away")
        self.opened.append(Names())
        yield self.opened[-1]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Notifying]:
    monkeypatch.setattr(partitions, "_REOPEN_SECONDS", 0.001)
    return [Notifying(number) for number in range(4)]


def take(parts: list[Notifying], *, away: bool) -> None:
    """Take the partitions of one server away, or bring them back."""
    for part in parts[::2]:
        part.away = away


async def test_notifications_of_others_arrive_while_a_server_is_away(parts: list[Notifying]) -> None:
    take(parts, away=True)
    async with asyncio.timeout(30), PartitionedRecords(parts).pubsub() as pubsub:  # type: ignore[union-attr]
        await pubsub.subscribe(NAMES)
        assert {await pubsub.receive(), await pubsub.receive()} == {NAMES[1], NAMES[3]}
        gone, more = (new_id("resp", 0) for _ in range(2))
        await pubsub.subscribe([gone, more])
        await pubsub.unsubscribe([gone])
        await until(lambda: parts[0].tried > 2)
        assert parts[2].tried == 0, "its server does not answer"
        take(parts, away=False)
        assert {await pubsub.receive() for _ in range(3)} == {NAMES[0], NAMES[2], more}
        parts[2].opened[0].lose()
        with pytest.raises(ApiError, match="lost"):
            await pubsub.receive()


async def test_tasks_that_have_opened_what_was_away_are_not_kept(parts: list[Notifying]) -> None:
    async with asyncio.timeout(30), PartitionedRecords(parts).pubsub() as pubsub:  # type: ignore[union-attr]
        await pubsub.subscribe([NAMES[1]])
        for part, name in ((parts[0], NAMES[0]), (parts[2], NAMES[2])):
            part.away = True
            await pubsub.subscribe([name])
            part.away = False
            while not part.opened:
                await turns(1)

        def opening() -> int:
            gc.collect()
            return sum(isinstance(each, asyncio.Task) and each.get_name() == OPENING for each in gc.get_objects())

        await until(lambda: opening() == 1)  # the last one


async def test_notifications_are_lost_until_a_server_is_back(
    parts: list[Notifying], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for part in parts:
        part.away = True
    notifier = Notifier()
    listening = asyncio.create_task(
        NotificationListener(PartitionedRecords(parts), notifier, Intervals(reconnect_seconds=0.001)).run()
    )
    with notifier.subscribe(NAMES[0]) as subscription:
        await until(lambda: parts[0].tried > 2)
        take(parts, away=False)
        await until(lambda: bool(parts[0].opened))
        assert await subscription.wait(30.0)
        await turns(5)
    listening.cancel()
    await asyncio.wait([listening])
    assert [record.message for record in caplog.records] == [
        "store notifications lost, falling back to polling: away",
        "store notifications restored",
    ]
