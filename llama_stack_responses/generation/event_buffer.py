"""A bounded buffer of events between one generation and one reader."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ..stream.delta_forms import DeltaForm, DeltaRun
from ..stream.events import Event
from ..stream.item_order import ItemOrder
from ..stream.output import OpenText
from ..stream.transcript import Transcript
from .event_times import EventTimes
from .shared_timer import SharedTimer, Timeout


class EventWriter(Protocol):
    """Passes events on to the client without waiting."""

    def write(self, events: list[Event] | DeltaRun) -> bool:
        """Pass events on; return False if that is not possible."""
        ...

    def extend(self, like: Event, number: int, text: str) -> bool:
        """Pass on a delta that has this number and text, and is like another event in all else; return as `write`."""
        ...


class EventBuffer:
    """A list of events with one writer and one reader.

    The reader takes all buffered events at once, so a burst costs one wake-up and one write, and no event costs a task
    or a lock. While it waits, events can be passed on without waking it: those of one iteration of the event loop
    together, and a token that arrived alone in the call that received it. At `limit` events the buffer is full and the
    writer should wait. This is the backpressure: a stalled reader stalls the model server's stream, and memory stays
    bounded. Events are passed on item by item.

    Args:
        wanted: whether there is a reader; if not, events are dropped.
        transcript: records all events, wanted or not.
        event_times: the initial value of the attribute.
        timer: has the timeouts of other streams too; by default, the buffer has its own.
        limit: number of buffered events from which `full` is true.

    Attributes:
        order: holds back the events of an item while another item is open.
        event_times: notes when the reader took events; None if that is not recorded.
        passed: how often events were passed on without waking the reader.
    """

    __slots__ = (
        "_ended",
        "_events",
        "_form",
        "_last",
        "_limit",
        "_loop",
        "_passed_at",
        "_planned",
        "_reader",
        "_run",
        "_silence",
        "_timeout",
        "_timer",
        "_transcript",
        "_wanted",
        "_write",
        "_writer",
        "event_times",
        "order",
        "passed",
    )

    def __init__(
        self,
        *,
        wanted: bool,
        transcript: Transcript | None = None,
        event_times: EventTimes | None = None,
        timer: SharedTimer | None = None,
        limit: int = 256,
    ) -> None:
        self.order = ItemOrder()
        self._wanted = wanted
        self._transcript = transcript
        self._limit = limit
        self.event_times = event_times
        self.passed = 0
        self._events: list[Event] = []
        self._run: DeltaRun | None = None
        """Deltas that follow `_events`. They become event objects only for `ready`, or beside other events."""
        self._form: DeltaForm | None = None
        self._last: Event | None = None
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._write: EventWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._planned = False
        self._passed_at = 0.0
        self._timer = timer
        self._silence = 0.0
        self._timeout: Timeout | None = None

    @property
    def full(self) -> bool:
        """Whether the writer should wait for `drained` before it puts more events."""
        return self._count() >= self._limit

    def _count(self) -> int:
        return len(self._events) + (len(self._run.texts) if self._run else 0)

    @property
    def waiting(self) -> list[Event] | DeltaRun:
        """The buffered events, which `take` would take."""
        if self._run and not self._events:
            return self._run
        return self._all()

    def _all(self) -> list[Event]:
        """Return the buffered events as such."""
        if run := self._run:
            self._run = None
            self._events += run.events()
        return self._events

    def put(self, events: list[Event]) -> None:
        """Append events in the order of their items, and wake the reader."""
        if not self._wanted and self._transcript is None:
            return
        events = self.order.feed(events)
        if not events:
            return
        self._last = events[-1] if self.order.idle else None
        if self._transcript:
            self._transcript.note(events)
        if self._wanted:
            self._all().extend(events)
            self._plan()

    def extend(self, open_text: OpenText, text: str, *, alone: bool = False) -> bool:
        """Append the delta by which a text extends an open one; return False if the buffer is full.

        Args:
            alone: whether the delta is passed on at once, since no other has arrived with it.
        """
        like, run = open_text.event, self._run
        count = len(self._events) + len(run.texts) if run else len(self._events)
        if count >= self._limit:
            return False
        number = open_text.append(text)
        if like is not self._last:
            if not self._wanted and self._transcript is None:
                return True
            open_text.event = open_text.event_of(number, text)
            self.put([open_text.event])
            return True
        if self._transcript:
            self._transcript.run.append(len(text))
        if run and like is run.form.like and number == run.first + len(run.texts):
            run.texts.append(text)
        elif self._wanted and not (alone and not count and self._extend_written(like, number, text)):
            self._begin_run(like, number, text)
        else:
            return True
        if not self._planned:
            self._plan()
        return True

    def _begin_run(self, like: Event, number: int, text: str) -> None:
        """Append a delta that has this number and text, and is like another event in all else."""
        form = self._form
        if form is None or like is not form.like:
            self._form = form = DeltaForm(like)
        self._all()
        self._run = DeltaRun(form, number, [text])

    def _extend_written(self, like: Event, number: int, text: str) -> bool:
        """Pass a delta on while the reader waits; return whether it was passed on."""
        if self._write is None or self._reader is None or self._reader.done():
            return False
        try:
            if not self._write.extend(like, number, text):
                return False
        except Exception:  # noqa: BLE001 - the reader finds the same
            return False
        if self.event_times:
            self.event_times.note(number + 1)
        self.passed += 1
        self._passed_at = self._loop.time()
        return True

    def _plan(self) -> None:
        """Schedule the events for the next iteration of the event loop, or wake the reader."""
        if self._write is None:
            _wake(self._reader)
        elif not self._planned:
            self._planned = True
            self._loop.call_soon(self._pass_on)

    def end(self) -> None:
        """Mark the end: no events will follow."""
        self._ended = True
        _wake(self._reader)

    async def drained(self) -> None:
        """Wait until the buffer is not full."""
        while self.full:
            self._writer = self._loop.create_future()
            await self._writer

    async def filled(self, silence: float | None = None, write: EventWriter | None = None) -> bool:
        """Wait until events are ready, or for `silence` seconds; return False once the events have ended.

        Events that `write` has passed on are not ready.
        """
        if not self._count() and not self._ended:
            loop = self._loop
            self._reader, self._write, self._passed_at = loop.create_future(), write, loop.time()
            if silence:
                self._silence = silence
                self._plan_timeout()
            try:
                await self._reader
            finally:
                self._write = None
                if self._timeout:
                    self._timeout.cancel()
        return bool(self._count()) or not self._ended

    def ready(self) -> list[Event]:
        """Take all buffered events, without waiting."""
        self._all()
        batch = self.take()
        assert isinstance(batch, list)
        return batch

    def take(self) -> list[Event] | DeltaRun:
        """Take all buffered events, without waiting; as a run if they are deltas of one form."""
        batch = self.waiting
        self._events, self._run = [], None
        if self.event_times:
            if isinstance(batch, DeltaRun):
                self.event_times.note(batch.last + 1)
            elif batch:
                self.event_times.note(batch[-1]["sequence_number"] + 1)
        if self._writer:
            _wake(self._writer)
        return batch

    async def get(self, silence: float, write: EventWriter | None = None) -> list[Event] | None:
        """Take all buffered events, and wait for the first one.

        Return an empty list after `silence` seconds without an event, and None once the events have ended. `write` is
        as for `filled`.
        """
        return self.ready() if await self.filled(silence, write) else None

    def _pass_on(self) -> None:
        """Pass the buffered events on, or wake the reader."""
        self._planned = False
        if self._write is None or self._reader is None or self._reader.done() or not self._count():
            return
        try:
            passed = self._write.write(self.waiting)
        except Exception:  # noqa: BLE001 - the reader finds the same
            passed = False
        if passed:
            self.take()
            self.passed += 1
            self._passed_at = self._loop.time()
        else:
            _wake(self._reader)

    def _plan_timeout(self) -> None:
        self._timer = self._timer or SharedTimer()
        self._timeout = self._timer.plan(self._passed_at + self._silence, self)

    def expire(self) -> None:
        """Wake the reader after a silence, or wait for the rest of the time if events were passed on meanwhile."""
        if self._passed_at + self._silence > self._loop.time():
            self._plan_timeout()
        else:
            _wake(self._reader)


def _wake(sleeper: asyncio.Future[None] | None) -> None:
    if sleeper and not sleeper.done():
        sleeper.set_result(None)
