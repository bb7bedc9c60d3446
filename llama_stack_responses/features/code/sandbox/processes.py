"""The processes of one container: their memory use, and how they are stopped and killed.

They are read from the container's own `/proc` (proc(5)), which shows no other processes. Signals are sent through its
folders (see pidfd_send_signal(2)), so that none reaches another process that reused the id.
"""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .pipes import PIPE_BYTES, Pipe, max_pipes, pipes

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_INIT: Final = 1
"""The first process in a container, which is bubblewrap's."""

_BUFFER: Final = Path("/proc/sys/net/core/wmem_default")
"""Contains the buffer size of an AF_UNIX socket in bytes. The code cannot change it."""

_STATE: Final = 0
_THREADS: Final = 17
_RSS: Final = 21
"""Indexes of fields in `/proc/PID/stat` after the command name, which may contain any characters."""

_QUEUES: Final = 4
"""Index of the field in `/proc/net/tcp` with the bytes that wait to be sent and received."""

_OVERHEAD: Final = 2
"""Memory of the kernel for a byte in them, at most for segments of a usual size."""

_ENDING_SECONDS: Final = 10.0
"""Seconds that killed processes may take to disappear."""

_MEASUREMENTS: Final = 3
"""How often memory above the bound is measured."""

_BLOCK_BYTES: Final = 2**16

_PAUSES_SECONDS: Final = (0.001, 0.1)
"""Seconds between two checks for their end: initially, and at most."""


@dataclass(frozen=True, slots=True)
class _Process:
    """A snapshot of a process.

    Attributes:
        pid: process id inside the container.
        ended: whether it is a zombie.
        stopped: whether all its threads are stopped.
        resident_bytes: resident memory; shared pages count in full.
        headless: whether its first thread has ended while others run.
    """

    pid: int
    ended: bool
    stopped: bool
    resident_bytes: int
    headless: bool = False


