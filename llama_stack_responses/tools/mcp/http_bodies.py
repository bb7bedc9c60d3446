"""Size-limited reading of a server's HTTP bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from ...fetch.server_events import Event, EventParser, EventTooLarge, NameTooLong
from .failure import BAD_GATEWAY, BrokenConnection, Failure, too_large
from .incoming_messages import IncomingMessages
from .versions import http

_FREE_BYTES: Final = 65_536
"""Bytes of an unfinished answer that do not count as held."""

_LINES_PER_BATCH: Final = 256
"""Lines of a stream between two yields to the event loop."""

_MESSAGE: Final = b"message"
_ENDPOINT: Final = b"endpoint"
"""The event in which a server of the older SSE transport sends the URL for requests."""

_ENDPOINT_BYTES: Final = 8_192


class Body:
    """A body that fails if it is too large or ends too early.

    While it is open, what has arrived counts as held, up to the size of one answer.

    Args:
        response: the HTTP response.
        incoming: the session's limits and counters.
        max_bytes: maximum size.
        endpoint: whether an `endpoint` event is expected.
    """

    def __init__(self, response: Any, incoming: IncomingMessages, max_bytes: int, *, endpoint: bool = False) -> None:
        self._response = response
        self._incoming = incoming
        self._left = max_bytes
        self._uncounted = _FREE_BYTES
        self._counted = 0
        self._endpoint = endpoint

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            Failure: it is too large, or the connection broke.
        """
        try:
            async for chunk in self._response.stream:
                self._left -= len(chunk)
                if self._left < 0:
                    raise too_large()
                self._incoming.receive(len(chunk))
                self._hold(len(chunk))
                yield chunk
        except (http.TransportError, OSError) as error:
            message = f"The connection to the server broke ({type(error).__name__})."
            raise BrokenConnection(BAD_GATEWAY, message) from error

    async def read(self) -> bytes:
        """Return the whole body; it counts until the body is closed."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
        return bytes(body)

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events of a stream that the `mcp` package needs."""
        parser = EventParser(self._incoming.limits.answer_bytes)
        lines = 0
        async for chunk in self.chunks():
            for event in _parsed(parser, chunk):
                lines += 1
                if lines % _LINES_PER_BATCH == 0:
                    await asyncio.sleep(0)
                passed = event and await self._passed(event)
                if passed:
                    yield passed

    async def aclose(self) -> None:
        """Close the connection."""
        self._incoming.drop(self._counted)
        self._counted = 0
        await self._response.aclose()

    def _hold(self, size: int) -> None:
        free = min(size, self._uncounted)
        self._uncounted -= free
        further = min(size - free, self._incoming.limits.answer_bytes - self._counted)
        if further > 0:
            self._incoming.hold(further)
            self._counted += further

    async def _passed(self, event: Event) -> Event | None:
        if event.name == _ENDPOINT:
            first, self._endpoint = self._endpoint, False
            return event if first and len(event.data) <= _ENDPOINT_BYTES else None
        if not event.data:
            # An event with only an id updates the position for resumption.
            return event if event.id else None
        if event.name != _MESSAGE:
            return None
        data = await self._incoming.passed(event.data)
        return replace(event, data=data) if data else None


def _parsed(parser: EventParser, chunk: bytes) -> Iterator[Event | None]:
    try:
        yield from parser.feed(chunk)
    except NameTooLong:
        message = "The server's events have names or ids that are longer than this server allows."
        raise Failure(BAD_GATEWAY, message) from None
    except EventTooLarge:
        raise too_large() from None


class SessionEvents(http.AsyncByteStream):
    """The event stream of a session. Its failure does not answer a request.

    Args:
        body: the HTTP body.
        failed: called with the failure.
    """

    def __init__(self, body: Body, failed: Callable[[Failure], None]) -> None:
        self._body = body
        self._failed = failed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield each event as one chunk."""
        try:
            async for event in self._body.events():
                yield event.encoded()
        except Failure as failure:
            self._failed(failure)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._body.aclose()


class AnswerEvents(http.AsyncByteStream):
    """The event stream that answers a request. If it ends without an answer, an error answer is appended.

    A stream whose events have ids is left open to resumption by the package.

    Args:
        body: the HTTP body.
        error: converts a failure to an answer.
    """

    def __init__(self, body: Body, error: Callable[[Failure], bytes]) -> None:
        self._body = body
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield each event as one chunk."""
        resumable = False
        failure = Failure(BAD_GATEWAY, "The server did not answer.")
        try:
            async for event in self._body.events():
                resumable = resumable or bool(event.id)
                yield event.encoded()
        except Failure as error:
            failure = error
            resumable = resumable and isinstance(error, BrokenConnection)
        if not resumable:
            yield Event(_MESSAGE, self._error(failure)).encoded()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._body.aclose()
