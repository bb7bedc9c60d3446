"""End process groups that are left when the process that started this one has ended, however it ended.

    python group_guard.py

Standard input has a line for each group, `+42` when it starts and `-42` when it has ended. At the end of the input the
groups that are left get SIGTERM, and a minute later SIGKILL: a process of such a group may have to end processes of
other groups.
"""

import os
import signal
import sys
import time

GRACE = 60.0


def send(groups: set[int], number: int) -> set[int]:
    """Send a signal to groups, and return those that there are; 0 is no signal."""
    there = set()
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            continue
        there.add(group)
    return there


def main() -> None:
    """Read until the parent has ended, then end the groups that are left."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    left = send(groups, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left = send(left, 0)
    send(left, signal.SIGKILL)


if __name__ == "__main__":
    main()
