"""The intake of one model round: chunks of the model server in, deltas out, without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Self

from ..chat.chunks import ChunkReader
from ..chat.pieces import FEW
from ..core.stream.citing import Citing
from ..core.stream.deltas import Delta, Finish
from ..telemetry.telemetry import RoundOperation
from .delta_filter import DeltaFilter, apply_filters
from .event_buffer import EventBuffer
from .watchdog import Watchdog

Take = Callable[[Delta], Finish | None]
"""Receives each delta of a round in order. If it returns a `Finish`, the round ends before this delta."""
Deltas = list[Delta] | Iterator[Delta]

_BURST: Final = 16
"""Chunks after which a stream yields to other streams. A fast model server's chunks arrive together, and reading them
never waits. A new stream's first chunks do not wait behind running streams."""
_SLOW: Final = 0.2
"""Seconds for a burst from which a stream has waited for its model server, so that others could run meanwhile."""


@dataclass(frozen=True, slots=True)
class Round:
    """The collaborators that process the chunks of one round.

    Attributes:
        reader: turns chunks into deltas.
        citing: turns the citations in the text into annotations; None if there can be none.
        filters: the filters of the deltas, in order.
        take: receives the deltas.
        operation: records the request and the first chunk.
        full: returns whether the response is as large as it may be.
    """

    reader: ChunkReader
    citing: Citing | None
    filters: Sequence[DeltaFilter]
    take: Take
    operation: RoundOperation
    full: Callable[[], bool]

    def cited(self, deltas: Iterable[Delta]) -> list[Delta] | Iterator[Delta]:
        """Return the deltas with the citations in the model's text as annotations; many of them, as they are taken."""
        if self.citing is None:
            return iter(deltas)
        shown = chain.from_iterable(map(self.citing.feed, deltas))
        first = list(islice(shown, FEW + 1))
        return first if len(first) <= FEW else chain(first, shown)

    def taken(self, deltas: Iterable[Delta]) -> Finish | None:
        """Take the deltas without filters; return how the round ended, if it did."""
        for delta in deltas:
            if end := self.take(delta):
                return end
        return None

    async def passed(self, deltas: Iterable[Delta]) -> Finish | None:
        """Take the deltas through the filters; return how the round ended, if it did."""
        for delta in deltas:
            # When the round ends, the filters' work on this delta ends too.
            async with aclosing(apply_filters(self.filters, delta)) as passing:
                async for shown in passing:
                    if end := self.take(shown) or (shown if isinstance(shown, Finish) else None):
                        return end
        return None


class Intake:
    """Takes the chunks of one round: those that its provider pushes, and those that the round reads.

    Both ways lead through `take`. What cannot be done without waiting stays for the round, which reads that chunk:
    filters, large chunks, a full event buffer, the turns of other streams, and the end.

    Args:
        this: the round.
        watchdog: hears of each chunk with content.
        event_buffer: gets the events of the deltas.

    Attributes:
        deltas: the deltas of the last chunk, if the round has to take them.
        end: how the round ended, if it did.
        waits: whether it is another stream's turn now.
    """

    def __init__(self, this: Round, watchdog: Watchdog, event_buffer: EventBuffer) -> None:
        self._this = this
        self._watchdog = watchdog
        self._event_buffer = event_buffer
        self._loop = asyncio.get_running_loop()
        self._read, self._pause = 0, 1
        self._taken = self._over = False
        self._error: Exception | None = None
        self.deltas: Deltas | None = None
        self.end: Finish | None = None
        self.begin_burst()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What still arrives until the stream is closed is dropped.
        self._over = True

    def take(self, chunk: Any) -> bool:
        """Take a chunk; return False if the round has to read it, for an error or because something has to wait."""
        if self._over:
            return False
        try:
            waits = self._take(chunk)
        except Exception as error:  # noqa: BLE001 - the round raises it
            self._error = error
            waits = True
        self._taken = waits
        return not waits

    def pulled(self, chunk: Any) -> None:
        """Take a chunk that the round reads, unless it was pushed before.

        Raises:
            OutputLimitReached: the response is full.
            ApiError: the chunk is invalid, or the stream makes no progress.
        """
        if not self._taken:
            self.take(chunk)
        self._taken = False
        if self._error:
            raise self._error

    def settle(self, chunk: Any) -> None:
        """Count a chunk whose `deltas` the round has taken.

        Raises:
            OutputLimitReached: the response is full.
            ApiError: the stream makes no progress.
        """
        self.deltas = None
        self._read += 1
        if self._read == self._pause:
            self._rest(chunk)

    def begin_burst(self) -> None:
        """Note that a burst begins now."""
        self.waits, self._began = False, self._loop.time()

    def _take(self, chunk: Any) -> bool:
        """Take a chunk; return whether the round has to wait for something."""
        this = self._this
        deltas: Deltas = this.reader.read(chunk)
        if this.citing is not None:
            deltas = this.cited(deltas)
        if deltas:
            self._watchdog.pat()
            if type(deltas) is not list or this.filters:
                self.deltas = deltas
                return True
            if end := this.taken(deltas):
                self.end = end
                return True
        self._read += 1
        if self._read == self._pause:
            self._rest(chunk)
        return self.waits or self._event_buffer.full

    def _rest(self, chunk: Any) -> None:
        this = self._this
        this.operation.observe(chunk)
        this.reader.check_progress()
        if this.full():
            raise this.reader.cut()
        first, took = self._read == 1, self._loop.time() - self._began
        self._pause = self._read - self._read % _BURST + _BURST
        self.begin_burst()
        self.waits = not first and took < _SLOW
