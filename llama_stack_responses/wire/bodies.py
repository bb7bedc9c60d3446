"""Request bodies: read within bounds on size, time and memory, and decoded within a bound on values."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import orjson
from fastapi import Request

from llama_stack_responses.admission import Admission, Lease, Quota
from llama_stack_responses.config import Limits
from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.core.json_values import VALUE_BYTES, count_values
from llama_stack_responses.core.owner import Owner

from .exchange import exchange_of

_SLOWEST: Final = 16_384
"""Bytes a second: a body that comes in faster may take as long as it likes."""

_SMALL: Final = 65_536
"""Bytes up to which a body is decoded at once; counting the values of a larger one is a thread's work."""

_NUMBER: Final = re.compile("[0-9]{1,18}")


class Bodies:
    """Reads the bodies of requests.

    What is read counts as held by the user who sent it until the answer has gone out.

    Args:
        limits: sizes, times and counts.
        who: the user who sent the request that is being served.
    """

    def __init__(self, limits: Limits, who: Callable[[], Owner]) -> None:
        held = limits.bodies
        self._limits = limits
        self._who = who
        self._admission = Admission(Quota("request bodies", held.total_bytes, held.bytes_per_user))

    @property
    def held(self) -> int:
        """Bytes that all requests hold now."""
        return self._admission.held

    def lease(self, owner: Owner | None = None) -> Lease:
        """What a request of this user holds, by default of the user who asks; it must be released."""
        return self._admission.lease(owner or self._who())

    async def read(self, request: Request) -> bytes:
        """The body.

        Raises:
            ApiError: 413, it is larger than a body may be; 408, it came in too slowly; 429 or 503, too much is held.
            ClientDisconnect: the client left.
        """
        return b"".join([piece async for piece in self.pieces(request, self._limits.request_bytes)])

    async def json(self, request: Request, *, optional: bool = False) -> dict[str, Any]:
        """The body as the JSON object that it must be; an `optional` one may be empty.

        Raises:
            ApiError: also 400, it is not JSON, no object, or holds too many values.
        """
        body = await self.read(request)
        if optional and not body:
            return {}
        return await self.decode(body, exchange_of(request.scope).lease(self.lease))

    async def pieces(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """The body as it comes, none of it past `limit` bytes.

        Raises:
            ApiError: as from `read`.
            ClientDisconnect: the client left.
        """
        _check_length(request, limit)
        lease = exchange_of(request.scope).lease(self.lease)
        size = 0
        async for piece in self._in_time(request):
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            lease.take(len(piece))
            yield piece

    async def decode(self, body: bytes, lease: Lease) -> dict[str, Any]:
        """A JSON object that a client sent; what it takes in memory goes onto `lease`.

        Raises:
            ApiError: 400, it is not JSON, no object, or holds too many values; 429 or 503, too much is held.
        """
        most = self._limits.bodies.json_values
        if len(body) > min(most, _SMALL):
            values = await asyncio.to_thread(count_values, body, most)
            if values > most:
                message = f"The JSON body of your request holds more than {most} values. Send fewer at a time."
                raise bad_request(message, code="request_too_large")
            lease.take(values * VALUE_BYTES)
        return decode(body)

    async def _in_time(self, request: Request) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.bodies.seconds
        stream = request.stream()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    piece = await anext(stream, None)
            except TimeoutError as error:
                message = "The request's body came in too slowly. Send it again over a faster connection."
                raise ApiError(408, message, code="request_timeout") from error
            if piece is None:
                return
            deadline += len(piece) / _SLOWEST
            yield piece


def _check_length(request: Request, limit: int) -> None:
    """Refuses a body that is too large by its own account."""
    length = request.headers.get("content-length", "0")
    if _NUMBER.fullmatch(length) and int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request's body is larger than {limit} bytes.", code="request_too_large")


def decode(body: bytes) -> dict[str, Any]:
    """The body as the JSON object that it is to be."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(
            f"We could not parse the JSON body of your request: {error}. The body must be a JSON object."
        ) from error
    if not isinstance(value, dict):
        raise bad_request("The request's body must be a JSON object.")
    return value
