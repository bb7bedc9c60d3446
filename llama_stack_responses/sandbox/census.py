"""How much memory the processes of a container use."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PPID: Final = 1
_RSS: Final = 21
"""Places in `/proc/PID/stat` behind the command, which may hold anything."""


def resident_bytes(pid: int) -> dict[int, int]:
    """The memory of a process and of all that descend from it, by their ids; pages that they share count for each.

    A container's processes cannot leave its namespace, and so not its tree.
    """
    resident: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for each, parent, pages in _processes():
        children[parent].append(each)
        resident[each] = pages * _PAGE
    counted = [pid]
    for each in counted:  # grows while it is gone through
        counted += children[each]
    return {each: resident.get(each, 0) for each in counted}


def _processes() -> Iterator[tuple[int, int, int]]:
    """Of every process: its id, its parent's, and its resident pages."""
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            yield int(place.name), int(fields[_PPID]), int(fields[_RSS])
