"""The confinement of a process that runs programs: real attempts, and the filter itself."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from llama_stack_responses.features.programs import confinement
from llama_stack_responses.features.programs.confinement import filter_program, unconfinable
from llama_stack_responses.process_pool.pool import PoolLimits, Task, WorkerPool

ALLOW, KILL, NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050001
X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(PoolLimits())
    yield pool
    await pool.close()


async def deeds(pool: WorkerPool, seconds: float = 60, **options: bool) -> dict[str, str]:
    """Return the outcomes of the hostile task."""
    task = Task(f"{__package__}.hostile_task", b"", seconds, 1000, options)
    answer = dict(await pool.run(task))
    assert not answer.pop("text")
    return answer


async def test_confined_process_can_do_nothing(pool: WorkerPool) -> None:
    free, confined = await deeds(pool, confined=False), await deeds(pool, confined=True)
    assert set(free.values()) == {"done"}
    assert set(confined.values()) == {"EPERM"}
    assert free.keys() == confined.keys()


@pytest.mark.parametrize(("seconds", "left"), [(60, 5), (1, 2)])
async def test_limits_of_process_are_lowered(pool: WorkerPool, seconds: float, left: int) -> None:
    limits = {"RLIMIT_NPROC": "(0, 0)", "RLIMIT_NOFILE": "(0, 0)", "RLIMIT_CPU": f"({left}, {left})"}
    assert await deeds(pool, seconds, limits=True) == limits


def action(machine: str, architecture: int, number: int, *arguments: int) -> int:
    """Return what a filter decides on a system call."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(arguments + (0,) * 6)[:6])
    program, at, value = list(struct.iter_unpack("=HBBI", filter_program(machine))), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x54:
            value &= operand
        elif code == 0x15:
            at += if_true if value == operand else if_false
        else:
            return int(operand)


@pytest.mark.parametrize(
    ("machine", "architecture", "openat", "mmap", "mprotect", "sendto"),
    [("x86_64", X86_64, 257, 9, 10, 44), ("aarch64", AARCH64, 56, 222, 226, 206)],
)
def test_filter_allows_memory_and_answer_alone(
    machine: str, architecture: int, openat: int, mmap: int, mprotect: int, sendto: int
) -> None:
    assert action(machine, architecture, openat) == NOT_PERMITTED
    assert action(machine, architecture, sendto) == ALLOW
    for call in (mmap, mprotect):
        assert action(machine, architecture, call, 0, 0, 3) == ALLOW
        assert action(machine, architecture, call, 0, 0, 7) == NOT_PERMITTED
    # The same number of the x32 ABI, and of another architecture.
    assert action(machine, architecture, 0x40000000 + sendto) == NOT_PERMITTED
    assert action(machine, I386, sendto) == KILL
    assert sum(action(machine, architecture, each, 0, 0, 3) == ALLOW for each in range(1024)) == 15


def test_unknown_processor_cannot_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    assert "riscv64" in (unconfinable() or "")


def test_kernel_without_filters_cannot_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unconfinable() is None
    monkeypatch.setattr(confinement, "_FILTER", 99)  # the kernel does not know this mode either
    assert "CONFIG_SECCOMP_FILTER" in (unconfinable() or "")
