"""The bodies of a server's answers, read within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

from .events import Event, EventReader
from .failure import BAD_GATEWAY, Broken, Failure, too_large
from .incoming import Incoming
from .versions import http

_LINES_AT_ONCE: Final = 256
"""Lines of a stream after which other work of the event loop has its turn."""

_MESSAGE: Final = b"message"
_ENDPOINT: Final = b"endpoint"
"""The event in which a server of the older transport says where requests go."""

_ENDPOINT_BYTES: Final = 8_192


class Body:
    """A body that fails where it grows too large, or ends too early.

    Args:
        response: whose body it is.
        incoming: counts what comes in the session.
        max_bytes: its size, at most.
        endpoint: whether it says where requests go.
    """

    def __init__(self, response: Any, incoming: Incoming, max_bytes: int, *, endpoint: bool = False) -> None:
        self._response = response
        self._incoming = incoming
        self._left = max_bytes
        self._endpoint = endpoint

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            Failure: it is too large, or broke.
        """
        try:
            async for chunk in self._response.stream:
                self._left -= len(chunk)
                if self._left < 0:
                    raise too_large()
                self._incoming.receive(len(chunk))
                yield chunk
        except (http.TransportError, OSError) as error:
            message = f"The connection to the server broke ({type(error).__name__})."
            raise Broken(BAD_GATEWAY, message) from error

    async def read(self) -> bytes:
        """The whole body."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
        return bytes(body)

    async def events(self) -> AsyncIterator[Event]:
        """The events of a stream that the package needs."""
        reader = EventReader(self._incoming.limits.answer_bytes)
        lines = 0
        async for chunk in self.chunks():
            for event in reader.feed(chunk):
                lines += 1
                if lines % _LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                passed = event and await self._passed(event)
                if passed:
                    yield passed

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._response.aclose()

    async def _passed(self, event: Event) -> Event | None:
        if event.name == _ENDPOINT:
            first, self._endpoint = self._endpoint, False
            return event if first and len(event.data) <= _ENDPOINT_BYTES else None
        if not event.data:
            # It says where the stream can be taken up again.
            return event if event.id else None
        if event.name != _MESSAGE:
            return None
        data = await self._incoming.passed(event.data)
        return replace(event, data=data) if data else None


class SessionEvents(http.AsyncByteStream):
    """The events of a session. Its failure is no answer to a request.

    Args:
        body: what comes.
        failed: is called with a failure.
    """

    def __init__(self, body: Body, failed: Callable[[Failure], None]) -> None:
        self._body = body
        self._failed = failed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The events, each as one piece."""
        try:
            async for event in self._body.events():
                yield event.encoded()
        except Failure as failure:
            self._failed(failure)

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._body.aclose()


class AnswerEvents(http.AsyncByteStream):
    """The events that answer a request. A stream that ends without an answer gets one that says so.

    One whose events have ids can be taken up again, which the package does by itself.

    Args:
        body: what comes.
        error: makes the answer of a failure.
    """

    def __init__(self, body: Body, error: Callable[[Failure], bytes]) -> None:
        self._body = body
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The events, each as one piece."""
        resumable = False
        failure = Failure(BAD_GATEWAY, "The server did not answer.")
        try:
            async for event in self._body.events():
                resumable = resumable or bool(event.id)
                yield event.encoded()
        except Failure as error:
            failure = error
            resumable = resumable and isinstance(error, Broken)
        if not resumable:
            yield Event(_MESSAGE, self._error(failure)).encoded()

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._body.aclose()