class Processes:
    """All processes of a container.

    Args:
        proc: a descriptor of the container's /proc. It is closed with this object; threads may use it until then.
        python: id, inside the container, of the process that lives on between calls, like the first one.
    """

    def __init__(self, proc: int, python: int) -> None:
        self._proc = proc
        self._socket_bytes = int(_BUFFER.read_text())
        weakref.finalize(self, os.close, proc)
        self._kept = frozenset((_INIT, python))

    def memory_bytes(self, limit: int) -> int:
        """Return the memory of all processes, including the capacity of their sockets and pipes.

        Above `limit`, shared pages and pipes are counted once, which takes longer to compute. The kernel has no view of
        all processes at one moment: while some start or end, a page may count for one that shares it no longer. A
        result above `limit` is therefore measured again.
        """
        used = self._upper_bound()
        for _ in range(_MEASUREMENTS):
            if used <= limit:
                break
            used = min(used, self._shared_once())
        return used

    def _upper_bound(self) -> int:
        seen = self._seen()
        resident = sum(each.resident_bytes for each in seen)
        return resident + self._of_sockets() + self._max_pipes(seen) * PIPE_BYTES

    def _shared_once(self) -> int:
        seen = self._seen()
        proportional = sum(map(self._proportional_bytes, seen))
        return proportional + self._of_sockets() + len(self._pipes(seen)) * PIPE_BYTES

    def has_more_locks(self, limit: int) -> bool:
        """Return whether the processes hold more than `limit` locks on files.

        The kernel counts their memory for no process and no control group, and does not enforce `RLIMIT_LOCKS`.
        """
        try:
            locks = os.open("locks", os.O_RDONLY, dir_fd=self._proc)
        except OSError:
            return False  # the container has ended
        try:
            count = 0
            while count <= limit and (block := os.read(locks, _BLOCK_BYTES)):
                count += block.count(b"\n")
            return count > limit
        finally:
            os.close(locks)

    def settle(self) -> bool:
        """Stop the kept processes and kill all others, for up to ten seconds; return False if some still run."""
        deadline, (pause, longest) = time.monotonic() + _ENDING_SECONDS, _PAUSES_SECONDS
        while True:
            # The first process reaps orphans. While it is stopped, no process can escape by forking and exiting.
            self._signal(self._kept, signal.SIGSTOP)
            seen = self._seen()
            self._signal((each.pid for each in seen if each.pid not in self._kept and not each.ended), signal.SIGKILL)
            if self._all_still(seen):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, longest)

    def are_still(self) -> bool:
        """Whether the kept processes are stopped and no others live, as from `settle` until `resume`."""
        return self._all_still(self._seen())

    def _all_still(self, seen: Iterable[_Process]) -> bool:
        return all(each.ended or (each.stopped and each.pid in self._kept) for each in seen)

    def resume(self) -> None:
        """Resume the kept processes."""
        self._signal(self._kept, signal.SIGCONT)

    def _of_sockets(self) -> int:
        """Return the memory of the sockets in the container's network: a buffer for each, and what TCP holds.

        The buffers of TCP grow. The kernel counts what is in them for no process.
        """
        return self._sockets() * self._socket_bytes + _OVERHEAD * self._in_tcp_queues()

    def _in_tcp_queues(self) -> int:
        """Return the bytes that connections hold, also those whose sockets are closed."""
        try:
            lines = self._read(f"{_INIT}/net/tcp").splitlines()[1:]
        except OSError:
            return 0  # the first process has ended
        queues = (line.split(maxsplit=5)[_QUEUES].split(":") for line in lines)
        return sum(int(sent, 16) + int(received, 16) for sent, received in queues)

    def _sockets(self) -> int:
        """Count the sockets in the container's network, including those in transit to another process."""
        try:
            return int(self._read(f"{_INIT}/net/sockstat").split()[2])
        except (OSError, IndexError):
            return 0  # the first process has ended

    def _max_pipes(self, seen: Iterable[_Process]) -> int:
        """Return an upper bound for the open pipes: all open files, with shared ones counted once per process."""
        count = 0
        for each in seen:
            with suppress(FileNotFoundError, ProcessLookupError):
                count += max_pipes(self._proc, self._holder(each))
        return count

    def _pipes(self, seen: Iterable[_Process]) -> set[Pipe]:
        """Return the pipes that are open in the container."""
        ends = set[Pipe]()
        for each in seen:
            with suppress(FileNotFoundError, ProcessLookupError):
                ends |= pipes(self._proc, self._holder(each))
        return ends

    def _holder(self, process: _Process) -> str:
        """Return the /proc folder that shows a process's open files: a living thread's if the first thread has ended.

        All threads of a process share their open files: the system call filter refuses any other thread.
        """
        if not process.headless:
            return str(process.pid)
        return next((thread for thread in self._threads(str(process.pid)) if self._lives(thread)), str(process.pid))

    def _signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):
                directory = os.open(str(pid), os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
                try:
                    signal.pidfd_send_signal(directory, number)
                finally:
                    os.close(directory)

    def _seen(self) -> list[_Process]:
        return [process for name in _names(self._proc) if name.isdecimal() and (process := self._look(name))]

    def _look(self, pid: str) -> _Process | None:
        """Read a process; None if it is gone."""
        try:
            fields = self._stat(f"{pid}/stat")
            if fields[_STATE] not in "ZX":
                resident = int(fields[_RSS]) * _PAGE
                return _Process(int(pid), ended=False, stopped=fields[_STATE] in "Tt", resident_bytes=resident)
            if int(fields[_THREADS]) <= 1:
                return _Process(int(pid), ended=True, stopped=True, resident_bytes=0)
            return _Process(int(pid), ended=False, stopped=False, resident_bytes=self._of_threads(pid), headless=True)
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _of_threads(self, pid: str) -> int:
        """Return the memory of a process whose first thread has ended: only its other threads report it."""
        resident = 0
        for thread in self._threads(pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                resident = max(resident, int(self._stat(f"{thread}/stat")[_RSS]))
        return resident * _PAGE

    def _threads(self, pid: str) -> list[str]:
        """Return the folders of a process's threads."""
        directory = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        try:
            return [f"{pid}/task/{name}" for name in _names(directory)]
        finally:
            os.close(directory)

    def _lives(self, thread: str) -> bool:
        try:
            return self._stat(f"{thread}/stat")[_STATE] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def _proportional_bytes(self, process: _Process) -> int:
        """Return its memory with a proportional share of shared pages (PSS), or all of it where access is denied."""
        try:
            lines = self._read(f"{process.pid}/smaps_rollup").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            # It has ended, or only its first thread has.
            return process.resident_bytes if process.headless else 0
        except OSError:
            return process.resident_bytes
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), process.resident_bytes)

    def _stat(self, path: str) -> list[str]:
        return self._read(path).rpartition(")")[2].split()

    def _read(self, path: str) -> str:
        with os.fdopen(os.open(path, os.O_RDONLY, dir_fd=self._proc), errors="replace") as file:
            return file.read()


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
