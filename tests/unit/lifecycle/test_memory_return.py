"""Freed memory is returned to the system once a load has ended."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from llama_stack_responses.lifecycle.garbage import OldObjects
from llama_stack_responses.lifecycle.memory_return import MemoryReturn
from tests.support.memory import no_garbage_collection, resident_bytes

MB = 2**20


class Process:
    """A process whose memory is what the test says, in MB, and the times when it was trimmed.

    Args:
        resident: what it has at each check.
        returned: what it has after each trim.
    """

    def __init__(self, resident: list[int], returned: list[int]) -> None:
        self._resident, self._returned = iter(resident), iter(returned)
        self._now = 0
        self._after_trim = False
        self.trimmed: list[int] = []

    def read(self) -> int:
        self._now = next(self._returned if self._after_trim else self._resident) * MB
        self._after_trim = False
        return self._now

    def trim(self) -> None:
        self.trimmed.append(self._now)
        self._after_trim = True


@pytest.mark.relatives
@pytest.mark.parametrize(
    ("resident", "returned", "trimmed"),
    [
        ([160, 160, 160], [], []),
        ([160, 900], [], []),
        ([160, 900, 900], [170], [900]),
        ([160, 900, 950, 940], [170], [940]),
        ([160, 170, 170], [], []),
        ([160, 900, 900, 700, 500], [700, 500, 170], [900, 700, 500]),
        ([160, 900, 900, 500, 500, 500, 500, 500], [500, 500, 500], [900, 500, 500]),
        ([160, 900, 900, 500, 600, 600], [500, 500, 170], [900, 500, 600]),
        ([900, 160, 900, 900], [160], [900]),
    ],
    ids=[
        "nothing has grown",
        "it grows",
        "a load has ended",
        "it has grown twice",
        "it has grown by little",
        "the load ends little by little",
        "the rest is in use",
        "it has grown again",
        "the start took more",
    ],
)
async def test_memory_is_returned_when_growth_has_ended(
    resident: list[int], returned: list[int], trimmed: list[int]
) -> None:
    process = Process(resident, returned)
    returning = MemoryReturn(10.0, OldObjects(lambda: 0), process.read, process.trim)
    for _ in resident:
        await returning.check()
    assert process.trimmed == [each * MB for each in trimmed]


async def test_unknown_memory_is_left_alone() -> None:
    process = Process([], [])
    await MemoryReturn(10.0, OldObjects(lambda: 0), lambda: None, process.trim).check()
    assert process.trimmed == []


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.parametrize("running", [0, 1])
async def test_reference_cycles_are_collected_unless_that_would_disturb_a_response(running: int) -> None:
    blocks = iter([0])
    objects = OldObjects(lambda: running, lambda: next(blocks, 1_000_000))
    objects.look()
    process = Process([160, 900, 900], [170])
    returning = MemoryReturn(10.0, objects, process.read, process.trim)
    with no_garbage_collection():
        cycle = weakref.ref(Cycle())
        for _ in range(3):
            await returning.check()
        assert (cycle() is not None) is bool(running)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what a process takes")
async def test_freed_memory_of_this_process_is_returned() -> None:
    returning = MemoryReturn(10.0, OldObjects(lambda: 0))
    await returning.check()
    freed = max(
        100 * MB, resident_bytes(os.getpid()) // 4
    )  # the tests before this one may have left much, of which it has to be a part
    blocks = [bytes(1_000) for _ in range(freed // 1_000)]
    last = blocks.pop()  # it lies at the end of the heap, which the C library would return by itself
    await returning.check()
    del blocks
    kept = resident_bytes(os.getpid())
    for _ in range(4):
        await returning.check()
    assert last is not None
    assert kept - resident_bytes(os.getpid()) > freed / 2


HEAPS = """
import ctypes, sys, threading
from llama_stack_responses.lifecycle.memory_return import keep_one_heap

keep_one_heap({} if sys.argv[1] == "one" else {"MALLOC_ARENA_MAX": "8"})
barrier = threading.Barrier(4)

def allocate():
    held = [bytes(10_000) for _ in range(100)]
    barrier.wait()
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(3)]
for each in threads:
    each.start()
barrier.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
output = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, output)
libc.fflush(output)
barrier.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives threads heaps of their own")
@pytest.mark.parametrize(("setting", "is_one"), [("one", True), ("the operator's", False)])
def test_threads_share_one_heap_unless_the_operator_says_otherwise(setting: str, *, is_one: bool) -> None:
    command = [sys.executable, "-c", HEAPS, setting]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (answer.stdout.count("<heap ") == 1) is is_one
