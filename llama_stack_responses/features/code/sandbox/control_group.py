"""Control groups of containers (cgroups v2, Documentation/admin-guide/cgroup-v2.rst), where this server may make them.

The kernel then limits the memory, processes and processor time of each container as a whole, at the time of use. The
memory includes what the kernel holds for the container: socket and pipe buffers, page tables, files in memory.
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
_PERIOD_MICROSECONDS: Final = 100_000
"""Microseconds over which the processor time of a group is counted."""

_OWN_PROCESSES: Final = 8
"""Processes and threads of a group that do not belong to the code: bubblewrap's."""

_DELEGATED: Final = ("user.delegate", "trusted.delegate")
"""Attributes by which systemd marks a group as delegated to the service."""

_REMOVAL_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of a group.

    Attributes:
        memory_bytes: memory of the whole group; it may not use swap.
        processes: processes and threads.
        processors: processor time, in seconds per second.
    """

    memory_bytes: int
    processes: int
    processors: float


class ControlGroup:
    """The control group of a container, locked while this process uses it.

    Args:
        folder: its existing folder.

    Attributes:
        folder: its folder, for the program that joins it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = open_folder(folder)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def limit(self, limits: GroupLimits) -> None:
        """Set the limits."""
        self._write("memory.max", limits.memory_bytes)
        self._write("memory.oom.group", 1)
        self._write("pids.max", limits.processes + _OWN_PROCESSES)
        self._write("cpu.max", f"{int(limits.processors * _PERIOD_MICROSECONDS)} {_PERIOD_MICROSECONDS}")
        with suppress(FileNotFoundError):  # the kernel has no swap accounting
            self._write("memory.swap.max", 0)

    def oom_kills(self) -> int:
        """Return how often the kernel killed all its processes for exceeding the memory limit."""
        with suppress(OSError):
            events = dict(each.split() for each in (self.folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_group_kill", events["oom_kill"]))
        return 0

    def remove(self) -> None:
        """Kill its processes and remove it. Blocks for some seconds at most; a group that cannot be removed is left."""
        try:
            _remove(self.folder)
        finally:
            os.close(self._lock)

    def _write(self, name: str, value: str | int) -> None:
        (self.folder / name).write_text(str(value))


class ControlGroups:
    """A factory for the control groups of containers.

    Args:
        parent: the group in which they are created. It holds no processes, and its controllers are enabled for its
            children.
    """

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    def make(self, name: str, limits: GroupLimits) -> ControlGroup:
        """Create a group.

        Raises:
            OSError: it cannot be created.
        """
        folder = self._parent / name
        folder.mkdir()
        group = ControlGroup(folder)
        try:
            group.limit(limits)
        except BaseException:
            group.remove()
            raise
        return group

    def sweep(self, pattern: str) -> None:
        """Remove the matching groups that no living process has locked."""
        for folder in self._parent.glob(pattern):
            with suppress(OSError):
                lock = open_folder(folder)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)
                finally:
                    os.close(lock)


def open_control_groups(configured: Path | None) -> ControlGroups | None:
    """Find a parent for control groups: the configured one, this process's own group, or the parent of that.

    Only a group delegated to this server is found automatically: as root, a group that systemd has marked; otherwise,
    one that this user may write to. None if there is none.

    Raises:
        OSError: the configured group cannot be used; the message has the reason.
    """
    if configured:
        _enable(configured)
        return ControlGroups(configured)
    own = _own()
    for folder in (own, own.parent) if own else ():
        with suppress(OSError):
            if _is_delegated(folder):
                _enable(folder)
                return ControlGroups(folder)
    return None


def _own() -> Path | None:
    """Return the folder of this process's control group."""
    with suppress(OSError, ValueError, StopIteration):
        path = next(each[3:] for each in Path("/proc/self/cgroup").read_text().splitlines() if each.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, after = line.split(" - ", 1)
            if after.split()[0] == "cgroup2":
                root, mount = before.split()[3:5]
                return Path(mount) / Path(path).relative_to(root)
    return None


def _is_delegated(folder: Path) -> bool:
    if os.geteuid() != 0:
        return all(os.access(folder / name, os.W_OK) for name in ("", "cgroup.procs", "cgroup.subtree_control"))
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _enable(folder: Path) -> None:
    """Enable the controllers for the children of this group.

    Raises:
        OSError: it lacks a controller, holds processes, or is not a control group.
    """
    control = folder / "cgroup.subtree_control"
    if missing := _CONTROLLERS - set(control.read_text().split()):
        try:
            control.write_text(" ".join(f"+{each}" for each in sorted(missing)))
        except OSError as error:
            reasons = {
                errno.EBUSY: "processes run in it directly",
                errno.ENOENT: "some of these controllers are missing",
            }
            reason = reasons.get(error.errno or 0, error.strerror)
            raise OSError(
                error.errno, f"the controllers {', '.join(sorted(missing))} cannot be turned on: {reason}", str(folder)
            ) from error


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVAL_SECONDS
    # Linux before 5.14 lacks this file. The processes in the group have been killed already.
    with suppress(FileNotFoundError), os.fdopen(os.open(folder / "cgroup.kill", os.O_WRONLY), "w") as kill:
        kill.write("1")
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
            time.sleep(_PAUSE_SECONDS)
        else:
            return
