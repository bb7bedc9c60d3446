"""The processes that this one has started, as far as they are there."""

import os
from collections import defaultdict
from pathlib import Path


def descendants(pid: int | None = None) -> set[int]:
    """A process, this one by default, and all below it; those that have ended and wait for their parent are left out."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[0] != "Z" or int(fields[17]) > 1:  # of the latter, only the first thread has ended
                children[int(fields[1])].append(int(place.name))
    found = [os.getpid() if pid is None else pid]
    for each in found:  # grows while it is gone through
        found += children[each]
    return set(found)
