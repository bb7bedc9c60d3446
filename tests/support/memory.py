"""The memory of processes, the peak of a server and its descendants, and the objects that a test's process holds."""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

from tests.support.descendants import descendants

TIMES_DONE = 5
"""How often `cycles_left` does something."""


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, in bytes.

    Raises:
        OSError, ValueError: it has ended.
    """
    return _kibibytes(pid, "VmRSS") * 1024


class PeakOwnMemory:
    """The peak growth of a process's own memory, without files that it maps, while a `with` block runs.

    Args:
        pid: the id of the process.

    Attributes:
        grown_bytes: the growth, sampled 20 times a second.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self.grown_bytes = pid, 0
        self._before = self._now()
        self._over = Event()
        self._sampling = Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()
        self._sampling.join()

    def _now(self) -> int:
        return _kibibytes(self._pid, "RssAnon") * 1024

    def _sample(self) -> None:
        while not self._over.wait(0.05):
            self.grown_bytes = max(self.grown_bytes, self._now() - self._before)


class PeakMemory:
    """A measurement that starts with the object.

    Args:
        pid: process id of the server.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, float] = {}
        for each in descendants(pid):
            # "5" resets the peak to the current value (Linux, proc_pid_clear_refs(5)).
            with suppress(OSError):
                Path(f"/proc/{each}/clear_refs").write_text("5")
            self._before[each] = _megabytes(each, "VmRSS")

    def of_server(self) -> float:
        """Return the server's peak growth, in megabytes."""
        return _megabytes(self._pid, "VmHWM") - self._before[self._pid]

    def of_all(self) -> float:
        """Return the sum of the peak growth of the server and its current descendants, in megabytes."""
        grown = (_megabytes(each, "VmHWM") - self._before.get(each, 0.0) for each in descendants(self._pid))
        return sum(max(each, 0.0) for each in grown)


def count_of(kind: type) -> int:
    """Return how many objects of a class exist, also of one without weak references."""
    return sum(type(each) is kind for each in gc.get_objects())


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Free nothing that is in a reference cycle: the cyclic garbage collector does not run."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def cycles_left(do: Callable[[], Awaitable[object]]) -> Counter[str]:
    """Return the kinds of objects in reference cycles that are left after something was done several times.

    The first time does not count: what is imported or made once may leave some.
    """
    await do()
    await asyncio.sleep(0)
    gc.collect()
    with no_garbage_collection():
        for _ in range(TIMES_DONE - 1):
            await do()
        await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.collect()


def _megabytes(pid: int, name: str) -> float:
    with suppress(OSError, ValueError):
        return _kibibytes(pid, name) / 1024
    return 0.0  # it has ended


def _kibibytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [each for each in lines if each.startswith(f"{name}:")]
    return int(line.split()[1])
