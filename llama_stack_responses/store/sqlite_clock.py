"""The clock of an SQLite file: all processes that have the file open share it, and it does not jump.

SQLite has no server, and so no clock. This machine's clock may be set while the file is open, and then everything that
expires would expire at once, also the leases of live servers. So the time advances by a monotonic clock, which all
processes of a machine share, from the time of the machine's clock when the first process opened the file. A file beside
it, `<name>-clock`, has the difference between the two clocks:

    <boot of the machine> <seconds>

Each process holds a shared lock on it. A process that gets an exclusive lock is the only one, and writes the difference
anew. So a clock that was set takes effect once all processes have closed the file.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..logs import get_logger
from .clock import MAX_DIFFERENCE_SECONDS, elapsed

logger = get_logger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE: Final = Path("/proc/self/ns/time")
_MAX_BYTES: Final = 256
_KEPT_SECONDS: Final = 1.0
"""A difference that has changed by more is written, for the processes that open the file later."""

_TRIES: Final = 100
_PAUSE_SECONDS: Final = 0.001
"""How often, and after what time, to try to lock while another process writes the difference."""


def this_boot() -> str:
    """Return a name that processes have in common if they have the same monotonic clock; empty if it is unknown."""
    try:
        return f"{_BOOT_ID.read_text().strip()}:{_TIME_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""


class SqliteClock:
    """Returns the time of the clock of an SQLite file, in seconds since the epoch.

    It follows this machine's clock if that is set by less than a minute, as all processes do at the same moment.

    Args:
        path: the SQLite file.
        wall: this machine's clock, in seconds since the epoch.
        elapsed: returns seconds of a monotonic clock that all processes of this machine share.
        boot: names that clock.
    """

    def __init__(
        self,
        path: Path,
        wall: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = elapsed,
        boot: Callable[[], str] = this_boot,
    ) -> None:
        self._path = path.with_name(f"{path.name}-clock")
        self._wall = wall
        self._elapsed = elapsed
        self._find_boot = boot
        self._boot = ""
        self._opening = threading.RLock()  # Two event loops may use the store at once.
        self._file: int | None = None
        self._difference: float | None = None
        self._written = 0.0

    def __call__(self) -> float:
        """Return the time; the first call opens the file."""
        difference = self._difference
        if difference is None:
            difference = self._open()
        passed, wall = self._elapsed(), self._wall()
        if abs(wall - passed - difference) > MAX_DIFFERENCE_SECONDS:
            return passed + difference
        self._difference = wall - passed
        if abs(self._difference - self._written) > _KEPT_SECONDS:
            self._write()
        return wall

    def close(self) -> None:
        """Release the file; the next call opens it again."""
        with self._opening:
            file, self._file, self._difference = self._file, None, None
        if file is not None:
            os.close(file)

    def _open(self) -> float:
        """Return the difference, of which one thread reads the file."""
        with self._opening:
            difference = self._difference
            if difference is None:
                difference = self._difference = self._shared()
            return difference

    def _shared(self) -> float:
        """Return the difference of the processes that have the file open."""
        own = self._wall() - self._elapsed()
        self._boot = self._find_boot()
        if not self._boot:
            return own
        try:
            return self._opened(own)
        except OSError as error:
            # Either the store has the same problem and reports it better, or the disk is full.
            logger.debug("could not share the clock of the response store: %s", error)
            self.close()
            return own

    def _opened(self, own: float) -> float:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        for _ in range(_TRIES):
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._difference = own
                self._write()
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return self._read(own)
            time.sleep(_PAUSE_SECONDS)
        raise TimeoutError("another process holds its lock")

    def _read(self, own: float) -> float:
        """Return the difference in the file; this process's own if it has none of this boot."""
        assert self._file is not None
        boot, _, seconds = os.pread(self._file, _MAX_BYTES, 0).decode(errors="replace").partition(" ")
        with suppress(ValueError):
            self._written = float(seconds)
            if boot == self._boot:
                return self._written
        return own

    def _write(self) -> None:
        """Write the difference, if the disk has room."""
        if self._file is None or self._difference is None:
            return
        self._written = self._difference
        line = f"{self._boot} {self._difference:.6f}\n".encode()
        with suppress(OSError):
            os.pwrite(self._file, line, 0)
            os.ftruncate(self._file, len(line))
