"""On every backend, a wrong clock deletes nothing, and a deletion of far more than usual waits for a person."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.clock_check import ClockCheck
from llama_stack_responses.lifecycle.sweeper import ConversationSweeper, ResponseSweeper
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.clock import StoreClock
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.records import Put, Records
from llama_stack_responses.store.redis import RedisRecords
from llama_stack_responses.store.retention import Counts, Retention
from llama_stack_responses.store.sweep_guard import SweepGuard, conversation_guard, held_back
from tests.contract.backends import SECONDS, Backend, BackendLocation, Clock, schema_of
from tests.contract.conversations import CREATED, new_id, response, user

DAY: Final = 86_400.0
OWNER: Final = Owner("anna")
MANY: Final = 25
"""Responses of a store."""


@dataclass
class Server:
    """What one server has of a store: its clocks, its archive and its sweeper.

    Attributes:
        wall: the clock of its machine.
        elapsed: a monotonic clock of its machine.
    """

    records: Records
    wall: Clock
    elapsed: Clock = field(default_factory=lambda: Clock(0.0))
    retention: float = 30 * DAY
    max_share: float = 0.2

    def __post_init__(self) -> None:
        self.clock = StoreClock(self.records, self.wall, self.elapsed)
        self.archive = Archive(self.records, retention=self.retention, clock=self.clock)
        self.guard = SweepGuard(self.records, self.archive.count, self.max_share, self.elapsed)
        self.sweeper = ResponseSweeper(self.archive, self.clock, self.guard, 600.0)
        self.check = ClockCheck(self.clock, DEFAULT)

    def passes(self, seconds: float) -> None:
        """Let time pass on all clocks."""
        self.wall.now += seconds
        self.elapsed.now += seconds

    async def save(self, count: int, age: float = 0.0) -> None:
        """Store responses that were created some seconds ago."""
        for _ in range(count):
            created = response(id=new_id("resp"), created_at=int(self.wall.now - age))
            await self.archive.save(created, owner=OWNER, base=None, input_items=[])

    async def confirm(self) -> None:
        """Let a deletion that is held back go on, as the command does."""
        await SweepGuard(self.records, self.archive.count, 0.2).went(self.archive.horizon(self.wall.now))

    async def stored(self) -> int:
        """Return how many responses are stored, expired or not."""
        return (await self.archive.count(self.archive.horizon(0.0))).stored


@pytest.fixture
def server(records: Records, clock: Clock) -> Server:
    """A server whose store has this machine's clock."""
    return Server(records, clock)


