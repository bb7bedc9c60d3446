"""Returns freed memory to the system after a load has ended.

The C library keeps what a program has freed, unless it lies at the end of a heap. And what is in a reference cycle, as
the traceback of an error often is, stays until the garbage collector visits old objects, which happens rarely while few
new ones are made. After a load, a process would keep most of its memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..concurrency.offloading import in_thread
from ..logs import get_logger
from .garbage import OldObjects
from .periodic import Periodic

logger = get_logger(__name__)

_MIN_BYTES: Final = 16 * 2**20
_MIN_PART: Final = 10
"""Growth from which memory is returned: so many bytes, and one part of so many of the least that the process had."""

_UNCHANGED_BYTES: Final = 2**20
"""A growth up to this is none."""

_PAUSES: Final = 2
"""Intervals that are left out after little was returned: what is left may be in use for long."""

_ARENA_MAX: Final = -8
"""The parameter `M_ARENA_MAX` of glibc's `mallopt`."""

_STATM: Final = Path("/proc/self/statm")


def keep_one_heap(environment: Mapping[str, str] = os.environ) -> None:
    """Let all threads of this process allocate from one heap, unless the operator has set `MALLOC_ARENA_MAX`.

    By default, glibc gives threads heaps of their own, and `malloc_trim` does not return the free end of those: after
    a load, that can be all of them. Threads that have a heap keep it.
    """
    if "MALLOC_ARENA_MAX" not in environment:
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def return_memory() -> None:
    """Return freed memory to the system, if the C library can: 1 ms after the start, 41 ms for 350 MB."""
    if trim := _trim_of_libc():
        trim()


class MemoryReturn(Periodic):
    """Returns freed memory at intervals, while the process has grown and grows no further.

    Under a growing load, the process would soon ask the system for the same memory again. Meanwhile other threads wait
    when they allocate or free memory.

    Args:
        seconds: the interval.
        objects: what may be in reference cycles.
        resident: returns the resident bytes of this process; None if the system does not say.
        trim: returns freed memory to the system; None if the C library cannot.
    """

    def __init__(
        self,
        seconds: float,
        objects: OldObjects,
        resident: Callable[[], int | None] | None = None,
        trim: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(self.check, "could not return memory to the system", logger, seconds)
        self._objects = objects
        self._resident, self._trim = resident or _resident_bytes, trim or _trim_of_libc()
        self._last: int | None = None
        self._least: int | None = None
        self._pauses = 0

    async def check(self) -> None:
        """Return memory if it is time."""
        if self._trim is None or (now := self._resident()) is None:
            return
        last, self._last = self._last, now
        self._least = now if self._least is None else min(self._least, now)
        if last is None or now > last + _UNCHANGED_BYTES:
            self._pauses = 0
            return
        if now - self._least < max(_MIN_BYTES, self._least // _MIN_PART):
            return
        if self._pauses:
            self._pauses -= 1
            return
        # In this thread: objects of the event loop must not be freed in another.
        self._objects.collect()
        await in_thread(self._trim)
        self._last = self._resident()
        if self._last is not None and now - self._last < _MIN_BYTES:
            self._pauses = _PAUSES


def _resident_bytes() -> int | None:
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _trim_of_libc() -> Callable[[], object] | None:
    """Return a function that trims the heaps of glibc; None with another C library."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: trim(0)
