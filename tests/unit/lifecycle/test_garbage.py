"""Reference cycles among old objects are collected while that disturbs no response."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from llama_stack_responses.lifecycle.garbage import READS, RESPONSES, STREAMS, NewObjects, OldGarbage, OldObjects
from tests.support.memory import no_garbage_collection

LEAST = 1_000_000
FEW, MANY = LEAST + 10_000, LEAST + 10_001
TEXTS = LEAST + 10_000 * 250
"""The blocks of memory of 10,000 open streams of text."""
HOUR = 3_600.0


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


class Process:
    """A process with old objects, in which nothing runs at first."""

    def __init__(self) -> None:
        self.blocks, self.running, self.now = LEAST, 0, 0.0
        self.objects = OldObjects(lambda: self.running, lambda: self.blocks, lambda: self.now)
        self.objects.look()

    def collects(self) -> bool:
        """Return whether a reference cycle is collected now."""
        cycle = old_cycle(passes=1)
        self.objects.collect()
        return cycle() is None


@pytest.fixture(autouse=True)
def only_explicit_collections() -> Iterator[None]:
    """Collect nothing but what the code asks for, and nothing that other tests have made: that takes a second."""
    gc.freeze()
    thresholds = gc.get_threshold()
    with no_garbage_collection():
        yield
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    ("running", "blocks", "seconds", "is_collected"),
    [
        (0, 10 * LEAST, 0, True),
        (1, FEW, 0, True),
        (1, MANY, 10 * HOUR, False),
        (10_000, TEXTS, 100 * HOUR, False),
        (10_000, 2 * LEAST + 10_000_000, HOUR - 1, False),
        (10_000, 2 * LEAST + 10_000_000, HOUR, True),
        (10_000, 2 * LEAST + 9_999_999, 100 * HOUR, False),
    ],
    ids=[
        "nothing runs",
        "few objects",
        "many objects",
        "many streams",
        "more than streams have, not yet an hour",
        "more than streams have for an hour",
        "what streams may have",
    ],
)
def test_old_cycles_are_collected_if_that_disturbs_nobody_or_is_due(
    running: int, blocks: int, seconds: float, *, is_collected: bool
) -> None:
    process = Process()
    process.running, process.blocks, process.now = running, blocks, seconds
    assert process.collects() is is_collected


def test_growth_counts_from_the_least_and_a_late_pass_waits_for_as_much_again() -> None:
    process = Process()
    process.running, process.blocks, process.now = 1, 3 * LEAST, HOUR
    assert process.collects(), "cycles may have taken the memory"
    process.now = 2 * HOUR
    assert not process.collects(), "they had not"
    process.blocks = 6 * LEAST + 1_000
    assert process.collects()
    process.blocks = LEAST // 2
    assert process.collects()
    process.blocks = LEAST
    assert not process.collects()


@pytest.mark.parametrize("passes", [49, 50])
async def test_old_objects_are_left_alone_until_many_new_ones_have_come(passes: int) -> None:
    process = Process()
    cycle = old_cycle(passes)
    await OldGarbage(10.0, process.objects).check()
    assert (cycle() is None) is (passes == 50)


async def test_growth_counts_from_the_start_although_a_load_begins_before_old_objects_are_visited() -> None:
    process = Process()
    process.blocks = LEAST - 1
    await OldGarbage(10.0, process.objects).check()
    process.running, process.blocks = 1, FEW
    assert not process.collects()


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


def test_new_objects_are_visited_after_many_reads(new_cycle: weakref.ref[Cycle]) -> None:
    new_objects = NewObjects()
    for _ in range(READS):
        assert new_cycle() is not None
        new_objects.note_read()
    assert new_cycle() is None


def test_no_new_objects_are_visited_while_collections_are_disabled(new_cycle: weakref.ref[Cycle]) -> None:
    gc.disable()
    new_objects = NewObjects()
    for _ in range(RESPONSES):
        new_objects.note_begun()
    assert new_cycle() is not None
