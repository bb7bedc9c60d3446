"""The running descendants of this process."""

import os
from collections import defaultdict
from pathlib import Path


def descendants(pid: int | None = None) -> set[int]:
    """Return a process (this one by default) and all its descendants, without zombies."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[0] != "Z" or int(fields[17]) > 1:  # a zombie with several threads: only the first one has ended
                children[int(fields[1])].append(int(place.name))
    found = [os.getpid() if pid is None else pid]
    for each in found:  # grows during the iteration
        found += children[each]
    return set(found)
