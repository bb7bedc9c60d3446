"""The cycle of an HTTP request: the resources that it and its answer hold, and a limit for clients that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from time import perf_counter
from typing import Any, Final, Self

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from ..admission import Reservation
from ..logs import get_logger
from .after_routes import after_routes
from .direct_writer import DirectWriter, direct_writer
from .disconnects import ClientWatch, watch_client
from .request_headers import has_large_body, known

logger = get_logger(__name__)

_KEY: Final = "llama_stack_responses.request_cycle"
"""Key of the cycle in the scope of its request."""

_CHECKS_PER_LIMIT: Final = 4
"""Checks per `unread_seconds` for whether the client reads."""


def log_failure(scope: Scope, error: Exception) -> None:
    """Log that a request failed with an unexpected error."""
    logger.error("request failed: %s %r", scope["method"], scope["path"], exc_info=error, stacklevel=2)


class RequestCycle:
    """A request and its answer. As a context manager, it releases the resources that they hold.

    It adds the request id and the processing time to the answer's headers. It breaks off the connection of a client
    that reads nothing for too long; everything that waits for that client then ends as if the client had disconnected.
    It closes the connection after an answer that is sent before a large body has arrived completely, because the server
    would otherwise read that body to its end.

    Args:
        scope, receive, send: those of the request.
        request_id: the id of the request.
        unread_seconds: maximum time for which the client may read nothing.
        abort_connection: closes the connection of a scope without waiting for the client.
        reserve_answer: creates the reservation for the bytes of a large answer.

    Attributes:
        started: whether the head of the answer was sent.
    """

    __slots__ = (
        "_abandon",
        "_abort_connection",
        "_answer_reservation",
        "_began",
        "_body_is_incomplete",
        "_body_reservation",
        "_loop",
        "_receive",
        "_request_id",
        "_reservations",
        "_reserve_answer",
        "_rest",
        "_scope",
        "_send",
        "_sending_since",
        "_timer",
        "_unread_seconds",
        "_watch",
        "started",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        request_id: str,
        unread_seconds: float,
        abort_connection: Callable[[Scope], None],
        reserve_answer: Callable[[], Reservation],
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._unread_seconds = unread_seconds
        self._abort_connection = abort_connection
        self._reserve_answer = reserve_answer
        self._answer_reservation: Reservation | None = None
        self._loop = asyncio.get_running_loop()
        self._began = perf_counter()
        self._sending_since: float | None = None
        self._body_is_incomplete = has_large_body(scope)
        self._body_reservation: Reservation | None = None
        self._reservations: list[Reservation] = []
        self._timer: asyncio.TimerHandle | None = None
        self._abandon: Callable[[], object] | None = None
        self._watch: ClientWatch | None = None
        self._rest: Callable[[], Awaitable[None]] | None = None
        self.started = False
        scope[_KEY] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rest is None:
            self.close()

    def close(self) -> None:
        """Release the resources."""
        self.abandon()
        if self._timer:
            self._timer.cancel()
        for reservation in self._reservations:
            reservation.release()
        # The scope and this object refer to each other: without that, they are freed without garbage collection.
        self._scope.pop(_KEY, None)

    def body_reservation(self, make: Callable[[], Reservation]) -> Reservation:
        """Return the reservation for the request's body, held until the answer has been sent; `make` creates it."""
        self._body_reservation = self._body_reservation or self.hold(make())
        return self._body_reservation

    @property
    def answer_reservation(self) -> Reservation:
        """The reservation for the bytes of a large answer, held until the answer has been sent."""
        self._answer_reservation = self._answer_reservation or self.hold(self._reserve_answer())
        return self._answer_reservation

    def hold(self, reservation: Reservation) -> Reservation:
        """Release this reservation when the answer has been sent."""
        self._reservations.append(reservation)
        return reservation

    def abort_connection(self) -> None:
        """Close the connection at once, so that the client notices that the answer is incomplete."""
        self._abort_connection(self._scope)

    def direct_writer(self) -> DirectWriter | None:
        """Return what writes to the client past ASGI, once the head of the answer was sent; None if nothing can."""
        return direct_writer(self._scope, self._receive)

    def abandon_with_client(self, abandon: Callable[[], object]) -> None:
        """Call `abandon` if the client disconnects, or when the cycle ends; the request's body has been read."""
        self._abandon, self._watch = abandon, watch_client(self._receive, abandon)

    def abandon(self) -> None:
        """Call the function that was given to `abandon_with_client`, if any, and do not watch the client any more."""
        abandon, watch = self._abandon, self._watch
        self._abandon = self._watch = None
        if watch:
            watch.stop()
        if abandon:
            abandon()

    def send_later(self, rest: Callable[[], Awaitable[None]]) -> bool:
        """Have the rest of the answer, whose head was sent, sent after the routes have returned, if that is possible.

        Return False if the caller has to send it.
        """
        after = after_routes(self._scope)
        if after is None:
            return False
        self._rest = rest
        after.rest = self
        return True

    def send_rest(self, receive: Receive, send: Send) -> Awaitable[None]:
        """Send the rest of the answer that was given to `send_later`."""
        # Those of the routes would hold what the middlewares around them hold.
        self._receive, self._send = receive, send
        rest, self._rest = self._rest, None
        assert rest
        return rest()

    def fail(self, error: Exception) -> None:
        """Log why the rest of the answer cannot be sent, and break it off."""
        with known(self._scope, self._request_id):
            log_failure(self._scope, error)
        self.abort_connection()

    async def receive(self) -> Message:
        """Return the next message of the client."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._body_is_incomplete = False
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        if message["type"] == "http.response.start":
            self._begin(message)
        self._sending_since = self._loop.time()
        if self._timer is None:
            self._plan_check()
        await self._send(message)
        self._sending_since = None

    def _begin(self, message: Message) -> None:
        self.started = True
        took = round((perf_counter() - self._began) * 1000)
        own = [(b"x-request-id", self._request_id.encode()), (b"openai-processing-ms", b"%d" % took)]
        if self._body_is_incomplete:
            own.append((b"connection", b"close"))
        message["headers"] = [*message["headers"], *own]

    def _plan_check(self) -> None:
        self._timer = self._loop.call_later(self._unread_seconds / _CHECKS_PER_LIMIT, self._check_client)

    def _check_client(self) -> None:
        """Break off the connection if the client has read nothing for too long; check again while something is sent."""
        self._timer = None
        if self._sending_since is None:
            return
        if self._loop.time() - self._sending_since >= self._unread_seconds:
            self.abort_connection()
        else:
            self._plan_check()


def cycle_of(scope: Scope) -> RequestCycle:
    """Return the cycle of a request."""
    cycle: Any = scope[_KEY]
    assert isinstance(cycle, RequestCycle)
    return cycle


async def while_connected[T](scope: Scope, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work for the answer to a request, whose body has been read; it ends if the client leaves.

    Raises:
        ClientDisconnect: the client has left.
    """
    task, current = asyncio.ensure_future(work), asyncio.current_task()
    cycle_of(scope).abandon_with_client(task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if current and current.cancelling():
            raise
        raise ClientDisconnect from None
