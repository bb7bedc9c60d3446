"""Freed memory is returned to the system once a load has ended."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_stack_responses.lifecycle.memory_return import MemoryReturn

MB = 2**20


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Process:
    """A process whose memory is what the test says, and the times when it was trimmed."""

    def __init__(self, *resident: int) -> None:
        self._resident: Iterator[int] = iter(resident)
        self.now = 0
        self.trimmed: list[int] = []

    def read(self) -> int:
        self.now = next(self._resident, self.now)
        return self.now

    def trim(self) -> None:
        self.trimmed.append(self.now)


@pytest.mark.parametrize(
    ("resident", "trimmed"),
    [
        ([160 * MB, 160 * MB, 160 * MB], []),
        ([160 * MB, 900 * MB], []),
        ([160 * MB, 900 * MB, 900 * MB, 170 * MB], [900 * MB]),
        ([160 * MB, 900 * MB, 950 * MB, 940 * MB, 170 * MB], [940 * MB]),
        ([160 * MB, 170 * MB, 170 * MB], []),
        ([160 * MB, 900 * MB, 900 * MB, 500 * MB, 500 * MB, 500 * MB], [900 * MB]),
        ([160 * MB, 900 * MB, 900 * MB, 500 * MB, 600 * MB, 600 * MB, 500 * MB], [900 * MB, 600 * MB]),
        ([900 * MB, 160 * MB, 900 * MB, 900 * MB, 160 * MB], [900 * MB]),
    ],
    ids=[
        "nothing has grown",
        "it grows",
        "a load has ended",
        "it has grown twice",
        "it has grown by little",
        "the rest is in use",
        "it has grown again",
        "the start took more",
    ],
)
async def test_memory_is_returned_when_growth_has_ended(resident: list[int], trimmed: list[int]) -> None:
    process = Process(*resident)
    returning = MemoryReturn(10.0, process.read, process.trim)
    for _ in resident:
        await returning.check()
    assert process.trimmed == trimmed


async def test_unknown_memory_is_left_alone() -> None:
    process = Process()
    await MemoryReturn(10.0, lambda: None, process.trim).check()
    assert process.trimmed == []


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.parametrize(("most", "is_held"), [(10**9, False), (0, True)], ids=["few objects", "many objects"])
async def test_reference_cycles_are_collected_unless_there_are_many_objects(
    most: int, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_stack_responses.lifecycle.memory_return._MAX_OBJECTS", most)
    process = Process(160 * MB, 900 * MB, 900 * MB)
    returning = MemoryReturn(10.0, process.read, process.trim)
    gc.disable()
    try:
        cycle = weakref.ref(Cycle())
        for _ in range(3):
            await returning.check()
        assert (cycle() is not None) is is_held
    finally:
        gc.enable()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what a process takes")
async def test_freed_memory_of_this_process_is_returned() -> None:
    returning = MemoryReturn(10.0)
    await returning.check()
    blocks = [bytes(1_000) for _ in range(100_000)]
    last = blocks.pop()  # it lies at the end of the heap, which the C library would return by itself
    await returning.check()
    del blocks
    kept = resident()
    await returning.check()
    await returning.check()
    assert last is not None
    assert kept - resident() > 50 * MB
