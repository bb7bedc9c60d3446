"""Takes all rights from a worker process before it runs a program.

A filter of system calls (seccomp(2)) lets the process use memory, read clocks, answer and end, and nothing else: it
opens no file, has no network, starts no process and sends no signal. QuickJS gives a program none of this; the filter
holds also if a program takes control of the process through an error in QuickJS. Other calls fail with EPERM.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Mapping
from typing import Final

from ...process_pool.filter_assembly import (
    ALLOW,
    AND,
    ARCHITECTURES,
    ARGUMENTS,
    JUMP_IF_EQUAL,
    LOAD,
    NOT_PERMITTED,
    RETURN,
    assembled,
    number_of_call,
)

_NO_NEW_PRIVILEGES: Final = 38
_SECCOMP: Final = 22
_FILTER: Final = 2
"""PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP and SECCOMP_MODE_FILTER of prctl(2)."""
_BAD_ADDRESS: Final = 14
"""EFAULT, the error for a filter at address 0 where filters exist."""

_EXECUTABLE: Final = 4
"""PROT_EXEC of mmap(2)."""

_ALLOWED: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        "munmap": 11,
        "brk": 12,
        "rt_sigreturn": 15,
        "sched_yield": 24,
        "mremap": 25,
        "madvise": 28,
        "sendto": 44,
        "exit": 60,
        "gettimeofday": 96,
        "futex": 202,
        "clock_gettime": 228,
        "exit_group": 231,
        "getrandom": 318,
    },
    "aarch64": {
        "exit": 93,
        "exit_group": 94,
        "futex": 98,
        "clock_gettime": 113,
        "sched_yield": 124,
        "rt_sigreturn": 139,
        "gettimeofday": 169,
        "sendto": 206,
        "brk": 214,
        "munmap": 215,
        "mremap": 216,
        "madvise": 233,
        "getrandom": 278,
    },
}
"""Allowed calls. The answer goes out by sendto(2) on a connected socket, the only one that the process has."""

_NOT_EXECUTABLE: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {"mmap": 9, "mprotect": 10},
    "aarch64": {"mmap": 222, "mprotect": 226},
}
"""Calls that are allowed unless they make memory executable."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`: a filter's number of instructions and its address."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def unconfinable() -> str | None:
    """Return why this system cannot confine a program; None if it can."""
    if not sys.platform.startswith("linux"):
        return "programs are confined by seccomp(2), which only Linux has"
    if os.uname().machine not in ARCHITECTURES:
        return f"there is no filter of system calls for {os.uname().machine} processors"
    # Nothing changes: there is no filter at this address.
    if _prctl(_SECCOMP, _FILTER, None) != _BAD_ADDRESS:
        return "this kernel, or what this server runs in, has no filters of system calls (CONFIG_SECCOMP_FILTER)"
    return None


def confine(seconds: int) -> bool:
    """Confine this process for the rest of its life, which has that processor time; return whether the kernel did."""
    os.environ.clear()
    # Dates of programs are the same on all servers. The C library would read a file for another time zone.
    os.environ["TZ"] = "UTC0"
    time.tzset()
    lower_limits(seconds)
    instructions = filter_program(os.uname().machine)
    program = _Program(len(instructions) // 8, instructions)
    return not _prctl(_NO_NEW_PRIVILEGES, 1, None) and not _prctl(_SECCOMP, _FILTER, ctypes.byref(program))


def lower_limits(seconds: int) -> None:
    """Let this process open and start nothing, and use that processor time: limits of the kernel beside the filter."""
    for what, limit in ((resource.RLIMIT_NPROC, 0), (resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_CPU, seconds)):
        _, most = resource.getrlimit(what)
        lower = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(what, (lower, lower))


def filter_program(machine: str) -> bytes:
    """Return the filter for an architecture, by its name in uname(2)."""
    return assembled(
        [
            *number_of_call(machine),
            *((JUMP_IF_EQUAL, number, "allow") for number in _ALLOWED[machine].values()),
            *((JUMP_IF_EQUAL, number, "memory") for number in _NOT_EXECUTABLE[machine].values()),
            (RETURN, NOT_PERMITTED, ""),
            "memory",
            (LOAD, ARGUMENTS[2], ""),
            (AND, _EXECUTABLE, ""),
            (JUMP_IF_EQUAL, 0, "allow"),
            (RETURN, NOT_PERMITTED, ""),
            "allow",
            (RETURN, ALLOW, ""),
        ]
    )


def _prctl(option: int, value: int, more: object) -> int:
    """Call prctl(2) and return its error; 0 if it did."""
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    return ctypes.get_errno() if libc.prctl(option, ctypes.c_ulong(value), more, unused, unused) else 0
