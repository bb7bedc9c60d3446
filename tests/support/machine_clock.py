"""A clock that runs slowly where the machine does, to tell a server that is held from a machine that is busy or paused.

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
    """Counts how often a thread of this process could sleep 20 ms and compute for 2 ms of processor time.

    On an idle machine it runs as fast as the wall clock, never faster. While this process is stopped, it stands still.
    While other processes take the processors, it runs as slowly as a server gets on.
    """

    def __init__(self) -> None:
        self._ticks: list[float] = []
        self._ended = Event()
        self._thread = Thread(target=self._run, name="machine-clock", daemon=True)

    def __enter__(self) -> Self:
        """Start it."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._ended.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> float:
        """Its seconds between two times of the monotonic clock."""
        return (bisect(self._ticks, end) - bisect(self._ticks, begin)) * _TICK

    def _run(self) -> None:
        while not self._ended.is_set():
            time.sleep(_ASLEEP)
            begin = time.thread_time()
            while time.thread_time() - begin < _WORK:
                pass
            self._ticks.append(time.monotonic())


def queued_seconds(*places: str) -> float:
    """For how long threads have been ready to run and had no processor, added up; 0 where the system does not say.

    Args:
        places: below `/proc`, such as `1234` for the first thread of a process, or `thread-self`.
    """
    total = 0
    for place in places:
        try:
            total += int(Path("/proc", place, "schedstat").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total / 1e9
