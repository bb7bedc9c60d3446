"""The session of one WebSocket connection: the client's events in, the server's events out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...admission import Reservation
from ...config.limits import Limits
from ...core.errors import ApiError, bad_request
from ...core.owner import Owner
from ...core.shapes import Location, boolean
from ...core.types import Json
from ...generation.connection_options import ConnectionOptions
from ...generation.event_buffer import EventWriter
from ...generation.response_log import log_refused
from ...generation.run import ForegroundRun
from ...inputs.connection_memory import ConnectionMemory
from ...logs import get_logger
from ...service.responses import OpenAIResponsesImpl
from ...stream.events import Event
from ...stream.socket_events import refused
from .lanes import LaneLimits, Lanes, lane_of
from .steering import Steering, Successor, steered

Send = Callable[[list[Event], str | None], Awaitable[None]]
"""Sends events of a lane."""
Direct = Callable[[str | None], EventWriter | None]
"""Returns what sends deltas of a lane without waiting; None if nothing can."""

logger = get_logger(__name__)

_ENVELOPE: Final = frozenset({"type", "stream_id", "generate", "stream", "background"})
"""Fields of a request that are specific to the WebSocket, and fields of an HTTP request without meaning here."""
_READ_SECONDS: Final = 3600.0
"""Timeout of one read from the event buffer, in seconds. Pings keep the connection alive."""


class ClientGone(Exception):  # noqa: N818 (nothing went wrong here)
    """The client accepts no more events."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a connection, as identified by the host.

    Attributes:
        owner: the user.
        keys: the user's own API keys for providers.
    """

    owner: Owner
    keys: Mapping[str, Any]


class Session:
    """The state of a connection: remembered histories, running responses and queued requests.

    Args:
        impl: creates the responses.
        caller: the user who connected.
        admit: asks the host whether, and for which user, another response may be created. Raises `ApiError` if not.
        send: sends events. Raises `ClientGone`.
        direct: returns what sends deltas past `send`, while the client reads.
        reserve: creates the reservation for the data held for one response.
        histories: counts what the connection remembers.
    """

    def __init__(
        self,
        impl: OpenAIResponsesImpl,
        caller: Caller,
        admit: Callable[[], Awaitable[Caller]],
        send: Send,
        direct: Direct,
        reserve: Callable[[], Reservation],
        histories: Reservation,
    ) -> None:
        self._impl = impl
        self._caller = caller
        self._admit = admit
        self._send = send
        self._direct = direct
        self._reserve = reserve
        limits = impl.config.limits.websocket
        self._memory = ConnectionMemory(limits.remembered_bytes, histories)
        self._lanes = Lanes(_lane_limits(impl.config.limits), self._work)
        self._steering = Steering(limits.steers, limits.message_bytes)
        self._active_at = asyncio.get_running_loop().time()
        self._retired = False

    @property
    def too_old(self) -> ApiError:
        """The error for a request that arrives after the connection's maximum lifetime."""
        minutes = f"{self._impl.config.limits.websocket.lifetime_seconds / 60:g}"
        message = f"This connection has been open for {minutes} minutes, which is the maximum. Open a new one."
        return bad_request(message, code="websocket_connection_limit_reached")

    @property
    def idle_seconds(self) -> float:
        """Seconds without a request or a running response."""
        return 0.0 if self._lanes.busy else asyncio.get_running_loop().time() - self._active_at

    async def receive(self, event: Json, size: int, done: Callable[[], None]) -> None:
        """Handle an event of the client, of `size` bytes.

        Args:
            done: called when the event is no longer held.

        Raises:
            ClientGone: the answer cannot be sent to the client.
        """
        self._active_at = asyncio.get_running_loop().time()
        lane: str | None = None
        queued = False
        try:
            lane = lane_of(event)
            match event.get("type"):
                case "response.create":
                    self._lanes.put(lane, event, size, done)
                    queued = True
                case "response.steer":
                    answer, answer_lane = self._steering.steer(event, size)
                    await self._send([answer], answer_lane)
                case _:
                    raise bad_request(
                        "Invalid value for 'type': expected 'response.create' or 'response.steer'.",
                        "type",
                        "invalid_value",
                    )
        except ApiError as error:
            if event.get("type") == "response.create":
                self._forget_parent(event)
            if event.get("type") != "response.steer":
                self._impl.refusals.note(error, event, self._caller.owner)
            log_refused(error)
            await self._send([refused(error)], lane)
        finally:
            if not queued:
                done()

    async def finish(self) -> None:
        """Wait until all requests are done. When the server shuts down, the shutdown ends their responses."""
        await self._lanes.finish()

    def retire(self) -> None:
        """Refuse further requests: the connection has reached its maximum lifetime."""
        self._retired = True

    def abandon(self) -> None:
        """Cancel everything: the client has disconnected."""
        self._lanes.abandon()
        self._memory.close()

    async def _work(self, lane: str | None, event: Json) -> None:
        try:
            failed = await self._attempt(event, self._answer(lane, event))
            if isinstance(failed, ApiError):
                log_refused(failed)
                await self._send([refused(failed)], lane)
        except ClientGone:
            return  # the connection detects it in `send` and ends the session
        finally:
            self._active_at = asyncio.get_running_loop().time()

    async def _attempt[Result](self, body: Json, answer: Awaitable[Result]) -> Result | ApiError:
        """Return the result of answering the request `body`. If that fails, drop its parent and return the error."""
        try:
            return await answer
        except ApiError as error:
            failed = error
        except ClientGone:
            raise
        except Exception:
            logger.exception("response on a WebSocket connection failed")
            failed = ApiError(500, "The server had an error while processing your request.")
        self._impl.refusals.note(failed, body, self._caller.owner)
        self._forget_parent(body)
        return failed

    def _forget_parent(self, body: Json) -> None:
        """Drop the remembered history of the response that a failed request continued, as OpenAI does.

        Source: OpenAI's guide to the WebSocket mode, on `previous_response_id`.
        """
        parent = body.get("previous_response_id")
        if isinstance(parent, str):
            self._memory.forget(parent)

    async def _answer(self, lane: str | None, event: Json) -> None:
        """Create the response that the client requested, and the successors that steering triggers."""
        if event.get("background"):
            raise bad_request(
                "Unsupported parameter: 'background' is not supported on a WebSocket. Use HTTP for it.",
                "background",
                "unsupported_parameter",
            )
        generate = event.get("generate") is None or boolean(event["generate"], Location("generate"))
        body = {name: value for name, value in event.items() if name not in _ENVELOPE}
        parent = body.get("previous_response_id")
        steers = self._steering.queued(parent, lane)
        following = await self._respond(
            lane, steered(body, steers), generate=generate, commits=parent if steers else None
        )
        while following:
            following = await self._succeed(lane, following)

    async def _succeed(self, lane: str | None, successor: Successor) -> Successor | None:
        following = await self._attempt(successor.body, self._respond(lane, successor.body))
        if isinstance(following, ApiError):
            reports = self._steering.failed(successor.steers, "successor_creation_failed", following.message)
            await self._send(reports, lane)
            return None
        return following

    async def _respond(
        self, lane: str | None, body: Json, *, generate: bool = True, commits: str | None = None
    ) -> Successor | None:
        """Run one response and send its events.

        Args:
            commits: the response whose queued input is in `body`.

        Raises:
            ApiError: the response could not be started; no event of it was sent.
        """
        if self._impl.shutdown_coordinator.begun:
            raise ApiError(503, "The server is shutting down. Connect again.", retry_after=1)
        if self._retired:
            raise self.too_old
        caller = await self._admitted()
        connection = ConnectionOptions(self._memory, generate)
        with self._reserve() as reservation:
            with self._impl.access.acting_for(caller.owner, caller.keys):
                run = await self._impl.create_on_connection(body | {"stream": True}, connection, reservation.add)
            try:
                await run.begin()
                if commits:
                    self._steering.committed(commits)
                self._steering.began(run.response["id"], lane, body, connection.stop_point)
                await self._stream(run, lane)
            finally:
                run.abandon()
        if run.error:
            self._forget_parent(body)
            self._impl.refusals.note_unstored(run.error, body, caller.owner)
        reports, following = self._steering.ended(run.response)
        await self._send(reports, lane)
        return following

    async def _admitted(self) -> Caller:
        caller, now = self._caller, await self._admit()
        if (now.owner.principal, now.owner.tenant) != (caller.owner.principal, caller.owner.tenant):
            raise ApiError(401, "This connection's token now belongs to another user. Connect again.")
        return now

    async def _stream(self, run: ForegroundRun, lane: str | None) -> None:
        write = self._direct(lane)
        while (events := await run.event_buffer.get(_READ_SECONDS, write)) is not None:
            if run.error:
                events = [_nested(event, run.error) for event in events]
            await self._send(events, lane)


def _nested(event: Event, error: ApiError) -> Event:
    return refused(error, event["sequence_number"]) if event["type"] == "error" else event


def _lane_limits(limits: Limits) -> LaneLimits:
    on_socket = limits.websocket
    return LaneLimits(on_socket.responses, on_socket.waiting, limits.request_bytes, on_socket.streams)