@pytest.mark.every_store
async def test_machine_clock_that_jumps_deletes_and_hides_nothing(
    records: Records, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    # Any share may be deleted: only the clock is in the way.
    server = Server(records, clock, max_share=1.0)
    await server.save(MANY)
    await server.check.check()
    kept = new_id("resp")
    await server.archive.save(response(id=kept, created_at=CREATED), owner=OWNER, base=None, input_items=[])
    server.wall.now += 31 * DAY
    await server.check.check()
    await server.sweeper.sweep()
    assert server.clock.difference == 31 * DAY
    assert await server.stored() == MANY + 1
    assert await server.archive.load(kept)
    assert f"the clock of this machine jumped {31 * DAY:.0f} seconds ahead" in caplog.text
    server.wall.now -= 31 * DAY
    caplog.set_level("INFO")
    await server.check.check()
    assert server.clock.difference == 0
    assert "the clock of this machine is right again" in caplog.text


async def test_server_whose_store_does_not_follow_the_machine_clock_sees_that_it_is_wrong(
    records: Records, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    # As on SQLite: the servers that had the file open before have another time.
    late = StoreClock(records, Clock(server.wall.now + 31 * DAY), server.elapsed)
    await ClockCheck(late, DEFAULT).check()
    assert (late.is_wrong, late.difference, late()) == (True, 31 * DAY, server.wall.now)
    assert "jumped" in caplog.text


async def test_machine_clock_that_jumps_expires_no_row(records: Records, server: Server) -> None:
    await server.check.check()
    await records.commit([Put("key", b"value", server.wall.now + DAY)])
    server.wall.now += 2 * DAY
    await server.sweeper.sweep()
    server.wall.now -= 2 * DAY
    assert "key" in await records.get_many(["key"])


async def test_clock_that_is_set_by_seconds_is_followed(server: Server) -> None:
    await server.check.check()
    for _ in range(5):
        server.wall.now += 50
        await server.check.check()
        assert not server.clock.is_wrong
    assert server.clock() == server.wall.now


async def test_machine_that_slept_deletes_what_expired(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await server.save(MANY)
    await server.save(MANY * 9, age=-2 * DAY)
    await server.sweeper.sweep()
    server.passes(30 * DAY + 1)
    await server.sweeper.sweep()
    assert await server.stored() == MANY * 9
    assert f"deleted expired responses: {MANY}" in caplog.messages


@pytest.mark.relatives
@pytest.mark.every_store
@pytest.mark.parametrize("count", [1, 5, 20, 21])
async def test_restart_with_a_wrong_clock_holds_the_deletion_back(
    records: Records, server: Server, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    await server.save(count)
    await server.sweeper.sweep()
    await records.commit([Put("key", b"value", server.wall.now + DAY)])
    server.wall.now += 31 * DAY
    started = Server(records, server.wall)
    await started.sweeper.sweep()
    assert started.sweeper.held == Counts(count, count)
    assert f"would delete {count} of {count}" in caplog.text
    server.wall.now -= 31 * DAY
    again = Server(records, server.wall)
    await again.sweeper.sweep()
    assert (again.sweeper.held, await again.stored()) == (None, count)
    assert "key" in await records.get_many(["key"])


async def test_held_deletion_is_logged_again_only_with_the_next_count(
    records: Records, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await server.save(MANY)
    server.wall.now += 31 * DAY
    started = Server(records, server.wall)
    for _ in range(3):
        await started.sweeper.sweep()
    assert caplog.text.count("held back") == 1
    started.passes(3601)
    await started.sweeper.sweep()
    assert caplog.text.count("held back") == 2


async def test_confirmed_deletion_goes_on_and_is_logged(
    records: Records, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await server.save(MANY)
    await server.sweeper.sweep()
    server.wall.now += 31 * DAY
    started = Server(records, server.wall)
    await started.sweeper.sweep()
    await started.confirm()
    await started.sweeper.sweep()
    assert (started.sweeper.held, await started.stored()) == (None, 0)
    confirmed = f"the deletion of expired responses that was held back was confirmed: {MANY} of {MANY} are deleted"
    assert caplog.messages.count(confirmed) == 1


async def test_deletion_without_confirmation_by_the_setting_goes_on(records: Records, server: Server) -> None:
    await server.save(MANY)
    server.wall.now += 31 * DAY
    started = Server(records, server.wall, max_share=1.0)
    await started.sweeper.sweep()
    assert await started.stored() == 0


async def test_lowered_retention_holds_the_deletion_back_while_rows_expire(records: Records, server: Server) -> None:
    await server.save(MANY, age=10 * DAY)
    await server.sweeper.sweep()
    lowered = Server(records, server.wall, server.elapsed, retention=7 * DAY)
    await records.commit([Put("key", b"value", server.wall.now + 60)])
    await lowered.sweeper.sweep()
    assert lowered.sweeper.held == Counts(MANY, MANY)
    server.passes(61)
    await lowered.sweeper.sweep()
    server.wall.now -= 61
    assert "key" not in await records.get_many(["key"])
    assert await lowered.stored() == MANY


async def test_responses_saved_while_a_deletion_is_held_back_do_not_release_it(
    records: Records, server: Server
) -> None:
    await server.save(5)
    await server.sweeper.sweep()
    server.wall.now += 31 * DAY
    started = Server(records, server.wall)
    await started.sweeper.sweep()
    await started.save(MANY)
    started.passes(3601)
    await started.sweeper.sweep()
    assert started.sweeper.held == Counts(5, 5 + MANY)
    assert await started.stored() == 5 + MANY


@pytest.mark.every_store
async def test_held_deletion_stays_so_on_a_server_that_starts_and_one_command_releases_it_on_all(
    records: Records, server: Server
) -> None:
    await server.save(5)
    await server.sweeper.sweep()
    server.wall.now += 31 * DAY
    before = Server(records, server.wall)
    await before.sweeper.sweep()
    assert await held_back(records) == 5
    # The expired ones are a small share by now.
    await before.save(MANY)
    started = Server(records, server.wall)
    await started.sweeper.sweep()
    assert (started.sweeper.held, await started.stored()) == (Counts(5, 5 + MANY), 5 + MANY)
    await started.confirm()
    for each in (before, started):
        await each.sweeper.sweep()
        assert (each.sweeper.held, await each.stored()) == (None, MANY)
    assert await held_back(records) == 0


async def test_number_of_a_held_deletion_is_that_of_the_last_count(records: Records, server: Server) -> None:
    """Also for a server that starts, and the least number of all is kept beside it."""
    await server.save(MANY)
    await server.sweeper.sweep()
    server.wall.now += 31 * DAY
    await Server(records, server.wall).sweeper.sweep()
    assert await held_back(records) == MANY
    await server.save(5, age=31 * DAY)
    started = Server(records, server.wall, server.elapsed)
    await started.sweeper.sweep()
    assert await held_back(records) == MANY + 5
    await server.save(5, age=31 * DAY)
    server.passes(3601)
    await started.sweeper.sweep()
    assert await held_back(records) == MANY + 10
    # Of all that is stored now, what is due would be a share that may be deleted.
    await server.save(6 * MANY)
    await Server(records, server.wall).sweeper.sweep()
    assert await held_back(records) == MANY + 10


async def test_held_deletion_goes_on_with_a_setting_that_never_waits(records: Records, server: Server) -> None:
    await server.save(5)
    server.wall.now += 31 * DAY
    started = Server(records, server.wall)
    await started.sweeper.sweep()
    await started.save(MANY)
    again = Server(records, server.wall, max_share=1.0)
    await again.sweeper.sweep()
    assert (again.sweeper.held, await again.stored(), await held_back(records)) == (None, MANY, 0)


async def test_held_deletion_is_over_when_the_clock_is_right_again(records: Records, server: Server) -> None:
    await server.save(5)
    await server.sweeper.sweep()
    server.wall.now += 31 * DAY
    await Server(records, server.wall).sweeper.sweep()
    assert await held_back(records) == 5
    server.wall.now -= 31 * DAY - 600
    await Server(records, server.wall).sweeper.sweep()
    assert (await held_back(records), await server.stored()) == (0, 5)


async def test_store_that_is_swept_all_the_time_expires_as_a_whole(server: Server) -> None:
    await server.save(MANY)
    for _ in range(32):
        await server.sweeper.sweep()
        server.passes(DAY - 1)
    assert (await server.stored(), server.sweeper.held) == (0, None)


async def test_outage_of_a_few_days_needs_no_confirmation(records: Records, server: Server) -> None:
    for day in range(30):
        await server.save(7, age=day * DAY)
    await server.sweeper.sweep()
    server.wall.now += 4 * DAY
    await Server(records, server.wall).sweeper.sweep()
    assert await server.stored() == 27 * 7


@pytest.fixture
async def with_own_clock(backend: Backend, place: BackendLocation) -> AsyncIterator[Records]:
    """Records on a server with its own clock."""
    url = place.url_of(backend.name)
    opened: Records = (
        PostgresRecords(url, schema=schema_of(place), timeout=SECONDS)
        if backend.name == "postgres"
        else RedisRecords(
            url, prefix=f"{place.name}:", timeout=SECONDS, partition=0 if backend.name == "cluster" else None
        )
    )
    yield opened
    await opened.close()


@pytest.mark.needs("own_clock")
@pytest.mark.parametrize("days", [31, -31])
async def test_server_with_a_wrong_clock_deletes_and_hides_nothing(
    with_own_clock: Records, days: int, caplog: pytest.LogCaptureFixture
) -> None:
    right = Server(with_own_clock, Clock(time.time()))
    await right.save(65)
    old = response(id=new_id("resp"), created_at=int(right.wall.now - 31 * DAY))
    await right.archive.save(old, owner=OWNER, base=None, input_items=[])
    # Any share may be deleted: only the clock is in the way.
    wrong = Server(with_own_clock, Clock(time.time() + days * DAY), max_share=1.0)
    await wrong.check.check()
    await wrong.sweeper.sweep()
    assert await right.stored() == 66
    assert wrong.clock.is_wrong
    assert abs(wrong.clock() - right.wall.now) < SECONDS
    assert f"seconds {'ahead of' if days > 0 else 'behind'} the clock of the store" in caplog.text
    await right.sweeper.sweep()
    assert await right.stored() == 65
    wrong.wall.now = time.time()
    await wrong.check.check()
    assert not wrong.clock.is_wrong


@pytest.mark.needs("own_clock")
async def test_store_that_answers_late_does_not_make_a_clock_wrong(with_own_clock: Records) -> None:
    class SlowClock:
        """Each reading is a minute and a half later."""

        now = time.time() - 90.0

        def __call__(self) -> float:
            self.now += 90.0
            return self.now

    clock = StoreClock(with_own_clock, SlowClock())
    await clock.read()
    assert not clock.is_wrong


class Talks:
    """Conversations of a server, and what deletes those that were not changed for 30 days."""

    def __init__(self, server: Server) -> None:
        self.store = server.archive.conversations
        self.guard = conversation_guard(server.records, self.store, server.max_share, server.elapsed)
        rule = Retention(30 * DAY, server.clock)
        self.sweeper = ConversationSweeper(self.store, rule, server.clock, self.guard, 600.0)

    async def begin(self, used_at: float) -> Conversation:
        """Store a conversation with an item."""
        talk = Conversation(new_id("conv"), OWNER, int(used_at), {})
        await self.store.create(talk, [user("hello")])
        return talk

    async def left(self) -> int:
        return (await self.store.count("0")).stored


@pytest.mark.every_store
async def test_conversation_expires_after_its_last_change(
    records: Records, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.max_share = 1.0
    talks = Talks(server)
    added, renamed, unused = [await talks.begin(server.wall.now) for _ in range(3)]
    server.passes(20 * DAY)
    await talks.store.add(added, [user("again")])
    await talks.store.set_metadata(renamed.id, {"topic": "new"})
    server.passes(11 * DAY)
    await talks.sweeper.sweep()
    kept = [each for each in (added, renamed, unused) if await talks.store.load(each.id)]
    assert kept == [added, renamed]
    assert "deleted expired conversations: 1" in caplog.messages
    rows = [key for key, _ in await records.range("!", "~", limit=1000) if unused.id in key]
    assert rows == []
    server.passes(20 * DAY)
    await talks.sweeper.sweep()
    assert await talks.left() == 0


async def test_conversation_of_a_version_without_the_time_of_change_is_kept_as_changed_now(
    records: Records, server: Server
) -> None:
    server.max_share = 1.0
    talks = Talks(server)
    talk = Conversation(new_id("conv"), OWNER, int(server.wall.now - 100 * DAY), {})
    await records.commit([Put(talk.key, talk.encode())])
    await talks.sweeper.sweep()
    assert await talks.left() == 1
    server.passes(29 * DAY)
    await talks.sweeper.sweep()
    assert await talks.left() == 1
    server.passes(2 * DAY)
    await talks.sweeper.sweep()
    assert await talks.left() == 0


async def test_deletion_of_most_conversations_is_held_back_until_it_is_confirmed(
    records: Records, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    talks = Talks(server)
    for _ in range(MANY):
        await talks.begin(server.wall.now)
    await talks.sweeper.sweep()
    server.wall.now += 31 * DAY
    started = Talks(Server(records, server.wall))
    await started.sweeper.sweep()
    assert (started.sweeper.held, await started.left()) == (Counts(MANY, MANY), MANY)
    assert "'conversation_retention_days'" in caplog.text
    await started.guard.went(Retention(30 * DAY, server.wall).horizon(server.wall.now))
    await started.sweeper.sweep()
    assert (started.sweeper.held, await started.left()) == (None, 0)


async def test_wrong_clock_deletes_no_conversation(records: Records, clock: Clock) -> None:
    server = Server(records, clock, max_share=1.0)
    talks = Talks(server)
    await server.check.check()
    await talks.begin(server.wall.now)
    server.wall.now += 31 * DAY
    await server.check.check()
    await talks.sweeper.sweep()
    server.wall.now -= 31 * DAY
    assert await talks.left() == 1


async def test_conversation_that_is_changed_while_it_expires_is_kept(records: Records, server: Server) -> None:
    talks = Talks(server)
    talk = await talks.begin(server.wall.now)
    server.passes(31 * DAY)
    stale = await talks.store.count("0")
    await talks.store.add(talk, [user("again")])
    await talks.sweeper.sweep()
    assert (stale.stored, await talks.left()) == (1, 1)
