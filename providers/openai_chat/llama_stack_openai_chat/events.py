"""A model server's stream, from bytes to what is built from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx2

from . import errors
from .body import loads
from .frames import FrameSplitter

_DONE: Final = b"[DONE]"


class EventReader:
    """Reads one stream.

    Args:
        build: makes what is read of an event's JSON; a ValueError of it says that it is not what it should be.
        request: what an error has of the request that the stream answers.
    """

    def __init__(self, build: Callable[[Any], Any], request: Callable[[], httpx2.Request]) -> None:
        self._build = build
        self._request = request
        self._splitter = FrameSplitter()
        self.done = False
        """Whether the server has said that no event comes after those that were read."""

    def read(self, piece: bytes) -> Iterator[Any]:
        """What is built from the events that a piece of the stream ends, or the end of the stream, which is b"".

        Raises:
            openai.APIError: an error came in the place of an event.
            ValueError: an event is not what it should be.
        """
        for data in self._splitter.feed(piece) if piece else self._splitter.end():
            if data.startswith(_DONE):
                self.done = True
                return
            event = loads(data)
            if isinstance(event, dict) and event.get("error"):
                raise errors.of_frame(event["error"], self._request())
            yield self._build(event)
