"""Events for the store and several clients, encoded once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from ..store import codec
from ..stream.delta_forms import DeltaRun
from ..stream.events import Event


class SharedEvents:
    """Events that do not change, at least one.

    Args:
        events: the events.

    Attributes:
        run: the events, if they are deltas of one form.
        first: the number of the first event.
        last: the number of the last event.
        lenient: whether only Python's own decoder reads the JSON of one of them; known once they are encoded.
    """

    __slots__ = ("_events", "_frames", "_json", "first", "last", "lenient", "run")

    def __init__(self, events: Sequence[Event] | DeltaRun) -> None:
        self._events: Sequence[Event] | None = None
        self.run: DeltaRun | None = None
        if isinstance(events, DeltaRun):
            self.run, self.first, self.last = events, events.first, events.last
        else:
            self._events = events
            self.first, self.last = events[0]["sequence_number"], events[-1]["sequence_number"]
        self._json: Sequence[bytes] | None = None
        self.lenient = False
        self._frames: list[bytes | None] = []

    @property
    def events(self) -> Sequence[Event]:
        """The events."""
        if self._events is None:
            assert self.run is not None
            self._events = self.run.events()
        return self._events

    @property
    def json(self) -> Sequence[bytes]:
        """Each event as JSON."""
        if self._json is None:
            self._json = self._encoded()
        return self._json

    def _encoded(self) -> Sequence[bytes]:
        if self.run is not None:
            with suppress(TypeError):  # a text has half of a surrogate pair
                return self.run.json()
        texts = list(map(codec.text_of_small, self.events))
        self.lenient = any(text.lenient for text in texts)
        return [bytes(text.json) for text in texts]

    def encoded(self) -> Iterator[bytes]:
        """Yield each event as JSON. None is encoded before the first is asked for: they may be large."""
        yield from self.json

    def frames(self, encode: Callable[[SharedEvents], bytes | None]) -> bytes | None:
        """Return what the first call's `encode` returned for these events."""
        if not self._frames:
            self._frames.append(encode(self))
        return self._frames[0]
