"""Control groups of containers (cgroups v2, Documentation/admin-guide/cgroup-v2.rst), where this server may make some.

The kernel then bounds the memory, processes and processor time of each container as a whole, at the moment of use and
with what it keeps for the container itself: buffers of sockets and pipes, page tables, files in memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .openat import open_folder

_CONTROLLERS: Final = frozenset({"memory", "pids", "cpu"})
_PERIOD: Final = 100_000
"""Microseconds in which the processor time of a group is counted."""

_OWN_PROCESSES: Final = 8
"""Processes and threads of a group beside those of the code: bubblewrap's."""

_DELEGATED: Final = ("user.delegate", "trusted.delegate")
"""Attributes by which systemd marks a group that is the service's own."""

_REMOVAL_SECONDS: Final = 5.0
_PAUSE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Share:
    """What a group may use.

    Attributes:
        memory_bytes: all together; there is no swap beside it.
        processes: threads among them.
        processors: processor time, in seconds a second.
    """

    memory_bytes: int
    processes: int
    processors: float


class ControlGroup:
    """The group of a container, locked as long as this process uses it.

    Args:
        place: its folder, which is there.

    Attributes:
        place: its folder, for the program that joins it.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._lock = open_folder(place)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def limit(self, share: Share) -> None:
        """Sets its limits."""
        self._write("memory.max", share.memory_bytes)
        self._write("memory.oom.group", 1)
        self._write("pids.max", share.processes + _OWN_PROCESSES)
        self._write("cpu.max", f"{int(share.processors * _PERIOD)} {_PERIOD}")
        with suppress(FileNotFoundError):  # a kernel without accounting of swap
            self._write("memory.swap.max", 0)

    def kills(self) -> int:
        """How many times the kernel has ended all processes of it because they used too much memory."""
        with suppress(OSError):
            events = dict(each.split() for each in (self.place / "memory.events").read_text().splitlines())
            return int(events.get("oom_group_kill", events["oom_kill"]))
        return 0

    def remove(self) -> None:
        """Ends what is in it, and removes it; blocks for some seconds at most. One that cannot be removed is left."""
        try:
            _remove(self.place)
        finally:
            os.close(self._lock)

    def _write(self, name: str, value: str | int) -> None:
        (self.place / name).write_text(str(value))


class ControlGroups:
    """Makes the groups of containers.

    Args:
        parent: the group in which they are made. It holds no processes, and its controllers are on for those in it.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    def make(self, name: str, share: Share) -> ControlGroup:
        """A new group.

        Raises:
            OSError: it cannot be made.
        """
        place = self._parent / name
        place.mkdir()
        group = ControlGroup(place)
        try:
            group.limit(share)
        except BaseException:
            group.remove()
            raise
        return group

    def sweep(self, pattern: str) -> None:
        """Removes the groups that no living process has locked, among those whose names match."""
        for place in self._parent.glob(pattern):
            with suppress(OSError):
                lock = open_folder(place)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(place)
                finally:
                    os.close(lock)


def usable(configured: Path | None) -> ControlGroups | None:
    """Where groups can be made: in the configured group, or in this process's own, or in the one around that.

    Found by itself is only a group that was handed over to this server: where it is root, one that systemd has marked,
    otherwise one that it may write to. None if there is none.

    Raises:
        OSError: the configured one cannot be used; says why.
    """
    if configured:
        _enable(configured)
        return ControlGroups(configured)
    own = _own()
    for place in (own, own.parent) if own else ():
        with suppress(OSError):
            if _is_delegated(place):
                _enable(place)
                return ControlGroups(place)
    return None


def _own() -> Path | None:
    """The folder of this process's group."""
    with suppress(OSError, ValueError, StopIteration):
        path = next(each[3:] for each in Path("/proc/self/cgroup").read_text().splitlines() if each.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, after = line.split(" - ", 1)
            if after.split()[0] == "cgroup2":
                root, place = before.split()[3:5]
                return Path(place) / Path(path).relative_to(root)
    return None


def _is_delegated(place: Path) -> bool:
    if os.geteuid() != 0:
        return all(os.access(place / name, os.W_OK) for name in ("", "cgroup.procs", "cgroup.subtree_control"))
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(place, name) == b"1":
                return True
    return False


def _enable(place: Path) -> None:
    """Turns the controllers on for the groups in this one.

    Raises:
        OSError: it does not have them, or has processes of its own, or is none.
    """
    control = place / "cgroup.subtree_control"
    if missing := _CONTROLLERS - set(control.read_text().split()):
        try:
            control.write_text(" ".join(f"+{each}" for each in sorted(missing)))
        except OSError as error:
            reasons = {errno.EBUSY: "it has processes of its own", errno.ENOENT: "it has not all of these controllers"}
            reason = reasons.get(error.errno or 0, error.strerror)
            raise OSError(
                error.errno, f"the controllers {', '.join(sorted(missing))} cannot be turned on: {reason}", str(place)
            ) from error


def _remove(place: Path) -> None:
    deadline = time.monotonic() + _REMOVAL_SECONDS
    # It is not there before Linux 5.14; what is in the group has been killed anyhow.
    with suppress(FileNotFoundError), os.fdopen(os.open(place / "cgroup.kill", os.O_WRONLY), "w") as kill:
        kill.write("1")
    while True:
        try:
            place.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
            time.sleep(_PAUSE)
        else:
            return
