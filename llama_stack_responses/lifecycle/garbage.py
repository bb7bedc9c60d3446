"""When Python collects reference cycles: often among new objects, and among old ones while that delays no response.

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

READS: Final = 512
"""Reads of a model server's stream after which new objects are visited in any case; each leaves up to a dozen."""

_PASSES: Final = 50
"""Passes over new objects until old ones are visited."""

_MAX_BLOCKS: Final = 10_000
"""Growth of the blocks of memory in use up to which old objects are visited at any time: those of forty streams.

Two thirds of them are objects that are visited, with some thousands that are always there. On a busy machine, which has
little of them in a cache, 1,000 take a millisecond.
"""

_BLOCKS_OF_ONE: Final = 1_000
"""Blocks of memory that a running response may have: four times as many as a stream of text has."""

_LATEST_SECONDS: Final = 3_600.0
"""Seconds between two passes over old objects, however long they take, of a server that is never quiet."""


class NewObjects:
    """Has new objects visited after some responses and reads, even if Python does not count enough of them.

    Python subtracts the objects that are freed, also the old ones. Where streams end as others begin, the new ones
    would grow in number, and so the time of the next pass over them. A response that ends soon leaves nothing new.
    Streams that end together make new objects while they wait to be stored, as many as those that begin. And an open
    stream that waits once more has new objects in place of those of its last wait.
    """

    def __init__(self) -> None:
        self._passes = self._new = self._responses = self._reads = 0

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

    def note_read(self) -> None:
        """Count a chunk of a model server for which a response has waited."""
        self._reads += 1
        if self._reads >= READS:
            self._visit()

    def _note(self) -> None:
        self._responses += 1
        self._visit_if_many()

    def _visit_if_many(self) -> None:
        if self._new >= STREAMS or self._responses >= RESPONSES:
            self._visit()

    def _visit(self) -> None:
        self._passes += 1
        self._new = self._responses = self._reads = 0
        if gc.isenabled():
            gc.collect(0)


class OldObjects:
    """The objects that passes over new ones no longer visit, except those that exist at the first look.

    A pass over them takes about a microsecond for each, in which no stream goes on. So it is made while no response
    runs, or while they are few. If neither comes to pass, it is made once the process has twice the memory that it had
    after the last one, beside what the running responses explain: then cycles may have taken it.

    To count the objects themselves takes as long as to collect: 0.6 s with 4,000,000.

    Args:
        running: returns the number of responses that run in this process.
        blocks: returns the blocks of memory that Python has in use, in a millisecond for a gigabyte.
        clock: returns seconds.
    """

    def __init__(
        self,
        running: Callable[[], int],
        blocks: Callable[[], int] = sys.getallocatedblocks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running, self._blocks, self._clock = running, blocks, clock
        self._least = self._left = sys.maxsize
        self._visited_at = clock()

    def look(self) -> int:
        """Note how many blocks are in use, from which growth is counted, and return it."""
        now = self._blocks()
        self._least, self._left = min(self._least, now), min(self._left, now)
        return now

    def collect(self) -> None:
        """Collect all reference cycles if that disturbs no response, or is due."""
        now, running = self.look(), self._running()
        if running and now - self._least > _MAX_BLOCKS and not self._is_due(now - running * _BLOCKS_OF_ONE):
            return
        gc.collect()
        self._left, self._visited_at = self._blocks(), self._clock()

    def _is_due(self, unexplained: int) -> bool:
        return unexplained >= 2 * self._left and self._clock() - self._visited_at >= _LATEST_SECONDS


class OldGarbage(Periodic):
    """Collects reference cycles among old objects at intervals, if many new ones have come.

    Args:
        seconds: the interval.
        objects: the old objects.
    """

    def __init__(self, seconds: float, objects: OldObjects) -> None:
        super().__init__(self.check, "could not collect garbage", logger, seconds)
        self._objects = objects

    async def check(self) -> None:
        """Collect if it is time."""
        self._objects.look()
        _, passes, _ = gc.get_count()
        if passes >= _PASSES:
            self._objects.collect()
