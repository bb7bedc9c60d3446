"""A clock that slows down with the machine, to distinguish a blocked server from a busy or paused machine.

with MachineClock() as clock:
    began = time.monotonic()
    ...
    assert clock.between(began, time.monotonic()) < 1.0
"""

import time
from bisect import bisect
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

_ASLEEP: Final = 0.02
_WORK: Final = 0.002
_TICK: Final = _ASLEEP + _WORK


class MachineClock:
    """Counts how often a thread of this process can sleep 20 ms and then compute for 2 ms of CPU time.

    On an idle machine it runs like the wall clock, never faster. While this process is stopped, it stops. While other
    processes use the CPUs, it slows down as a server does.
    """

    def __init__(self) -> None:
        self._ticks: list[float] = []
        self._ended = Event()
        self._thread = Thread(target=self._run, name="machine-clock", daemon=True)

    def __enter__(self) -> Self:
        """Start the clock."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the clock."""
        self._ended.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> float:
        """Return its seconds between two times of the monotonic clock."""
        return (bisect(self._ticks, end) - bisect(self._ticks, begin)) * _TICK

    def _run(self) -> None:
        while not self._ended.is_set():
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
