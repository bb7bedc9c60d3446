"""Assembles filters of system calls in the format of seccomp(2): eight bytes per instruction."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

LOAD: Final = 0x20
JUMP_IF_EQUAL: Final = 0x15
JUMP_IF_AT_LEAST: Final = 0x35
AND: Final = 0x54
RETURN: Final = 0x06

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
ERROR: Final = 0x00050000
"""Actions for a call. The number of the error that a call fails with is added to the last."""
NOT_PERMITTED: Final = ERROR | 1

NUMBER: Final = 0
ARCHITECTURE: Final = 4
ARGUMENTS: Final = (16, 24, 32, 40)
"""Offsets in the filter's input (`struct seccomp_data`). Only the lower half of an argument is read: all are `int`s."""

ARCHITECTURES: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The architectures for which there are filters, by their names in uname(2)."""

Step = tuple[int, int, str]
"""An instruction: its code, its operand, and the label of a jump's target."""


def number_of_call(machine: str) -> list[str | Step]:
    """Return the lines that load the number of a call, and end the process for a call of another architecture."""
    return [
        (LOAD, ARCHITECTURE, ""),
        (JUMP_IF_EQUAL, ARCHITECTURES[machine], "number"),
        (RETURN, KILL, ""),
        "number",
        (LOAD, NUMBER, ""),
    ]


def assembled(lines: Sequence[str | Step]) -> bytes:
    """Assemble instructions and labels; a jump is encoded as the number of instructions to skip."""
    labels: dict[str, int] = {}
    steps: list[Step] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(steps)
        else:
            steps.append(line)
    return b"".join(
        struct.pack("=HBBI", code, labels[target] - here - 1 if target else 0, 0, number)
        for here, (code, number, target) in enumerate(steps)
    )
