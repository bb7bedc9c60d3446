"""How many processes a container has, and how much memory they use together."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PPID: Final = 1
_RSS: Final = 21
"""Places in `/proc/PID/stat` behind the command, which may hold anything."""


@dataclass(frozen=True, slots=True)
class Census:
    """What was counted.

    Attributes:
        processes: how many there are.
        resident_bytes: the memory that they have, pages that they share counted for each.
    """

    processes: int
    resident_bytes: int


def take_census(pid: int) -> Census:
    """Counts a process and all that descend from it: a container's cannot leave its namespace, and so not its tree."""
    resident: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for each, parent, pages in _processes():
        children[parent].append(each)
        resident[each] = pages * _PAGE
    counted = [pid]
    for each in counted:  # grows while it is gone through
        counted += children[each]
    return Census(len(counted), sum(resident.get(each, 0) for each in counted))


def _processes() -> Iterator[tuple[int, int, int]]:
    """Of every process: its id, its parent's, and its resident pages."""
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            yield int(place.name), int(fields[_PPID]), int(fields[_RSS])
