"""A clock that slows down with the machine, to distinguish a blocked server from a busy or paused machine.

with MachineClock() as clock:
    with clock.running():
        began = time.monotonic()
        ...
        ended = time.monotonic()
    assert clock.between(began, ended) < 1.0
"""

import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

_ASLEEP: Final = 0.02
_WORK: Final = 0.002
_TICK: Final = _ASLEEP + _WORK


class MachineClock:
    """Counts how often a thread of this process can sleep 20 ms and then compute for 2 ms of CPU time.

    On an idle machine it runs like the wall clock, never faster. While this process is stopped, it stops. While other
    processes use the CPUs, it slows down as a server does. It takes a tenth of a CPU, so it runs only while it is read.
    """

    def __init__(self) -> None:
        self._ticks: list[float] = []
        self._wanted = Event()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="machine-clock", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread."""
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the clock run during the block."""
        self._wanted.set()
        try:
            yield
        finally:
            self._wanted.clear()

    def between(self, begin: float, end: float) -> float:
        """Return its seconds between two times of the monotonic clock at which it ran."""
        return (bisect(self._ticks, end) - bisect(self._ticks, begin)) * _TICK

    def _run(self) -> None:
        while self._wanted.wait() and not self._ended.is_set():
            time.sleep(_ASLEEP)
            begin = time.thread_time()
            while time.thread_time() - begin < _WORK:
                pass
            self._ticks.append(time.monotonic())


def queued_seconds(*places: str) -> float:
    """Return the total seconds that threads were ready to run but had no CPU; 0 if the system does not report it.

    Args:
        places: paths below `/proc`, such as `1234` for the first thread of a process, or `thread-self`.
    """
    total = 0
    for place in places:
        try:
            total += int(Path("/proc", place, "schedstat").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total / 1e9
