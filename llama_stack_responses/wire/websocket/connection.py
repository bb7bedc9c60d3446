"""The WebSocket at `/v1/responses`: the handshake, and events as JSON in text messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from ...core.errors import ApiError
from ...core.json_blocks import BLOCK_BYTES, blocks, dumps
from ...core.json_values import is_large
from ...generation.event_buffer import EventWriter
from ...generation.response_log import log_refused
from ...logs import get_logger
from ...service.responses import OpenAIResponsesImpl
from ...stream.delta_forms import DeltaRun, LastForm, delta_form
from ...stream.events import Event
from ...stream.socket_events import refused
from ..direct_writer import pass_bodies
from ..http_responses import failure
from ..request_bodies import too_large
from ..request_headers import known, request_id
from ..route_admission import RouteAdmission
from .incoming import Incoming, incoming_of
from .session import Caller, ClientGone, Session

logger = get_logger(__name__)


class HandshakeRefused(Exception):  # noqa: N818 (an answer, as the host words it)
    """The host refused a request.

    Args:
        status: the HTTP status of its answer.
        headers: the headers of its answer.
        body: the body of its answer.
        error: the same as an error event for an open connection.
    """

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, error: ApiError) -> None:
        super().__init__(error.message)
        self.status = status
        self.headers = headers
        self.body = body
        self.error = error


class ConnectionAuthorizer(Protocol):
    """Authorizes WebSocket connections through the host."""

    async def admit(self, scope: Scope, method: str) -> Caller:
        """Return the caller, if the host would accept a request with this method and the headers of this handshake.

        Raises:
            HandshakeRefused: the host would not.
        """
        ...


@dataclass(frozen=True, slots=True)
class _End:
    """Code and reason of the close message; the code is None if the client has already disconnected."""

    code: int | None
    reason: str = ""


_REASON_CHARACTERS: Final = 120
"""Maximum characters of the reason in a close message, which has at most 123 bytes."""
_LEFT: Final = _End(None)
_TOO_BIG: Final = _End(1009, "The message is too large.")
_IDLE: Final = _End(1001, "No request was received for a long time.")
_OLD: Final = _End(1001, "The connection has reached its maximum duration. Connect again.")
_SHUTDOWN: Final = _End(1012, "The server is shutting down. Connect again.")


def socket_route(
    impl: OpenAIResponsesImpl, authorizer: ConnectionAuthorizer, limits: RouteAdmission
) -> Callable[[WebSocket], Awaitable[None]]:
    """Return the handler of WebSocket handshakes; `limits` bounds connections and messages."""

    async def handle(websocket: WebSocket) -> None:
        impl.start()
        try:
            caller = await authorizer.admit(websocket.scope, "GET")
        except HandshakeRefused as refusal:
            answer = Response(refusal.body, refusal.status, dict(refusal.headers))
            await websocket.send_denial_response(answer)
            return
        try:
            reservation = limits.stream(caller.owner)
        except ApiError as error:
            impl.refusals.note(error, owner=caller.owner)
            await websocket.send_denial_response(failure(error))
            return
        own_id = request_id(websocket.scope)
        arriving = limits.bodies.reserve(caller.owner)
        with known(websocket.scope, own_id), limits.working_for(caller.owner), reservation, arriving, impl.sockets:
            if incoming := incoming_of(websocket.scope):
                incoming.count_for(caller.owner.identity, arriving, impl.config.limits.bodies.seconds)
            await websocket.accept(headers=[(b"x-request-id", own_id.encode())])
            await _Connection(impl, authorizer, limits, websocket, caller).run()

    return handle


class _Connection:
    """One connection."""

    def __init__(
        self,
        impl: OpenAIResponsesImpl,
        authorizer: ConnectionAuthorizer,
        limits: RouteAdmission,
        websocket: WebSocket,
        caller: Caller,
    ) -> None:
        self._impl = impl
        self._authorizer = authorizer
        self._answer_limits = limits
        self._bodies = bodies = limits.bodies
        self._owner = caller.owner
        self._websocket = websocket
        self._limits = impl.config.limits.websocket
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[_End] = loop.create_future()
        self._aging = loop.call_later(self._limits.lifetime_seconds, self._limit_lifetime)
        self._session = Session(
            impl,
            caller,
            self._admit,
            self._send,
            self._direct,
            lambda: bodies.reserve(self._owner),
            limits.histories(self._owner),
        )

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        try:
            with self._impl.shutdown_coordinator.register(lambda: self._end(_SHUTDOWN)):
                end = await self._ended
                if end is _SHUTDOWN:
                    await self._session.finish()
                elif end is _OLD:
                    await self._close_expired(reading)
                self._session.abandon()
                await self._close(end)
        finally:
            self._aging.cancel()
            self._session.abandon()
            reading.cancel()

    def _limit_lifetime(self) -> None:
        self._session.retire()
        self._end(_OLD)

    async def _close_expired(self, reading: asyncio.Task[None]) -> None:
        """Wait until the running responses end or the client disconnects, then send the error about the lifetime."""
        finishing = asyncio.create_task(self._session.finish())
        await asyncio.wait([finishing, reading], return_when=asyncio.FIRST_COMPLETED)
        with suppress(ClientGone):
            await self._send([refused(self._session.too_old)], None)

    def _end(self, end: _End) -> None:
        if not self._ended.done():
            self._ended.set_result(end)

    async def _close(self, end: _End) -> None:
        if end.code is not None:
            with suppress(RuntimeError, WebSocketDisconnect):  # the client closed first
                await self._websocket.close(end.code, end.reason)

    async def _admit(self) -> Caller:
        try:
            return await self._authorizer.admit(self._websocket.scope, "POST")
        except HandshakeRefused as refusal:
            raise refusal.error from refusal

    async def _read(self) -> None:
        try:
            while (message := await self._next()) is not None:
                if len(message) > self._limits.message_bytes:
                    self._impl.refusals.note(too_large(self._limits.message_bytes), owner=self._owner)
                    self._end(_TOO_BIG)
                    return
                await self._receive(message)
                del message  # It would be held until the next one arrives.
                # Thousands of messages may be buffered already: without this, they would block the event loop.
                await asyncio.sleep(0)
        except ClientGone:
            return
        except Exception:
            logger.exception("could not read from a WebSocket connection")
            self._end(_End(1011, "The server had an error."))

    async def _receive(self, message: bytes) -> None:
        reservation = self._bodies.reserve(self._owner)
        try:
            event = await self._bodies.decode(message, reservation.add(len(message)))
        except ApiError as error:
            reservation.release()
            self._impl.refusals.note(error, owner=self._owner)
            log_refused(error)
            await self._send([refused(error)], None)
            return
        except BaseException:
            reservation.release()
            raise
        await self._session.receive(event, len(message), reservation.release)

    async def _next(self) -> bytes | None:
        """Return the next message, or None if there are no more."""
        while (left := self._limits.idle_seconds - self._session.idle_seconds) > 0:
            try:
                async with asyncio.timeout(left):
                    message = await self._websocket.receive()
            except TimeoutError:
                continue
            if message["type"] != "websocket.receive":
                self._end(_LEFT)
                return None
            text: str | None = message.get("text")
            return message["bytes"] if text is None else text.encode()
        self._end(_IDLE)
        return None

    async def _send(self, events: list[Event], lane: str | None) -> None:
        """Send each event as a message.

        Raises:
            ClientGone: the client takes no events, and the connection ends.
        """
        named = {} if lane is None else {"stream_id": lane}
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as timeout:
                for event in events:
                    timeout.reschedule(loop.time() + self._limits.unread_seconds)
                    await self._send_one(await encoded(event | named if named else event))
        except ApiError as error:
            self._end(_End(1013, error.message[:_REASON_CHARACTERS]))
            raise ClientGone from error
        except (OSError, RuntimeError, WebSocketDisconnect) as error:  # a timeout is an OSError
            self._end(_LEFT)
            raise ClientGone from error

    def _direct(self, lane: str | None) -> EventWriter | None:
        """Return what sends deltas of a lane without waiting; None if the server or a middleware is not known."""
        scope = self._websocket.scope
        incoming = incoming_of(scope)
        if incoming is None or not pass_bodies(scope.get("app")):
            return None
        return _DirectMessages(incoming, {} if lane is None else {"stream_id": lane})

    async def _send_one(self, message: str) -> None:
        """Send a message. A large one counts as a large answer until the client has read most of it.

        Raises:
            ApiError: 429 or 503, too much is being sent.
        """
        if len(message) <= BLOCK_BYTES:
            await self._websocket.send_text(message)
            return
        with self._answer_limits.large_answer(self._owner).add(len(message)):
            await self._websocket.send_text(message)
            del message
            if incoming := incoming_of(self._websocket.scope):
                await incoming.drained()


class _DirectMessages:
    """Sends deltas as messages without waiting.

    Args:
        incoming: the connection.
        named: additional members of each event.
    """

    __slots__ = ("_incoming", "_last", "_named")

    def __init__(self, incoming: Incoming, named: Event) -> None:
        self._incoming = incoming
        self._named = named
        self._last = LastForm(lambda like: delta_form(like | named))

    def write(self, events: list[Event] | DeltaRun) -> bool:
        if isinstance(events, DeltaRun):
            messages = events.filled(self._last.of(events.form.like))
        elif all("delta" in event for event in events):
            messages = [dumps(event | self._named if self._named else event) for event in events]
        else:
            return False
        return max(map(len, messages)) <= BLOCK_BYTES and self._incoming.write(messages)

    def extend(self, like: Event, number: int, text: str) -> bool:
        return self._incoming.write((self._last.of(like) % (number, orjson.dumps(text)),))


async def encoded(event: Event) -> str:
    """Return an event as JSON. Others run while a large one is encoded."""
    # A delta is small, and there are many: only other events are measured before they are encoded.
    if "delta" in event or not is_large(event, BLOCK_BYTES):
        return dumps(event).decode()
    text = ""
    for block in blocks(event):
        text += block.decode()  # it grows in place
        await asyncio.sleep(0)
    return text
