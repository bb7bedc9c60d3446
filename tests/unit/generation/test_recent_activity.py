"""What a server did in the last hour is kept for each user, in half minutes and within bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation.activity import Activity, Running
from llama_stack_responses.generation.recent_activity import SLOT_SECONDS, RecentActivity
from llama_stack_responses.stream.assembler import Assembler

ALICE: Final = Owner("alice")
BOB: Final = Owner("bob")
BEGAN: Final = 1_000_000 * SLOT_SECONDS


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = float(BEGAN)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def activity() -> Activity:
    return Activity()


@pytest.fixture
def recent(activity: Activity, clock: Clock) -> RecentActivity:
    return RecentActivity(activity, clock)


def stream(events: int, counted: int = 0) -> Running:
    """Return a response that has sent so many events, of which some are in the counts."""
    assembler = cast("Assembler", SimpleNamespace(numbered=events))
    return Running(assembler, (), stored=True, streamed=True, owner=ALICE, end=print, counted_events=counted)


def write(running: Running, events: int) -> None:
    cast("Any", running.assembler).numbered += events


async def slots_later(recent: RecentActivity, clock: Clock, slots: int = 1) -> None:
    clock.now += slots * SLOT_SECONDS
    await recent.look()


def of(recent: RecentActivity, name: str, owner: Owner = ALICE) -> dict[int, Any]:
    """Return a number of each bucket, by the number of its slot."""
    return {(each["at"] - BEGAN) // SLOT_SECONDS: each[name] for each in recent.of(owner)}


async def test_counts_are_in_the_half_minute_in_which_they_were_counted(
    recent: RecentActivity, activity: Activity, clock: Clock
) -> None:
    activity.of(ALICE).requests += 3
    await slots_later(recent, clock)
    activity.of(ALICE).requests += 2
    activity.of(ALICE).failed += 1
    await slots_later(recent, clock, 2)
    activity.of(ALICE).requests += 4
    assert of(recent, "requests") == {0: 3, 1: 2, 3: 4}
    assert of(recent, "failed") == {0: 0, 1: 1, 3: 0}


async def test_sixteen_streams_that_still_run_count_with_each_event(
    recent: RecentActivity, activity: Activity, clock: Clock
) -> None:
    streams = [stream(0) for _ in range(16)]
    activity.of(ALICE).requests += 16
    activity.running[ALICE.identity] = {str(number): each for number, each in enumerate(streams)}
    for _ in range(2):
        for each in streams:
            write(each, 500 * SLOT_SECONDS // 16)
        await slots_later(recent, clock)
    assert of(recent, "events") == of(recent, "output_tokens") | {2: 0} == {0: 14992, 1: 14992, 2: 0}
    assert of(recent, "running") == {0: 16, 1: 16, 2: 16}


async def test_the_most_that_ran_at_once_is_kept_although_it_has_ended(
    recent: RecentActivity, activity: Activity, clock: Clock
) -> None:
    activity.of(ALICE).requests += 1
    await slots_later(recent, clock)
    activity.running[ALICE.identity] = {"a": stream(1), "b": stream(1)}
    await recent.look()
    activity.running.clear()
    await slots_later(recent, clock)
    assert of(recent, "running") == {0: 0, 1: 2}


async def test_what_is_older_than_an_hour_is_gone(recent: RecentActivity, activity: Activity, clock: Clock) -> None:
    activity.of(ALICE).requests += 1
    await slots_later(recent, clock)
    activity.of(ALICE).requests += 1
    await slots_later(recent, clock, 119)
    assert of(recent, "requests") == {1: 1}
    await slots_later(recent, clock)
    assert recent.of(ALICE) == []


async def test_a_user_sees_only_own_counts(recent: RecentActivity, activity: Activity, clock: Clock) -> None:
    activity.of(ALICE).requests += 1
    await slots_later(recent, clock)
    assert recent.of(BOB) == []


async def test_users_whose_counts_are_dropped_leave_nothing_behind(
    recent: RecentActivity, activity: Activity, clock: Clock
) -> None:
    for number in range(1100):
        activity.of(Owner(f"user {number}")).requests += 1
    await slots_later(recent, clock)
    for number in range(1100, 2200):
        activity.of(Owner(f"user {number}")).requests += 1
    await slots_later(recent, clock)
    assert recent.of(Owner("user 1000")) == []
    assert len(recent._owners) == len(activity.owners()) == 1024
    assert of(recent, "requests", Owner("user 2000")) == {1: 1}


async def test_counts_of_a_user_who_was_dropped_begin_again(
    recent: RecentActivity, activity: Activity, clock: Clock
) -> None:
    activity.of(ALICE).requests += 5
    await slots_later(recent, clock)
    for number in range(1024):
        activity.of(Owner(f"user {number}"))
    activity.of(ALICE).requests += 2
    assert of(recent, "requests") == {0: 5, 1: 2}


async def test_response_is_quiet_since_no_event_has_come(
    recent: RecentActivity, activity: Activity, clock: Clock
) -> None:
    running = stream(3)
    activity.running[ALICE.identity] = {"a": running}
    noticed = []
    for events in (0, 0, 0, 1):
        write(running, events)
        await recent.look()
        noticed.append(running.quiet_since)
        clock.now += 5
    assert noticed == [None, BEGAN + 5, BEGAN + 5, None]
