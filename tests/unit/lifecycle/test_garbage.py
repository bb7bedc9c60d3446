"""Reference cycles among old objects are collected while that is short."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from llama_stack_responses.lifecycle.garbage import RESPONSES, STREAMS, NewObjects, OldGarbage, OldObjects
from tests.support.memory import no_garbage_collection

FEW = 30_000
MANY = 30_001


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


def old_cycle(passes: int) -> weakref.ref[Cycle]:
    """Return a reference to a cycle that nothing else refers to, but that passes over new objects do not free."""
    gc.collect()
    cycle = Cycle()
    for _ in range(passes):
        gc.collect(0)
    return weakref.ref(cycle)


def grown(blocks: int) -> OldObjects:
    """Return objects that have grown by so many blocks."""
    found = iter([1_000])
    objects = OldObjects(lambda: next(found, 1_000 + blocks))
    objects.are_few()
    return objects


def leak_new(objects: int) -> None:
    """Make reference cycles of so many objects, and have them found while they are new."""
    for _ in range(objects):
        Cycle()
    gc.collect(0)


@pytest.fixture(autouse=True)
def only_explicit_collections() -> Iterator[None]:
    """Collect nothing but what the code asks for, and nothing that other tests have made: that takes a second."""
    gc.freeze()
    thresholds = gc.get_threshold()
    with no_garbage_collection():
        yield
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    ("blocks", "passes", "seconds", "leaked", "is_collected"),
    [
        (FEW, 50, 0, 0, True),
        (FEW, 49, 0, 0, False),
        (MANY, 50, 3_600, 99_000, False),
        (MANY, 50, 3_599, 100_000, False),
        (MANY, 50, 3_600, 100_000, True),
        (MANY, 50, 86_399, 0, False),
        (MANY, 50, 86_400, 0, True),
        (MANY, 49, 86_400, 0, False),
    ],
    ids=[
        "few objects",
        "little has come",
        "few cycles for an hour",
        "many cycles, not yet an hour",
        "many cycles for an hour",
        "many objects, not yet a day",
        "many objects for a day",
        "little for a day",
    ],
)
async def test_old_cycles_are_collected_while_that_is_short_or_if_there_may_be_many(
    blocks: int, passes: int, seconds: float, leaked: int, *, is_collected: bool
) -> None:
    now = 0.0
    garbage = OldGarbage(10.0, grown(blocks), lambda: now)
    leak_new(leaked)
    cycle = old_cycle(passes)
    now = seconds
    await garbage.check()
    assert (cycle() is None) is is_collected


async def test_day_begins_with_each_collection() -> None:
    now, found = 0.0, []
    garbage = OldGarbage(10.0, grown(MANY), lambda: now)
    for now in (86_400, 172_799, 172_800):
        cycle = old_cycle(50)
        await garbage.check()
        found.append(cycle() is None)
    assert found == [True, False, True]


def test_least_growth_counts_from_the_smallest_number_of_blocks() -> None:
    blocks = iter([500_000, 100_000, 100_000 + MANY, 100_000 + FEW])
    objects = OldObjects(lambda: next(blocks))
    assert [objects.are_few() for _ in range(4)] == [True, True, False, True]


@pytest.fixture
def new_cycle() -> Iterator[weakref.ref[Cycle]]:
    """Return a reference to a cycle that only a pass over new objects frees, which Python does not make by itself."""
    gc.set_threshold(0)
    gc.enable()
    yield weakref.ref(Cycle())
    gc.disable()


def test_new_objects_are_visited_after_some_responses_although_they_have_ended(new_cycle: weakref.ref[Cycle]) -> None:
    new_objects = NewObjects()
    for _ in range(RESPONSES // 2):
        assert new_cycle() is not None
        new_objects.note_ended(new_objects.note_begun())
    assert new_cycle() is None


def test_new_objects_are_visited_after_fewer_responses_that_still_run(new_cycle: weakref.ref[Cycle]) -> None:
    new_objects = NewObjects()
    for _ in range(STREAMS):
        assert new_cycle() is not None
        new_objects.note_begun()
    assert new_cycle() is None


def test_responses_from_before_a_pass_count_no_longer(new_cycle: weakref.ref[Cycle]) -> None:
    new_objects = NewObjects()
    for each in [new_objects.note_begun() for _ in range(STREAMS - 1)]:
        new_objects.note_ended(each)
    assert new_cycle() is not None
    old = [new_objects.note_begun() for _ in range(STREAMS)]
    assert new_cycle() is None
    cycle = weakref.ref(Cycle())
    for each in old[:2]:
        new_objects.note_ended(each)
    for _ in range(STREAMS):
        assert cycle() is not None
        new_objects.note_begun()
    assert cycle() is None


def test_new_objects_are_visited_after_some_streams_that_are_about_to_end(new_cycle: weakref.ref[Cycle]) -> None:
    new_objects = NewObjects()
    old = [new_objects.note_begun() for _ in range(2 * STREAMS)]
    assert new_cycle() is None
    cycle = weakref.ref(Cycle())
    new_objects.note_ending(new_objects.note_begun())  # a short one is counted once
    for each in old[1:STREAMS]:
        assert cycle() is not None
        new_objects.note_ending(each)
    assert cycle() is None


def test_no_new_objects_are_visited_while_collections_are_disabled(new_cycle: weakref.ref[Cycle]) -> None:
    gc.disable()
    new_objects = NewObjects()
    for _ in range(RESPONSES):
        new_objects.note_begun()
    assert new_cycle() is not None
