"""Events for the store and several clients, encoded once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..core.stream.delta_forms import DeltaRun
from ..core.stream.events import Event
from ..store import codec


class SharedEvents:
    """Events that do not change, at least one.

    Args:
        events: the events.

    Attributes:
        run: the events, if they are deltas of one form.
        first: the number of the first event.
        last: the number of the last event.
    """

    __slots__ = ("_events", "_frames", "_texts", "first", "last", "run")

    def __init__(self, events: Sequence[Event] | DeltaRun) -> None:
        self._events: Sequence[Event] | None = None
        self.run: DeltaRun | None = None
        if isinstance(events, DeltaRun):
            self.run, self.first, self.last = events, events.first, events.last
        else:
            self._events = events
            self.first, self.last = events[0]["sequence_number"], events[-1]["sequence_number"]
        self._texts: Sequence[codec.JsonText] | None = None
        self._frames: list[bytes | None] = []

    @property
    def events(self) -> Sequence[Event]:
        """The events."""
        if self._events is None:
            assert self.run is not None
            self._events = self.run.events()
        return self._events

    @property
    def texts(self) -> Sequence[codec.JsonText]:
        """Each event as JSON."""
        if self._texts is None:
            self._texts = self._of_run() or list(map(codec.text_of_small, self.events))
        return self._texts

    def _of_run(self) -> Sequence[codec.JsonText] | None:
        """Return the texts of a run; None if there is none, or it has half of a surrogate pair."""
        if self.run is None:
            return None
        try:
            return [codec.JsonText(text, lenient=False) for text in self.run.json()]
        except TypeError:
            return None

    def encoded(self) -> Iterator[bytes]:
        """Yield each event as JSON. None is encoded before the first is asked for: they may be large."""
        for text in self.texts:
            yield bytes(text.json)

    def frames(self, encode: Callable[[SharedEvents], bytes | None]) -> bytes | None:
        """Return what the first call's `encode` returned for these events."""
        if not self._frames:
            self._frames.append(encode(self))
        return self._frames[0]
