"""The events of a streamed answer: pushed to a receiver while they arrive, or read one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final

from .events import EventReader

Receive = Callable[[Any], bool]
"""Takes an event; returns False to have it read instead, with all that follow until the reader asks for more."""

_NOTHING: Final = object()


class Delivery:
    """The events between their connection and their receiver.

    Args:
        reader: decodes the bytes.

    Attributes:
        receive: takes events as they arrive; None if they are only read.
        error: why no more events can be decoded; None if there is no error.
    """

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._events: Iterator[Any] = iter(())
        self._left: Any = _NOTHING
        self.receive: Receive | None = None
        self.error: Exception | None = None

    def feed(self, piece: bytes) -> bool:
        """Push the events that a piece of the stream completes; return whether all of them were taken."""
        self._events = self._reader.read(piece)
        self.advance()
        return self._left is _NOTHING and self.error is None and not self._reader.done

    def advance(self) -> None:
        """Push the next events, up to one that the receiver leaves, or an error."""
        self._left, receive = _NOTHING, self.receive
        try:
            for event in self._events:
                if receive is None or not receive(event):
                    self._left = event
                    return
        except Exception as error:  # noqa: BLE001 - it is raised to the reader of the stream
            self.error = error

    def left(self) -> list[Any]:
        """Return the event that has to be read, in a list; an empty list if there is none.

        Raises:
            Exception: the error, after all events before it.
        """
        if self._left is not _NOTHING:
            return [self._left]
        if self.error:
            raise self.error
        return []


class EventStream(AsyncGenerator[Any, None]):
    """The events of one answer.

    Args:
        inner: yields the events that a receiver has left, all of them if there is no receiver.
        delivery: what the generator reads from.
    """

    def __init__(self, inner: AsyncGenerator[Any], delivery: Delivery) -> None:
        self._inner = inner
        self._delivery = delivery

    def push_to(self, receive: Receive) -> None:
        """Pass each event to `receive` first, in the call that received its bytes, while a reader waits for the next.

        Only an event for which it returns False is yielded, and until the reader asks for the next one, nothing is
        passed on.
        """
        self._delivery.receive = receive

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return self._inner.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, Any]:
        """Read the next event."""
        return self._inner.asend(value)

    def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> Coroutine[Any, Any, Any]:
        """Raise an exception where the stream is read."""
        return self._inner.athrow(typ, val, tb)  # type: ignore[arg-type]

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Leave the stream."""
        return self._inner.aclose()
