"""Reference cycles among old objects are collected while that is short."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from llama_stack_responses.lifecycle.garbage import OldGarbage
from tests.support.memory import no_garbage_collection

FEW = 10**9
MANY = 0


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


def old_cycle(passes: int) -> weakref.ref[Cycle]:
    """Return a reference to a cycle that nothing else refers to, but that passes over younger objects do not free."""
    gc.collect()
    cycle = Cycle()
    for _ in range(passes):
        gc.collect(1)
    return weakref.ref(cycle)


@pytest.fixture(autouse=True)
def only_explicit_collections() -> Iterator[None]:
    """Collect nothing but what the code asks for, and nothing that other tests have made: that takes a second."""
    gc.freeze()
    with no_garbage_collection():
        yield


@pytest.mark.parametrize(
    ("most", "passes", "seconds", "is_collected"),
    [
        (FEW, 10, 0, True),
        (FEW, 9, 0, False),
        (MANY, 10, 3_599, False),
        (MANY, 10, 3_600, True),
        (MANY, 9, 3_600, False),
    ],
    ids=["few objects", "little has come", "many objects", "many objects for long", "little for long"],
)
async def test_old_cycles_are_collected_while_that_is_short_or_after_an_hour(
    most: int, passes: int, seconds: float, is_collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_stack_responses.lifecycle.garbage._MAX_OBJECTS", most)
    now = 0.0
    garbage, cycle = OldGarbage(10.0, lambda: now), old_cycle(passes)
    now = seconds
    await garbage.check()
    assert (cycle() is None) is is_collected


async def test_hour_begins_with_each_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_stack_responses.lifecycle.garbage._MAX_OBJECTS", MANY)
    now, found = 0.0, []
    garbage = OldGarbage(10.0, lambda: now)
    for now in (3_600, 7_199, 7_200):
        cycle = old_cycle(10)
        await garbage.check()
        found.append(cycle() is None)
    assert found == [True, False, True]
