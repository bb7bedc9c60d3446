"""Converts the model server's chunks to deltas without blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Self

from ..chat.chunks import ChunkReader
from ..chat.pieces import FEW
from ..concurrency.offloading import in_thread
from ..stream.assembler import Assembler
from ..stream.citations import CitationExtractor
from ..stream.deltas import Delta, Finish
from ..stream.fragments import LARGE_CHARACTERS
from ..telemetry.instrumentation import RoundOperation
from .delta_filter import DeltaFilter, apply_filters
from .event_buffer import EventBuffer
from .held_output import HeldOutput
from .watchdog import Watchdog

Take = Callable[[Delta], Finish | None]
"""Receives each delta of a round in order. If it returns a `Finish`, the round ends before this delta."""
Preparation = Callable[[Delta], Callable[[], None] | None]
Deltas = list[Delta] | Iterator[Delta]

_BURST_CHUNKS: Final = 16
"""Chunks after which a stream yields to other streams. A fast model server's chunks arrive together, and reading them
never waits. A new stream's first chunks do not wait behind running streams."""
_SLOW_SECONDS: Final = 0.2
"""A burst that took at least this long included waiting for the model server, so other streams could run."""


def nothing_to_prepare(_: Delta) -> None:
    """Return None: the deltas close no items."""
    return


@dataclass(frozen=True, slots=True)
class Round:
    """The collaborators that process the chunks of one round.

    Attributes:
        reader: turns chunks into deltas.
        citation_extractor: turns the citations in the text into annotations; None if there can be none.
        filters: the filters of the deltas, in order.
        take: receives the deltas.
        operation: records the request and the first chunk.
        is_full: returns whether the response is as large as it may be.
        assembler: has the text that chunks may extend; None if each chunk is taken as deltas.
        preparation: returns the work on a large item that a delta may close; None if there is none.
        output: counts the output of the model; None if that does not count.
        earlier: the characters of the rounds before.
    """

    reader: ChunkReader
    citation_extractor: CitationExtractor | None
    filters: Sequence[DeltaFilter]
    take: Take
    operation: RoundOperation
    is_full: Callable[[], bool]
    assembler: Assembler | None = None
    preparation: Preparation = nothing_to_prepare
    output: HeldOutput | None = None
    earlier: int = 0

    def full(self) -> bool:
        """Return whether the response has reached its output limit."""
        if self.is_full():
            return True
        return self.output is not None and not self.output.holds_model_output(self.earlier + self.reader.characters)

    @property
    def is_long(self) -> bool:
        """Whether an item of this round can be large."""
        return self.reader.characters >= LARGE_CHARACTERS

    def closes(self, deltas: Iterable[Delta]) -> bool:
        """Return whether one of the deltas may close a large item."""
        return any(self.preparation(delta) for delta in deltas)

    def extract_citations(self, deltas: Iterable[Delta]) -> list[Delta] | Iterator[Delta]:
        """Return the deltas with the citations in the model's text as annotations; many of them, as they are taken."""
        if self.citation_extractor is None:
            return iter(deltas)
        shown = chain.from_iterable(map(self.citation_extractor.feed, deltas))
        first = list(islice(shown, FEW + 1))
        return first if len(first) <= FEW else chain(first, shown)

    def take_all(self, deltas: Iterable[Delta]) -> Finish | None:
        """Take the deltas without filters; return how the round ended, if it did."""
        for delta in deltas:
            if end := self.take(delta):
                return end
        return None

    async def prepare_and_take(self, deltas: Iterable[Delta]) -> Finish | None:
        """Take the deltas without filters, after the preparation of each; return how the round ended, if it did."""
        for delta in deltas:
            await self._prepare(delta)
            if end := self.take(delta):
                return end
        return None

    async def _prepare(self, delta: Delta) -> None:
        while self.is_long and (work := self.preparation(delta)):
            await in_thread(work)

    async def filter_and_take(self, deltas: Iterable[Delta]) -> Finish | None:
        """Take the deltas through the filters; return how the round ended, if it did."""
        for delta in deltas:
            # When the round ends, the filters' work on this delta ends too.
            async with aclosing(apply_filters(self.filters, delta)) as passing:
                async for shown in passing:
                    await self._prepare(shown)
                    if end := self.take(shown) or (shown if isinstance(shown, Finish) else None):
                        return end
        return None


