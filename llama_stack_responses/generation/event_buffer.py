"""Events on their way from the loop to one reader."""

from __future__ import annotations

import asyncio

from ..core.stream.events import Event
from ..core.stream.transcript import Transcript


class Outbox:
    """A list of events that one task fills and one task empties.

    The reader takes all that is ready at once, so a burst costs one wake-up and one write, and no event
    costs a task or a lock. Past `limit` events the writer is asked to wait: a reader that stalls then stalls
    the upstream, and no memory grows.

    Args:
        wanted: False when nobody reads: events are then dropped.
        transcript: takes down all events, wanted or not.
        limit: number of waiting events past which `full` is true.
    """

    def __init__(self, *, wanted: bool, transcript: Transcript | None = None, limit: int = 256) -> None:
        self._wanted = wanted
        self._transcript = transcript
        self._limit = limit
        self._events: list[Event] = []
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether the writer should wait for `drained` before it puts more."""
        return len(self._events) >= self._limit

    def put(self, events: list[Event]) -> None:
        """Hands events to the reader."""
        if self._transcript:
            self._transcript.note(events)
        if self._wanted and events:
            self._events += events
            _wake(self._reader)

    def end(self) -> None:
        """Says that no event will follow."""
        self._ended = True
        _wake(self._reader)

    async def drained(self) -> None:
        """Waits until the reader has taken what is there."""
        while self.full:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def filled(self, silence: float | None = None) -> bool:
        """Waits until events are ready, or for `silence` seconds; False when the events have ended."""
        if not self._events and not self._ended:
            self._reader = asyncio.get_running_loop().create_future()
            timer = asyncio.get_running_loop().call_later(silence, _wake, self._reader) if silence else None
            await self._reader
            if timer:
                timer.cancel()
        return bool(self._events) or not self._ended

    def ready(self) -> list[Event]:
        """All events that are ready, without waiting."""
        taken, self._events = self._events, []
        _wake(self._writer)
        return taken

    async def take(self, silence: float) -> list[Event] | None:
        """All events that are ready; waits for the first one.

        Returns an empty list when none came for `silence` seconds, and None when the events have ended.
        """
        return self.ready() if await self.filled(silence) else None


def _wake(sleeper: asyncio.Future[None] | None) -> None:
    if sleeper and not sleeper.done():
        sleeper.set_result(None)
