"""The processes of one container: how much memory they use, and how they are stopped and ended.

They are seen through the container's own `/proc` (proc(5)), which holds them and no others. Signals go through its
folders (pidfd_send_signal(2) takes them), so that none reaches another process that got the same id.
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

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_INIT: Final = 1
"""The first process in a container, bubblewrap's own."""

_BUFFER: Final = Path("/proc/sys/net/core/wmem_default")
"""Says how many bytes may wait in a socket of the family AF_UNIX: the code cannot change the size of its buffer."""

_STATE: Final = 0
_THREADS: Final = 17
_RSS: Final = 21
"""Places in `/proc/PID/stat` behind the command, which may hold anything."""

_ENDING_SECONDS: Final = 10.0
"""How long killed processes may take to be gone."""

_PAUSES: Final = (0.001, 0.1)
"""Seconds between two looks whether they are gone: at first, and at most."""


@dataclass(frozen=True, slots=True)
class _Process:
    """A process that was seen.

    Attributes:
        pid: its id inside the container.
        ended: whether it waits only for its parent.
        stopped: whether none of its threads runs.
        resident_bytes: pages that it shares with others count whole.
    """

    pid: int
    ended: bool
    stopped: bool
    resident_bytes: int


class Processes:
    """All processes of a container.

    Args:
        proc: a descriptor of the container's /proc. It is closed with this object, which threads may use until then.
        python: the id, inside the container, of the one that lives on between calls, as the first one does.
    """

    def __init__(self, proc: int, python: int) -> None:
        self._proc = proc
        self._socket_bytes = int(_BUFFER.read_text())
        weakref.finalize(self, os.close, proc)
        self._kept = frozenset((_INIT, python))

    def memory_bytes(self, most: int) -> int:
        """The memory that all use, with what their sockets may hold.

        Above `most`, pages that several share count once, which takes longer to find out.
        """
        seen, sockets = self._seen(), self._sockets() * self._socket_bytes
        resident = sockets + sum(each.resident_bytes for each in seen)
        return resident if resident <= most else sockets + sum(map(self._proportional_bytes, seen))

    def settle(self) -> bool:
        """Stops those that are kept and kills all others, for up to ten seconds; False if some are still running."""
        deadline, (pause, longest) = time.monotonic() + _ENDING_SECONDS, _PAUSES
        while True:
            # The first process collects the dead: while it stands still, no process can hide by forking and leaving.
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
        """Whether those that are kept are stopped, and no others live: so it is from `settle` until `resume`."""
        return self._all_still(self._seen())

    def _all_still(self, seen: Iterable[_Process]) -> bool:
        return all(each.ended or (each.stopped and each.pid in self._kept) for each in seen)

    def resume(self) -> None:
        """Lets those that are kept go on."""
        self._signal(self._kept, signal.SIGCONT)

    def _sockets(self) -> int:
        """How many sockets there are in the container's network, also on their way to another process."""
        try:
            return int(self._read(f"{_INIT}/net/sockstat").split()[2])
        except (OSError, IndexError):
            return 0  # it has ended

    def _signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):
                place = os.open(str(pid), os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
                try:
                    signal.pidfd_send_signal(place, number)
                finally:
                    os.close(place)

    def _seen(self) -> list[_Process]:
        return [found for name in _names(self._proc) if name.isdecimal() and (found := self._look(name))]

    def _look(self, pid: str) -> _Process | None:
        """A process; None if it is gone."""
        try:
            fields = self._stat(f"{pid}/stat")
            if fields[_STATE] not in "ZX":
                resident = int(fields[_RSS]) * _PAGE
                return _Process(int(pid), ended=False, stopped=fields[_STATE] in "Tt", resident_bytes=resident)
            if int(fields[_THREADS]) <= 1:
                return _Process(int(pid), ended=True, stopped=True, resident_bytes=0)
            return _Process(int(pid), ended=False, stopped=False, resident_bytes=self._of_threads(pid))
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _of_threads(self, pid: str) -> int:
        """The memory of a process whose first thread has ended: only the others tell it."""
        place = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        try:
            names = _names(place)
        finally:
            os.close(place)
        resident = 0
        for name in names:
            with suppress(FileNotFoundError, ProcessLookupError):
                resident = max(resident, int(self._stat(f"{pid}/task/{name}/stat")[_RSS]))
        return resident * _PAGE

    def _proportional_bytes(self, process: _Process) -> int:
        """Its memory with a share of what it shares; all of that where the code forbids the look."""
        with suppress(OSError):
            for line in self._read(f"{process.pid}/smaps_rollup").splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        return process.resident_bytes

    def _stat(self, path: str) -> list[str]:
        return self._read(path).rpartition(")")[2].split()

    def _read(self, path: str) -> str:
        with os.fdopen(os.open(path, os.O_RDONLY, dir_fd=self._proc), errors="replace") as file:
            return file.read()


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
