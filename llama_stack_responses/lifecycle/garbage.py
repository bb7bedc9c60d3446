"""When Python collects reference cycles: often among new objects, and among old ones only while that is short.

By default, Python visits all old objects, in the event loop, whenever their number has grown by a quarter. With 3,000
open streams that took 0.2 s. Nearly all that a response has made is freed without it, and no response leaves a cycle.
What is left are few cycles, such as those of a client that left during an answer.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

from ..logs import get_logger
from .periodic import Periodic

logger = get_logger(__name__)

_NEVER: Final = 2**31 - 1

THRESHOLDS: Final = (4_000, _NEVER, _NEVER)
"""The thresholds of Python's garbage collector: of new objects, of passes over them, and of passes over both.

An object that is still in use at the first pass is an old one from then on, and not visited again. Most of those are
in use for as long as a stream is open. The default of 700 visits objects that are hardly older than the pass.
"""

STREAMS: Final = 32
"""Responses that have begun since the last pass, and still run, after which new objects are visited in any case.

Streams from before that pass count too when they are about to end.

As many leave about 10,000 objects, which takes 1 to 7 ms: the more streams are open, the less of them is in a cache.
"""

RESPONSES: Final = 128
"""Beginnings and ends of responses after which new objects are visited in any case."""

_PASSES: Final = 50
"""Passes over new objects until old ones are visited."""

_MAX_BLOCKS: Final = 30_000
"""Growth of the blocks of memory in use up to which old objects are visited: those of about twenty streams.

Half of them are objects that are visited, with some thousands that are always there. On a busy machine, which has
little of them in a cache, 1,000 take up to a millisecond.
"""

STEADY_BLOCKS: Final = 150_000
"""The same limit for a process that no longer grows: garbage that a load has left may be part of its growth."""

_SOME_GARBAGE: Final = 100_000
"""Objects in cycles, found among new ones, from which there may be many among the old ones too."""

_SOON_SECONDS: Final = 3_600.0
_LATEST_SECONDS: Final = 86_400.0
"""Seconds after which old objects are visited even if they are more: the former if there may be many cycles.

A server that is never quiet would keep all cycles.
"""


class NewObjects:
    """Has new objects visited after some responses, even if Python does not count enough of them.

    Python subtracts the objects that are freed, also the old ones. Where streams end as others begin, the new ones
    would grow in number, and so the time of the next pass over them. A response that ends soon leaves nothing new.
    Streams that end together make new objects while they wait to be stored, as many as those that begin.
    """

    def __init__(self) -> None:
        self._passes = self._new = self._responses = 0

    def note_begun(self) -> int:
        """Count a response that begins; return what `note_ended` needs at its end."""
        self._new += 1
        self._note()
        return self._passes

    def note_ending(self, begun: int) -> None:
        """Count a stream that is about to end, if it began before the last pass; `begun` as in `note_ended`."""
        if begun != self._passes:
            self._new += 1
            self._visit_if_many()

    def note_ended(self, begun: int) -> None:
        """Count a response that has ended; `begun` is what `note_begun` returned."""
        if begun == self._passes:
            self._new -= 1
        self._note()

    def _note(self) -> None:
        self._responses += 1
        self._visit_if_many()

    def _visit_if_many(self) -> None:
        if self._new >= STREAMS or self._responses >= RESPONSES:
            self._passes += 1
            self._new = self._responses = 0
            if gc.isenabled():
                gc.collect(0)


class OldObjects:
    """The objects that passes over new ones no longer visit, except those that exist when it is first asked.

    To count the objects themselves takes as long as to collect: 0.6 s with 4,000,000.

    Args:
        blocks: returns the blocks of memory that Python has in use, in a millisecond for a gigabyte.
    """

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._blocks = blocks
        self._least: int | None = None

    def are_few(self, growth: int = _MAX_BLOCKS) -> bool:
        """Return whether a collection of all reference cycles is short: blocks have grown by no more than this."""
        now = self._blocks()
        self._least = now if self._least is None else min(self._least, now)
        return now - self._least <= growth


class OldGarbage(Periodic):
    """Collects reference cycles among old objects at intervals.

    Args:
        seconds: the interval.
        objects: says how many there are.
        clock: returns seconds.
    """

    def __init__(self, seconds: float, objects: OldObjects, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self.check, "could not collect garbage", logger, seconds)
        self._objects = objects
        self._clock = clock
        self._began, self._found = clock(), _garbage_found()

    async def check(self) -> None:
        """Collect if it is time."""
        are_few = self._objects.are_few()
        _, passes, _ = gc.get_count()
        if passes >= _PASSES and (are_few or self._is_late()):
            gc.collect()
            self._began, self._found = self._clock(), _garbage_found()

    def _is_late(self) -> bool:
        leaks = _garbage_found() - self._found >= _SOME_GARBAGE
        return self._clock() - self._began >= (_SOON_SECONDS if leaks else _LATEST_SECONDS)


def _garbage_found() -> int:
    """Return how many objects in cycles were found among new ones until now."""
    return int(gc.get_stats()[0]["collected"])
