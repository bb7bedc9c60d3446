"""Clients that read a response's events a bit at a time, leave, and come back for the rest.

with Reader.asking(wire, model="local/m", input="Hi", background=True) as reader:
    reader.read_to("two ")                      # this delta has come
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
    """One reader of one stream; use it in a `with` block, and leave that to leave the stream."""

    def __init__(self, asking: AbstractContextManager[httpx.Response]) -> None:
        """Nothing is asked yet."""
        self.events: list[Json] = []
        self._asking = asking
        self._reader = SseReader()

    @classmethod
    def asking(cls, wire: Wire, **body: object) -> Self:
        """Of a new response, which is streamed."""
        return cls(wire.http.stream("POST", "/responses", json=body | {"stream": True}))

    @classmethod
    def of(cls, wire: Wire, response_id: str, after: int | None = None) -> Self:
        """Of one that is there; only of what comes behind number `after`, if that is given."""
        query = {"stream": "true"} if after is None else {"stream": "true", "starting_after": str(after)}
        return cls(wire.http.stream("GET", f"/responses/{response_id}", params=query))

    def __enter__(self) -> Self:
        """Ask, and wait for the headers."""
        answer = self._asking.__enter__()
        if answer.status_code != 200:
            answer.read()
            raise AssertionError(f"{answer.status_code}: {answer.text}")
        self._bytes = answer.iter_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave."""
        self._asking.__exit__(None, None, None)

    @property
    def response_id(self) -> str:
        """The id of the response, which the first event names."""
        found: str = self.events[0]["response"]["id"]
        return found

    @property
    def last(self) -> int:
        """The number of the last event that came."""
        number: int = self.events[-1]["sequence_number"]
        return number

    def read_to(self, end: str) -> None:
        """Read until this delta, or an event of this type, has come."""
        while not any(end in (event["type"], event.get("delta")) for event in self.events):
            self._take(next(self._bytes))

    def read_to_end(self) -> list[Json]:
        """All events; WireError unless they end with `[DONE]`."""
        self.read_to_cut()
        self._reader.close()
        return self.events

    def read_to_cut(self) -> None:
        """Read what comes until the server ends the answer."""
        for data in self._bytes:
            self._take(data)

    def read_to_death(self) -> None:
        """Read what comes until the connection breaks."""
        with pytest.raises(httpx.TransportError):
            self.read_to_cut()

    @property
    def done(self) -> bool:
        """Whether `[DONE]` has come."""
        return self._reader.done

    def _take(self, data: bytes) -> None:
        self.events += [event for _, event in self._reader.feed(data)]
