"""What the code of a container may not ask of the kernel, as a filter that the kernel runs.

Beside namespaces and limits: calls that take memory which counts for no process, that look into other processes, or
that ordinary programs do not need and attacks on the kernel do. They fail as if the kernel did not have them, so that
programs do without. The filter's form is that of seccomp(2): eight bytes an instruction.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

_LOAD: Final = 0x20
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06

_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_NO_SUCH_CALL: Final = 0x00050000 | 38

_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
"""Places in what the kernel gives the filter to look at."""

_OTHER_TABLE: Final = 0x40000000
"""On x86-64, numbers from here on are the same calls by other numbers."""

_ARCHITECTURES: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_REFUSED: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        "shmget": 29,
        "msgget": 68,
        "ptrace": 101,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "memfd_create": 319,
        "bpf": 321,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "memfd_secret": 447,
    },
    "aarch64": {
        "ptrace": 117,
        "msgget": 186,
        "shmget": 194,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "perf_event_open": 241,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "memfd_create": 279,
        "bpf": 280,
        "userfaultfd": 282,
        "io_uring_setup": 425,
        "memfd_secret": 447,
    },
}
"""The calls and their numbers, by machine."""


def filter_program(machine: str) -> bytes | None:
    """The filter for a machine, by the name that the system gives it; None for one that is not known here."""
    if machine not in _ARCHITECTURES:
        return None
    refused = sorted(_REFUSED[machine].values())
    program = [
        _instruction(_LOAD, k=_ARCHITECTURE),
        _instruction(_JUMP_IF_EQUAL, k=_ARCHITECTURES[machine], jump_true=1),
        _instruction(_RETURN, k=_KILL),
        _instruction(_LOAD, k=_NUMBER),
        _instruction(_JUMP_IF_AT_LEAST, k=_OTHER_TABLE, jump_true=len(refused) + 1),
        *(_instruction(_JUMP_IF_EQUAL, k=number, jump_true=left) for left, number in _counted_down(refused)),
        _instruction(_RETURN, k=_ALLOW),
        _instruction(_RETURN, k=_NO_SUCH_CALL),
    ]
    return b"".join(program)


def open_filter() -> int | None:
    """A descriptor to read this machine's filter from; whoever opens it closes it."""
    program = filter_program(os.uname().machine)
    if program is None:
        return None
    outlet, inlet = os.pipe()
    with os.fdopen(inlet, "wb") as pipe:
        pipe.write(program)
    return outlet


def _instruction(code: int, *, k: int, jump_true: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, 0, k)


def _counted_down(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Each number with how many instructions lie between it and the last one."""
    return [(len(numbers) - place, number) for place, number in enumerate(numbers)]
