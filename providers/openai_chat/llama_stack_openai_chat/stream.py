"""The events of a streamed answer: pushed to a receiver while they arrive, or read one by one."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final, Protocol

from .connection import Connection
from .events import EventReader
from .repeated import RepeatedEvent

Receive = Callable[[Any], bool]
"""Takes an event; returns False to have it read instead, with all that follow until the reader asks for more."""


class Extender(Protocol):
    """Takes events that only extend a text of the last event, before they are built."""

    @property
    def waits(self) -> bool:
        """Whether nothing may be taken for now, after `extend` has returned True.

        Then an event without content is read, and nothing is passed on until the reader asks for the next one.
        """
        ...

    def text_of(self, value: Any) -> str | None:
        """Return the text in the JSON of an event that only extends the last one; None for any other event."""
        ...

    def extend(self, text: str, *, alone: bool) -> bool:
        """Take the text of such an event; return False to have the event built and passed to `Receive`.

        Of an event that repeats the last one with another text, it is called without `text_of`; after an event that
        was passed to `Receive`, it returns False until `text_of` was called.

        Args:
            text: the text.
            alone: whether the event has arrived without others, so that waiting for more is of no use.
        """
        ...


_NOTHING: Final = object()
_NO_CONTENT: Final = {"choices": ()}
"""The JSON of an event that only makes its reader wait."""


class Delivery:
    """The events between their connection and their receiver.

    Args:
        reader: decodes the bytes.

    Attributes:
        receive: takes events as they arrive; None if they are only read.
        extender: takes the texts of events before `receive` is called; None if all events are built.
        error: why no more events can be decoded; None if there is no error.
    """

    __slots__ = ("_frames", "_left", "_reader", "_repeated", "_repeats", "error", "extender", "receive")

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._repeated = RepeatedEvent()
        self._frames: Iterator[bytes] = iter(())
        self._left: Any = _NOTHING
        self._repeats = False
        self.receive: Receive | None = None
        self.extender: Extender | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether the server has ended the stream with `[DONE]`."""
        return self._reader.done

    def feed(self, piece: bytes) -> bool:
        """Push the events that a piece of the stream completes; return whether all of them were taken.

        A piece that repeats the last event with another text is not even parsed.
        """
        try:
            if self._repeats and (extender := self.extender) and self._extend_only(extender, piece):
                return not self._stops(extender)
            frames = self._reader.frames(piece)
        except Exception as error:  # noqa: BLE001 - it is raised to the reader of the stream
            self.error = error
            return False
        self._frames = iter(frames)
        taken = self.advance()
        self._repeats = taken and self._repeated.is_one_line and self._reader.between_events
        return taken

    def _extend_only(self, extender: Extender, piece: bytes) -> bool:
        text = self._repeated.only_text(piece)
        return text is not None and extender.extend(text, alone=True)

    def _stops(self, extender: Extender) -> bool:
        """Return whether the reader has to read an event without content, because the receiver waits."""
        if not extender.waits:
            return False
        self._left = self._reader.build(_NO_CONTENT)
        return True

    def advance(self) -> bool:
        """Push the next events, up to one that the receiver leaves, an error or the end; return whether all were taken.

        An event whose text alone differs from the last one's is not decoded.
        """
        self._left = _NOTHING
        extender, text_of = self.extender, self._repeated.text
        try:
            for data in self._frames:
                text = text_of(data) if extender else None
                if text is not None and extender and extender.extend(text, alone=False):
                    if extender.waits:
                        return not self._stops(extender)
                    continue
                value = self._reader.value(data)
                if self._reader.done:
                    return False
                if extender and self._extends(extender, data, value, known=text is not None):
                    self._stops(extender)
                else:
                    self._pass(self._reader.build(value))
                if self._left is not _NOTHING:
                    return False
        except Exception as error:  # noqa: BLE001 - it is raised to the reader of the stream
            self.error = error
            return False
        return True

    def _extends(self, extender: Extender, data: bytes, value: Any, *, known: bool) -> bool:
        """Return whether an event only extended the last one; `known` says whether what repeats was learned."""
        text = extender.text_of(value)
        if text is None:
            self._repeated.forget()
            return False
        if not extender.extend(text, alone=False):
            return False
        if not known:
            self._repeated.learn(data, text, extender.text_of)
        return True

    def _pass(self, event: Any) -> None:
        if self.receive is None or not self.receive(event):
            self._left = event

    def left(self) -> tuple[Any, ...]:
        """Return the event that has to be read, in a tuple; an empty tuple if there is none.

        Raises:
            Exception: the error, after all events before it.
        """
        if self._left is not _NOTHING:
            return (self._left,)
        if self.error:
            raise self.error
        return ()


class EventStream(AsyncGenerator[Any, None]):
    """The events of one answer.

    Args:
        inner: yields the events that a receiver has left, all of them if there is no receiver.
        delivery: what the generator reads from.
        connection: the connection of the answer, whose head has arrived.
    """

    __slots__ = ("_connection", "_delivery", "_head", "_inner")

    def __init__(self, inner: AsyncGenerator[Any], delivery: Delivery, connection: Connection) -> None:
        self._inner = inner
        self._delivery = delivery
        self._connection, self._head = connection, connection.head

    def __del__(self) -> None:
        """Close the connection of an abandoned stream, unless it already serves another request.

        A generator that was never started runs no `finally`. A `weakref.finalize` would take 400 bytes.
        """
        if self._connection.head is self._head and self._connection.busy and not sys.is_finalizing():
            self._connection.close()

    @property
    def done(self) -> bool:
        """Whether the server has ended the stream with `[DONE]`."""
        return self._delivery.done

    def push_to(self, receive: Receive, extender: Extender | None = None) -> None:
        """Pass each event to `receive` first, in the call that received its bytes, while a reader waits for the next.

        Only an event for which it returns False is yielded, and until the reader asks for the next one, nothing is
        passed on. An event that `extender` takes is not built, which is most of the work on a small event.
        """
        self._delivery.receive, self._delivery.extender = receive, extender

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
