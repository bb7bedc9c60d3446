"""The two forms of a response: a stream of events, and one JSON object."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import orjson
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..admission import Reservation
from ..core.errors import ApiError, OutcomeUnknown, forget_frames
from ..core.json_blocks import BLOCK_BYTES, blocks, dumps
from ..core.json_values import is_large
from ..generation.event_buffer import EventWriter
from ..generation.response_log import log_refused
from ..generation.run import ForegroundRun
from ..generation.shared_events import SharedEvents
from ..jobs.direct_delivery import WriteEvents
from ..logs import get_logger
from ..service.response_reader import ServerClosing
from ..stream.delta_forms import DeltaRun, LastForm
from ..stream.events import Event
from . import sse
from .direct_writer import DirectWriter
from .disconnects import gone
from .request_cycle import RequestCycle, cycle_of

logger = get_logger(__name__)

_LARGE_BYTES: Final = BLOCK_BYTES // 4
"""Bytes of a block after which others run: sending waits only for a client that does not keep up."""


class JsonResponse(Response):
    """A JSON answer.

    A large one is encoded in blocks, and other tasks run in between. The blocks count for the user until they are sent;
    if they are too many, the answer is a 429 or 503 instead.

    Args:
        content: the value.
        status: the HTTP status.
        headers: additional headers.
    """

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        large = is_large(content, BLOCK_BYTES)
        self._content = content if large else None
        super().__init__(None if large else content, status, headers)

    def render(self, content: Any) -> bytes:
        return dumps(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._content is None:
            await super().__call__(scope, receive, send)
            return
        try:
            encoded = await self._encoded(cycle_of(scope).answer_reservation)
        except ApiError as error:
            await self.refusal(error)(scope, receive, send)
            return
        self.headers["content-length"] = str(sum(map(len, encoded)))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while encoded:
            await _send_more(send, encoded.popleft())
        await send({"type": "http.response.body", "body": b""})

    def refusal(self, error: ApiError) -> JsonResponse:
        """Return the answer that is sent instead if too much is held."""
        return failure(error)

    async def _encoded(self, reservation: Reservation) -> deque[bytes]:
        """Return the blocks of the answer, and count them; the value is no longer held."""
        pieces: deque[bytes] = deque()
        size = 0
        for block in blocks(self._content):
            size += len(block)
            # A stored value counts already. An answer that alone is within the limit must not exceed it together with
            # its value, which it replaces.
            reservation.resize(max(reservation.units, size))
            pieces.append(block)
            await asyncio.sleep(0)
        self._content = None
        reservation.resize(size)
        return pieces


def failure(error: ApiError) -> JsonResponse:
    """Return the HTTP answer for an error."""
    headers = {**error.retry_headers, **error.headers}
    # OpenAI's clients retry after a 409, which they regard as a short lock, and after a 503. A retry could create a
    # second response where one may already exist.
    final = error.status == 409 or isinstance(error, OutcomeUnknown)
    headers |= {"x-should-retry": "false"} if final else {}
    return JsonResponse(error.body(), error.status, headers)


class _CreatedJsonResponse(JsonResponse):
    """A response that was created for the request, so that a retry would create another one."""

    def __init__(self, response: dict[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(response, headers=dict(headers))
        self._id = response["id"] if response["store"] else None

    def refusal(self, error: ApiError) -> JsonResponse:
        """Return the answer that is sent instead: it says where the response is."""
        where = (
            f"The response was created: retrieve '{self._id}'."
            if self._id
            else "The response was created, but it is not stored and cannot be sent."
        )
        message = f"{error.message} {where}"
        answer = failure(ApiError(error.status, message, code=error.code, retry_after=error.retry_after))
        answer.headers["x-should-retry"] = "false"
        return answer


class RunJsonResponse(Response):
    """Waits for a response and sends it whole."""

    def __init__(self, run: ForegroundRun) -> None:
        super().__init__()
        self._run: ForegroundRun | None = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(scope)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope) -> JsonResponse:
        # The run holds the whole response. It is not kept for as long as a client takes to read the answer.
        run, self._run = self._run, None
        assert run is not None
        cycle = cycle_of(scope)
        cycle.abandon_with_client(run.abandon)
        try:
            return _CreatedJsonResponse(await run.finish(), run.headers)
        except ApiError as error:
            forget_frames(error)  # the run keeps it
            if run.refused:
                log_refused(error)
            return failure(error)
        finally:
            cycle.abandon()


class RunEventsResponse(Response):
    """Sends a response's events as they occur. Events that are ready together are sent in one write."""

    def __init__(self, run: ForegroundRun) -> None:
        super().__init__(media_type="text/event-stream", headers=stream_headers() | dict(run.headers))
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = cycle_of(scope)
        cycle.abandon_with_client(self._run.abandon)
        try:
            await self._run.begin()
        except ApiError as error:
            forget_frames(error)  # the run keeps it
            log_refused(error)
            await failure(error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": self._head()})
        rest = partial(_send_events, self._run, cycle)
        if not cycle.send_later(rest):
            await rest()

    def _head(self) -> list[tuple[bytes, bytes]]:
        return [(name, value) for name, value in self.raw_headers if name != b"content-length"]


async def _send_events(run: ForegroundRun, cycle: RequestCycle) -> None:
    """Send the events of a response, after the head of the answer."""
    event_buffer, write = run.event_buffer, _events_past_asgi(cycle)
    while await event_buffer.filled(sse.KEEP_ALIVE_SECONDS, write):
        for block in _frames(event_buffer.ready()):
            await _send_more(cycle.send, block)
        del block  # It would be held while deltas are written past this task.
    # No [DONE] if the outcome is unknown: the stream is incomplete.
    await cycle.send({"type": "http.response.body", "body": b"" if run.unknown else sse.DONE})


class FinishedJsonResponse(Response):
    """Waits for a response that outlives its request, and sends it whole; ends when the client disconnects.

    Args:
        finished: waits for the response.
        headers: additional headers of the answer.
    """

    def __init__(self, finished: Coroutine[Any, Any, Any], headers: dict[str, str]) -> None:
        super().__init__()
        self._finished = finished
        self._extra = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if answer := await self._answer(receive):
            await answer(scope, receive, send)

    async def _answer(self, receive: Receive) -> JsonResponse | None:
        """Return the answer; None if the client has disconnected."""
        left, finished = asyncio.ensure_future(gone(receive)), asyncio.ensure_future(self._finished)
        try:
            await asyncio.wait([left, finished], return_when=asyncio.FIRST_COMPLETED)
            return JsonResponse(finished.result(), headers=self._extra) if finished.done() else None
        except ApiError as error:
            return failure(error)
        finally:
            left.cancel()
            finished.cancel()


class FollowedResponse(StreamingResponse):
    """A stream of the events of a response that may still run, which readers share in memory.

    It closes its iterators when it ends, however it ends. Otherwise the events would be held, and count for the user,
    until the cyclic garbage collector finds the traceback of the cancellation that refers to them.

    Args:
        batches: the events; an empty batch sends a keep-alive comment.
        headers: additional headers.
        head_sent: called when the head was sent.
    """

    def __init__(
        self,
        batches: AsyncGenerator[list[Event]],
        headers: Mapping[str, str] | None = None,
        head_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self._batches = batches
        self._frames = _frames_of(batches, head_sent)
        super().__init__(self._frames, media_type="text/event-stream", headers=stream_headers() | dict(headers or {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._batches), aclosing(self._frames):
            await super().__call__(scope, receive, send)


async def _frames_of(batches: AsyncIterator[list[Event]], head_sent: Callable[[], None]) -> AsyncGenerator[bytes]:
    head_sent()  # the first frame is asked for afterwards
    try:
        async for events in batches:
            for block in _frames(events):
                yield block
                if len(block) >= _LARGE_BYTES:
                    await asyncio.sleep(0)
    except ServerClosing:
        return  # No [DONE]: the client has to reconnect for the rest.
    except ApiError as error:
        logger.warning("could not read the events of a response, closing its stream: %s", error)
        yield sse.comment(error.message)
        return
    yield sse.DONE


def _events_past_asgi(cycle: RequestCycle) -> EventWriter | None:
    """Return what writes deltas directly to the client, whose head was sent; None if nothing can."""
    direct = cycle.direct_writer()
    return None if direct is None else _DirectEvents(direct)


def write_past_asgi(scope: Scope) -> WriteEvents | None:
    """Return what writes deltas that were encoded for several clients; None if nothing can."""
    direct = cycle_of(scope).direct_writer()
    return None if direct is None else partial(_write_shared, direct)


def _write_shared(direct: DirectWriter, events: SharedEvents) -> bool:
    frames = events.frames(_shared_frames)
    return frames is not None and direct.write(frames)


def _shared_frames(events: SharedEvents) -> bytes | None:
    if events.run is None:
        return sse.deltas(events.events, events.encoded())
    return sse.run(events.run.form.like["type"], events.json)


class _DirectEvents:
    """Writes deltas directly to a client.

    Args:
        direct: the client.
    """

    __slots__ = ("_direct", "_last")

    def __init__(self, direct: DirectWriter) -> None:
        self._direct = direct
        self._last = LastForm(sse.frame_form)

    def write(self, events: list[Event] | DeltaRun) -> bool:
        if isinstance(events, DeltaRun):
            frames = sse.small(b"".join(events.filled(self._last.of(events.form.like))))
        else:
            frames = sse.deltas(events)
        return frames is not None and self._direct.write(frames)

    def extend(self, like: Event, number: int, text: str) -> bool:
        frame = self._last.of(like) % (number, orjson.dumps(text))
        return self._direct.write(frame if text.isascii() else sse.without_line_separators(frame))


def _frames(events: list[Event]) -> Iterable[bytes]:
    """Return the events as blocks of bytes; for no events, a keep-alive comment."""
    return sse.pieces(events) if events else (sse.KEEP_ALIVE,)


def stream_headers() -> dict[str, str]:
    """Return the headers of a stream of events."""
    # Without `x-accel-buffering`, nginx buffers the events until its buffer is full.
    return {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def _send_more(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if len(body) >= _LARGE_BYTES:
        await asyncio.sleep(0)