class Intake:
    """Takes the chunks of one round: those that its provider pushes, and those that the round reads.

    Both paths call `take`. If work would have to wait, the round itself reads that chunk: filters, large chunks, a full
    event buffer, the turns of other streams, and the end.

    Args:
        round_: the round.
        watchdog: is notified of each chunk with content.
        event_buffer: gets the events of the deltas.

    Attributes:
        deltas: the deltas of the last chunk, if the round has to take them.
        end: how the round ended, if it did.
        waits: whether it is another stream's turn now. After `extend`, the round has to read a chunk without content.
    """

    __slots__ = (
        "_answer",
        "_assembler",
        "_began",
        "_built",
        "_error",
        "_event_buffer",
        "_now",
        "_over",
        "_pause",
        "_read",
        "_reader",
        "_round",
        "_taken",
        "_watchdog",
        "deltas",
        "end",
        "waits",
    )

    def __init__(self, round_: Round, watchdog: Watchdog, event_buffer: EventBuffer) -> None:
        self._round = round_
        self._watchdog = watchdog
        self._event_buffer = event_buffer
        self._now = asyncio.get_running_loop().time
        self._read, self._built, self._pause, self._began = 0, 0, 1, 0.0
        self._taken = self._over = False
        self._reader, self._answer = round_.reader, round_.reader.answer
        plain = round_.citation_extractor is None and not round_.filters
        self._assembler = round_.assembler if plain else None
        self._error: Exception | None = None
        self.deltas: Deltas | None = None
        self.end: Finish | None = None
        self.begin_burst()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What still arrives until the stream is closed is dropped.
        self._over, self._assembler = True, None
        self._reader.extensions += self._read - self._built

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

    def text_of(self, value: Any) -> str | None:
        """Return the text in the JSON of a chunk that only extends the last delta; None for any other chunk."""
        return self._reader.extension(value) if self._assembler else None

    def extend(self, text: str, *, alone: bool) -> bool:
        """Take the text of a chunk that only extends the last delta; return False if the chunk has to be taken.

        A chunk that may make something wait must go through `take`.
        """
        assembler, reader, answer, size = self._assembler, self._reader, self._answer, len(text)
        if assembler is None or (open_text := assembler.open_text) is None:
            return False
        if not (0 < size <= reader.max_extension or reader.resume(size)) or answer.characters > reader.max_characters:
            return False
        number = self._read + 1
        if number == self._pause and not self._begin_next_burst():
            return False
        if (arguments := reader.open_arguments) is None:
            if not self._event_buffer.extend(open_text, text, alone=alone):
                return False
        elif arguments.extends(text) and self._event_buffer.extend(open_text, text, alone=alone):
            arguments.append(text)
        else:
            return False
        answer.characters += size
        if reader.is_opening:
            reader.open_with(text)
        self._watchdog.last = self._now()
        self._read = number
        return True

    def _begin_next_burst(self) -> bool:
        """Begin another burst behind the next chunk, before which the stream may have to yield.

        Return False if the response is full.
        """
        if self._round.full():
            return False
        if arguments := self._reader.open_arguments:
            arguments.scan()
        now = self._now()
        # The round has to read a chunk, which it does not take.
        self._taken = self.waits = now - self._began < _SLOW_SECONDS
        self._pause, self._began = self._read + 1 + _BURST_CHUNKS, now
        return True

    def take_unless_pushed(self, chunk: Any) -> None:
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

    def count_taken(self, chunk: Any) -> None:
        """Count a chunk whose `deltas` the round has taken.

        Raises:
            OutputLimitReached: the response is full.
            ApiError: the stream makes no progress.
        """
        self.deltas = None
        self._read += 1
        self._built += 1
        if self._read == self._pause:
            self._end_burst(chunk)

    def begin_burst(self) -> None:
        """Record the start of a burst."""
        self.waits, self._began = False, self._now()

    def _take(self, chunk: Any) -> bool:
        """Take a chunk; return whether the round has to wait for something."""
        round_ = self._round
        deltas: Deltas = self._watchdog.read(self._reader, chunk)
        if round_.citation_extractor is not None:
            deltas = round_.extract_citations(deltas)
        if deltas:
            if (
                type(deltas) is not list
                or round_.filters
                or (self._answer.characters >= LARGE_CHARACTERS and round_.closes(deltas))
            ):
                self.deltas = deltas
                return True
            if end := round_.take_all(deltas):
                self.end = end
                return True
        self._read += 1
        self._built += 1
        if self._read == self._pause:
            self._end_burst(chunk)
        return self.waits or self._event_buffer.full

    def _end_burst(self, chunk: Any) -> None:
        round_ = self._round
        round_.operation.observe(chunk)
        round_.reader.check_progress()
        if round_.full():
            raise round_.reader.cut()
        first, took = self._read == 1, self._now() - self._began
        self._pause = self._read - self._read % _BURST_CHUNKS + _BURST_CHUNKS
        self.begin_burst()
        self.waits = not first and took < _SLOW_SECONDS
