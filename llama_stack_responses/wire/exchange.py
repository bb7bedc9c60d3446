"""One HTTP request and its answer: what they hold, and whether the client still reads and writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Self

from starlette.types import Message, Receive, Scope, Send

from llama_stack_responses.admission import Lease

_KEY: Final = "llama_stack_responses.exchange"
"""Where in a request's scope its exchange stands."""

_DRAINED: Final = 65_536
"""Bytes of an unread body that the server may read and drop to keep a connection."""

_DIGITS: Final = 18
"""Digits of a length that a server may have let through without a look."""

_LOOKS: Final = 4
"""How often within the time that a client may take nothing it is looked whether it takes something."""


class Exchange:
    """A request and its answer. As a context manager, it gives back what it holds.

    The head of the answer says the request's id and how long it took until then. A client that reads nothing for too
    long loses its connection, and then everything that waits for it ends as if the client had left. So does one that
    is refused while most of its body is still to come: the server would read that to its end.

    Args:
        scope, receive, send: the request's.
        request_id: its id.
        unread_seconds: how long the client may take nothing of what it is sent.
        break_off: ends the connection of a scope without waiting for the client.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        request_id: str,
        unread_seconds: float,
        break_off: Callable[[Scope], None],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._unread_seconds = unread_seconds
        self._break_off = break_off
        self._loop = asyncio.get_running_loop()
        self._began = perf_counter()
        self._waits_since: float | None = None
        self._unread = _has_large_body(scope)
        self._lease: Lease | None = None
        self._held: list[Lease] = []
        self._timer = self._loop.call_later(unread_seconds / _LOOKS, self._look)
        self.started = False
        scope[_KEY] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for lease in self._held:
            lease.release()

    def lease(self, make: Callable[[], Lease]) -> Lease:
        """What the request's body holds, until its answer has gone out; `make` makes the lease of the first call."""
        self._lease = self._lease or self.hold(make())
        return self._lease

    def hold(self, lease: Lease) -> Lease:
        """Releases the lease when the answer has gone out."""
        self._held.append(lease)
        return lease

    def break_off(self) -> None:
        """Ends the connection at once: what was sent so far is not the whole answer."""
        self._break_off(self._scope)

    async def receive(self) -> Message:
        """The next message of the client."""
        message = await self._receive()
        if not message.get("more_body"):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """Sends a message of the answer."""
        if message["type"] == "http.response.start":
            self._begin(message)
        self._waits_since = self._loop.time()
        await self._send(message)
        self._waits_since = None

    def _begin(self, message: Message) -> None:
        self.started = True
        took = round((perf_counter() - self._began) * 1000)
        own = [(b"x-request-id", self._request_id.encode()), (b"openai-processing-ms", b"%d" % took)]
        if self._unread:
            own.append((b"connection", b"close"))
        message["headers"] = [*message["headers"], *own]

    def _look(self) -> None:
        if self._waits_since is not None and self._loop.time() - self._waits_since >= self._unread_seconds:
            self.break_off()
            return
        self._timer = self._loop.call_later(self._unread_seconds / _LOOKS, self._look)


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that a request belongs to."""
    found: Any = scope[_KEY]
    assert isinstance(found, Exchange)
    return found


def _has_large_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or len(length) > _DIGITS or int(length) > _DRAINED
