"""Conversion of a model server's stream of bytes to objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx2

from . import errors
from .frames import FrameSplitter
from .json_encoding import loads, loads_few

_DONE: Final = b"[DONE]"
_ANY_DONE: Final = re.compile(rb'\s*"?\[?done\]?"?\s*', re.IGNORECASE)
"""Other forms of `[DONE]`."""
_SIGN: Final = re.compile(
    rb'"?(?:\[(?!\w*(?:err|fail|abort))[\w -]{1,32}\]|: ?[\w -]{0,64}|ping|pong|heart-?beat|keep-?alive)"?\s*',
    re.IGNORECASE,
)
"""A sign of life that some proxies send as data: a word for it, any one in brackets, or a comment."""
_SMALL_BYTES: Final = 1 << 16
"""Size up to which an event is decoded without counting its values."""
_MAX_VALUES: Final = 1 << 14


class EventReader:
    """A reader of one stream.

    Args:
        build: builds an object from an event's JSON; raises ValueError if the event is invalid.
        request: returns the request, for use in errors.

    Attributes:
        build: as the argument.
    """

    __slots__ = ("_request", "_splitter", "build", "done")

    def __init__(self, build: Callable[[Any], Any], request: Callable[[], httpx2.Request]) -> None:
        self.build = build
        self._request = request
        self._splitter = FrameSplitter()
        self.done = False
        """Whether the server has sent `[DONE]`: no events follow."""

    @property
    def between_events(self) -> bool:
        """Whether nothing of an event has arrived yet, nor anything but events since the last one."""
        return self._splitter.between_events

    @property
    def is_cut(self) -> bool:
        """Whether the stream has ended within an event."""
        return self._splitter.is_cut

    def read(self, piece: bytes) -> Iterator[Any]:
        """Yield the objects of the events completed by a piece of the stream; b"" is the end of the stream.

        Raises:
            openai.APIError: an error came instead of an event.
            ValueError: an event is invalid.
        """
        for data in self.frames(piece):
            value = self.value(data)
            if self.done:
                return
            yield self.build(value)

    def frames(self, piece: bytes) -> list[bytes]:
        """Return the data of the events completed by a piece of the stream; b"" is the end of the stream.

        Raises:
            ValueError: an event is too long.
        """
        events = self._splitter.feed(piece) if piece else self._splitter.end()
        return [data for data in events if data] if b"" in events else events

    def value(self, data: bytes) -> Any:
        """Return the JSON of an event, from which `build` builds the object; `done` is set if it is the end instead.

        Raises:
            openai.APIError, ValueError: as for `read`.
        """
        if data.startswith(_DONE):
            self.done = True
            return None
        if data.startswith(b"<"):
            raise errors.from_event(errors.words_of_page(data), self._request())
        try:
            value = loads(data) if len(data) <= _SMALL_BYTES else loads_few(data, _MAX_VALUES)
        except ValueError:
            if self._is_mark(data):
                return None
            if words := errors.plain_words(data):
                raise errors.from_event(words, self._request()) from None
            raise
        if type(value) is str and self._is_mark(data):
            return None
        if type(value) is dict and (
            not value.get("choices")
            # Tests of single members are the fastest, and most events have none of these.
            or "error" in value
            or "code" in value
            or "message" in value
            or "msg" in value
            or "base_resp" in value
        ):
            self._refuse_error(value)
        return value

    def _is_mark(self, data: bytes) -> bool:
        """Return whether data that is no event says that the stream ends or goes on; `done` is set if it ends."""
        self.done = _ANY_DONE.fullmatch(data) is not None
        return self.done or _SIGN.fullmatch(data) is not None

    def _refuse_error(self, value: Any) -> None:
        if error := errors.reported(value):
            raise errors.from_event(error, self._request())
