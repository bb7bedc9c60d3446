"""Decompresses request bodies on every route of the stack, before the host's middleware sees them.

llama-stack takes no compressed bodies. OGX has a middleware for zstd that reads and decompresses a body completely,
before authentication and without a bound on the compressed size; it passes on what was decompressed here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import markcoroutinefunction
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import ApiError
from ..generation.response_log import log_refused
from ..wire.content_encoding import DecodedBody, content_encoding, decoded_body
from .platform import ServerCall
from .refusals import refuse


def decompressing_bodies(limit: int) -> Callable[[ServerCall], ServerCall]:
    """Return what puts the decompression before the `__call__` of the host's application.

    Args:
        limit: maximum size of a compressed body in bytes, compressed and decompressed.
    """
    return partial(_decompressing, limit)


def _decompressing(limit: int, call: ServerCall) -> ServerCall:
    def called(app: Any, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return call(app, scope, receive, send)
        try:
            encoding = content_encoding(scope)
            if encoding is None:
                return call(app, scope, receive, send)
            scope, body = decoded_body(scope, receive, encoding, limit)
        except ApiError as error:
            log_refused(error)
            return refuse(error, scope, send)

        def inner(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return call(app, scope, receive, send)

        return _serve(inner, scope, body, send)

    # uvicorn asks for it. A coroutine of its own would be one more that every open stream holds.
    return markcoroutinefunction(called)


async def _serve(app: ASGIApp, scope: Scope, body: DecodedBody, send: Send) -> None:
    """Call the application. If the body is refused, it sees a disconnect, and the refusal is sent as the answer."""
    started = False

    async def send_unless_refused(message: Any) -> None:
        nonlocal started
        if started or body.refusal is None:
            started = True
            await send(message)

    try:
        await app(scope, body.receive, send_unless_refused)
    except Exception:
        if started or body.refusal is None:
            raise
    if body.refusal is not None and not started:
        log_refused(body.refusal)
        await refuse(body.refusal, scope, send)
