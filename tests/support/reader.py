"""Clients that read a response's events in parts, disconnect, and resume.

with Reader.create(wire, model="local/m", input="Hi", background=True) as reader:
    reader.read_to("two ")                      # this delta has arrived
with Reader.of(wire, reader.response_id, reader.last) as again:
    check_stream(reader.events + again.read_to_end())
"""

from contextlib import AbstractContextManager
from typing import Self

import httpx
import pytest

from tests.support.sse import SseReader
from tests.support.wire import Json, Wire


class Reader:
    """One reader of one stream, for a `with` block; its end disconnects."""

    def __init__(self, asking: AbstractContextManager[httpx.Response]) -> None:
        """Create a reader; the request is sent at the start of the block."""
        self.events: list[Json] = []
        self._asking = asking
        self._reader = SseReader()

    @classmethod
    def create(cls, wire: Wire, **body: object) -> Self:
        """Return a reader of a new streamed response."""
        return cls(wire.http.stream("POST", "/responses", json=body | {"stream": True}))

    @classmethod
    def of(cls, wire: Wire, response_id: str, after: int | None = None) -> Self:
        """Return a reader of an existing response; only of events after number `after`, if given."""
        query = {"stream": "true"} if after is None else {"stream": "true", "starting_after": str(after)}
        return cls(wire.http.stream("GET", f"/responses/{response_id}", params=query))

    def __enter__(self) -> Self:
        """Send the request and wait for the headers."""
        answer = self._asking.__enter__()
        if answer.status_code != 200:
            answer.read()
            raise AssertionError(f"{answer.status_code}: {answer.text}")
        self._bytes = answer.iter_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._asking.__exit__(None, None, None)

    @property
    def response_id(self) -> str:
        """The id of the response, from the first event."""
        found: str = self.events[0]["response"]["id"]
        return found

    @property
    def last(self) -> int:
        """The number of the last received event."""
        number: int = self.events[-1]["sequence_number"]
        return number

    def read_to(self, end: str) -> None:
        """Read until this delta, or an event of this type, has arrived."""
        while not any(end in (event["type"], event.get("delta")) for event in self.events):
            self._take(next(self._bytes))

    def read_to_end(self) -> list[Json]:
        """Return all events; WireError unless the stream ends with `[DONE]`."""
        self.read_to_cut()
        self._reader.close()
        return self.events

    def read_to_cut(self) -> None:
        """Read until the server ends the stream."""
        for data in self._bytes:
            self._take(data)

    def read_to_death(self) -> None:
        """Read until the connection breaks."""
        with pytest.raises(httpx.TransportError):
            self.read_to_cut()

    @property
    def done(self) -> bool:
        """Whether `[DONE]` has arrived."""
        return self._reader.done

    def _take(self, data: bytes) -> None:
        self.events += [event for _, event in self._reader.feed(data)]
