"""A bounded buffer of events between one generation and one reader."""

from __future__ import annotations

import asyncio

from ..core.stream.events import Event
from ..core.stream.item_order import ItemOrder
from ..core.stream.transcript import Transcript
from .pace import Pace


class EventBuffer:
    """A list of events with one writer and one reader.

    The reader takes all buffered events at once, so a burst costs one wake-up and one write, and no event costs a task
    or a lock. At `limit` events the buffer is full and the writer should wait. This is the backpressure: a stalled
    reader stalls the model server's stream, and memory stays bounded. Events are passed on item by item.

    Args:
        wanted: whether there is a reader; if not, events are dropped.
        transcript: records all events, wanted or not.
        pace: the initial value of the attribute.
        limit: number of buffered events from which `full` is true.

    Attributes:
        order: holds back the events of an item while another item is open.
        pace: notes when the reader took events; None if that is not recorded.
    """

    def __init__(
        self, *, wanted: bool, transcript: Transcript | None = None, pace: Pace | None = None, limit: int = 256
    ) -> None:
        self.order = ItemOrder()
        self._wanted = wanted
        self._transcript = transcript
        self._limit = limit
        self.pace = pace
        self._events: list[Event] = []
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether the writer should wait for `drained` before it puts more events."""
        return len(self._events) >= self._limit

    def put(self, events: list[Event]) -> None:
        """Append events in the order of their items, and wake the reader."""
        if not self._wanted and self._transcript is None:
            return
        events = self.order.take(events)
        if self._transcript:
            self._transcript.note(events)
        if self._wanted and events:
            self._events += events
            _wake(self._reader)

    def end(self) -> None:
        """Mark the end: no events will follow."""
        self._ended = True
        _wake(self._reader)

    async def drained(self) -> None:
        """Wait until the buffer is not full."""
        while self.full:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def filled(self, silence: float | None = None) -> bool:
        """Wait until events are ready, or for `silence` seconds; return False once the events have ended."""
        if not self._events and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            timer = asyncio.get_running_loop().call_later(silence, _wake, self._reader) if silence else None
            await self._reader
            if timer:
                timer.cancel()
        return bool(self._events) or not self._ended

    def ready(self) -> list[Event]:
        """Take all buffered events, without waiting."""
        taken, self._events = self._events, []
        if taken and self.pace:
            self.pace.note(taken[-1]["sequence_number"] + 1)
        _wake(self._writer)
        return taken

    async def take(self, silence: float) -> list[Event] | None:
        """Take all buffered events, and wait for the first one.

        Return an empty list after `silence` seconds without an event, and None once the events have ended.
        """
        return self.ready() if await self.filled(silence) else None


def _wake(sleeper: asyncio.Future[None] | None) -> None:
    if sleeper and not sleeper.done():
        sleeper.set_result(None)
