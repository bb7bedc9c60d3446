"""Request bodies: reading with limits on size, time and memory, and decoding with a limit on values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from ..admission import Admission, Quota, Reservation
from ..concurrency.large_work import LargeWork
from ..concurrency.offloading import in_thread
from ..config.limits import Limits
from ..core import json_decoding
from ..core.errors import ApiError, bad_request
from ..core.json_values import VALUE_BYTES, count_values
from ..core.owner import Owner
from ..core.shapes import excerpt
from .request_cycle import cycle_of
from .request_headers import body_length

DECODED: Final = "llama_stack_responses.decoded_body"
"""Key, in the scope of a request whose body is decompressed, of what does that: it knows why a body was refused."""

_JSON: Final = "application/json"

_MIN_BYTES_PER_SECOND: Final = 16_384
"""Bytes per second. A body that arrives faster has no time limit."""

_SMALL_BYTES: Final = 65_536
"""Bytes up to which a body is decoded at once. The values of a larger body are counted in a thread first."""

_INLINE_VALUES: Final = 10_000
_INLINE_BYTES: Final = 2**20
"""Values and bytes that the event loop decodes at once, in a millisecond or two; a thread decodes more."""


class Bodies:
    """Reads the bodies of requests.

    A body counts as held by the user who sent it until the answer has been sent.

    Args:
        limits: sizes, times and counts.
        current_user: returns the user of the current request.
        large_work: decodes large bodies.
    """

    def __init__(self, limits: Limits, current_user: Callable[[], Owner], large_work: LargeWork) -> None:
        held = limits.bodies
        self._limits = limits
        self._current_user = current_user
        self._large_work = large_work
        self._admission = Admission(Quota("request bodies", held.total_bytes, held.bytes_per_user))

    @property
    def held(self) -> int:
        """Bytes that all requests hold now."""
        return self._admission.held

    def reserve(self, owner: Owner | None = None) -> Reservation:
        """Return an empty reservation for this user, by default the current one. The caller must release it."""
        return self._admission.reserve(owner or self._current_user())

    def hold(self, request: Request) -> Callable[[int], object]:
        """Return a function that counts bytes of stored data as held for the request.

        The function raises `ApiError` 429 or 503 if too much is held.
        """
        return cycle_of(request.scope).body_reservation(self.reserve).add

    async def read(self, request: Request) -> bytearray:
        """Return the body.

        Raises:
            ApiError: 413 if it is too large; 408 if it arrives too slowly; 429 or 503 if too much is held.
            ClientDisconnect: the client disconnected.
        """
        body = bytearray()  # grows in place; joining megabytes at the end would block the event loop
        reading = self._reading(request, self._limits.request_bytes)
        while reading.more:
            body += await reading.next_piece()
        return body

    async def json(self, request: Request, *, optional: bool = False) -> dict[str, Any]:
        """Return the body, decoded as a JSON object. An empty body is allowed if `optional`.

        Raises:
            ApiError: as from `read`; 400 if the body is not a JSON object, holds too many values or is declared
                as something else.
            ClientDisconnect: the client disconnected.
        """
        _check_json(request)
        body = await self.read(request)
        if optional and not body:
            return {}
        if body and "content-type" not in request.headers:
            raise _undeclared("The request's body has no content type")
        return await self.decode(body, cycle_of(request.scope).body_reservation(self.reserve))

    async def pieces(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """Yield the body in pieces as it arrives, up to `limit` bytes.

        Raises:
            ApiError: as from `read`.
            ClientDisconnect: the client disconnected.
        """
        reading = self._reading(request, limit)
        while reading.more:
            if piece := await reading.next_piece():
                yield piece

    def _reading(self, request: Request, limit: int) -> _Reading:
        check_length(request.scope, limit)
        reservation = cycle_of(request.scope).body_reservation(self.reserve)
        return _Reading(request, limit, reservation, self._limits.bodies.seconds)

    async def decode(self, body: bytes | bytearray, reservation: Reservation) -> dict[str, Any]:
        """Decode a JSON object that a client sent, and count the memory of its values on `reservation`.

        Raises:
            ApiError: 400 if it is not a JSON object or holds too many values; 429 or 503 if too much is held, or if too
                many large requests of this user wait.
        """
        max_values = self._limits.bodies.json_values
        if len(body) <= min(max_values, _SMALL_BYTES):
            return decode(body)
        values = await in_thread(count_values, body, max_values)
        if values > max_values:
            message = f"The JSON body of your request contains more than {max_values} values. Send fewer at a time."
            raise bad_request(message, code="request_too_large")
        reservation.add(values * VALUE_BYTES)
        if values <= _INLINE_VALUES and len(body) <= _INLINE_BYTES:
            return decode(body)
        # A decoder in one call would keep the interpreter lock, also from a thread.
        return await self._large_work.run_in_thread(partial(decode, body, json_decoding.loads))


class _Reading:
    """A body while it is read; a generator would cost more than reading most bodies does.

    Args:
        request: the request.
        limit: maximum number of bytes.
        reservation: counts what was read.
        seconds: time for a body that arrives slowly.

    Attributes:
        more: whether pieces may follow.
    """

    __slots__ = ("_deadline", "_limit", "_request", "_reservation", "_size", "more")

    def __init__(self, request: Request, limit: int, reservation: Reservation, seconds: float) -> None:
        self._request, self._limit, self._reservation = request, limit, reservation
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._size = 0
        self.more = True

    async def next_piece(self) -> bytes:
        """Return the next piece, which may be empty.

        Raises:
            ApiError, ClientDisconnect: as from `Bodies.read`.
        """
        message = await _next_message(self._request, self._deadline)
        piece: bytes = message.get("body", b"")
        self.more = message.get("more_body", False)
        self._size += len(piece)
        if self._size > self._limit:
            raise too_large(self._limit)
        self._deadline += len(piece) / _MIN_BYTES_PER_SECOND
        if piece:
            self._reservation.add(len(piece))
        return piece


async def _next_message(request: Request, deadline: float) -> Message:
    """Return the next message of the request's body.

    Raises:
        ApiError: 408 if it arrives later than the event loop's time `deadline`; 400, 413 or 415 if it was sent
            compressed, and is refused.
        ClientDisconnect: the client disconnected.
    """
    try:
        async with asyncio.timeout_at(deadline):
            message = await request.receive()
    except TimeoutError as error:
        slow = "The request's body arrived too slowly. Send it again over a faster connection."
        raise ApiError(408, slow, code="request_timeout") from error
    if message["type"] == "http.disconnect":
        decoded = request.scope.get(DECODED)
        raise (decoded.take_refusal() if decoded else None) or ClientDisconnect
    return message


def check_length(scope: Scope, limit: int) -> None:
    """Refuse a body whose `content-length` is over the limit.

    Raises:
        ApiError: 413.
    """
    length = body_length(scope)
    if length is not None and length > limit:
        raise too_large(limit)


def too_large(limit: int) -> ApiError:
    """Return the error for a body that is larger than `limit` bytes."""
    return ApiError(413, f"The request's body is larger than {limit} bytes.", code="request_too_large")


def _check_json(request: Request) -> None:
    """Refuse a body that is declared as something else than JSON.

    Browsers send the other types from any page without asking this server first.

    Raises:
        ApiError: 400.
    """
    declared = request.headers.get("content-type")
    if declared is not None and declared.partition(";")[0].strip().lower() != _JSON:
        raise _undeclared(f"Unsupported content type: '{excerpt(declared)}'")


def _undeclared(why: str) -> ApiError:
    """Return the 400 of a body that is not declared as JSON."""
    return bad_request(
        f"{why}. This API method only accepts '{_JSON}' requests: send the header 'Content-Type: {_JSON}'.",
        code="unsupported_content_type",
    )


def decode(body: bytes | bytearray, loads: Callable[[bytes | bytearray], Any] = orjson.loads) -> dict[str, Any]:
    """Decode a JSON object with `loads`.

    Raises:
        ApiError: 400 if the body is not a JSON object.
    """
    try:
        value = loads(body)
    except ValueError as error:
        raise bad_request(
            f"We could not parse the JSON body of your request: {error}. The body must be a JSON object in UTF-8."
        ) from error
    if not isinstance(value, dict):
        raise bad_request("The request's body must be a JSON object.")
    return value
