"""The schedules of many seeds, in several processes side by side."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context, parent_process

from tests.simulation.mutations import mutated
from tests.simulation.simulation import Outcome

_kept = ExitStack()
"""What lasts until a process ends."""


def outcomes_of(
    seeds: Iterable[int], run: Callable[[int], Outcome], *, bug: str | None, processes: int
) -> Iterator[Outcome]:
    """Yield what comes of the schedule of each seed, in their order.

    Args:
        run: runs the schedule of a seed; can be pickled.
        bug: put in first, of `MUTATIONS`.
        processes: how many run schedules.

    Raises:
        BrokenProcessPool: a process was killed.
    """
    # A process without threads can be copied, and the copies need not import all that takes seconds.
    start = "fork" if threading.active_count() == 1 and sys.platform == "linux" else "spawn"
    pool = ProcessPoolExecutor(processes, get_context(start), _begin, (bug,))
    try:
        with _interrupts_held_back():  # worker processes inherit the mask, so that Ctrl-C reaches this one only
            outcomes = pool.map(run, seeds)
        yield from outcomes
    finally:
        # Up to Python 3.12, a second Ctrl-C while it waits would leave the processes behind.
        with _interrupts_held_back():
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block. What is started within it never gets one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(bug: str | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if bug:
        _kept.enter_context(mutated(bug))


def _end_with_parent() -> None:
    """End this process if the first one is killed: it would wait for schedules for ever."""
    parent = parent_process()
    assert parent
    parent.join()
    os._exit(1)
