"""Conversion of a model server's stream of bytes to objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx2

from . import errors
from .body import loads, loads_few
from .frames import FrameSplitter

_DONE: Final = b"[DONE]"
_SMALL: Final = 1 << 16
"""Size up to which an event is decoded without counting its values."""
_MOST_VALUES: Final = 1 << 14


class EventReader:
    """A reader of one stream.

    Args:
        build: builds an object from an event's JSON; raises ValueError if the event is invalid.
        request: returns the request, for use in errors.
    """

    def __init__(self, build: Callable[[Any], Any], request: Callable[[], httpx2.Request]) -> None:
        self._build = build
        self._request = request
        self._splitter = FrameSplitter()
        self.done = False
        """Whether the server has sent `[DONE]`: no events follow."""

    def read(self, piece: bytes) -> Iterator[Any]:
        """Yield the objects of the events completed by a piece of the stream; b"" is the end of the stream.

        Raises:
            openai.APIError: an error came instead of an event.
            ValueError: an event is invalid.
        """
        for data in self._splitter.feed(piece) if piece else self._splitter.end():
            if data.startswith(_DONE):
                self.done = True
                return
            event = loads(data) if len(data) <= _SMALL else loads_few(data, _MOST_VALUES)
            if isinstance(event, dict) and event.get("error"):
                raise errors.of_frame(event["error"], self._request())
            yield self._build(event)
