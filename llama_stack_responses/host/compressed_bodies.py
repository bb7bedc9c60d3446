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

from ..generation.response_log import log_refused
from ..wire.content_encoding import CompressedBody, compressed_body
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
        compressed = compressed_body(scope, receive, limit) if scope["type"] == "http" else None
        if compressed is None:
            return call(app, scope, receive, send)

        def inner(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return call(app, scope, receive, send)

        return _serve(inner, *compressed, send)

    # uvicorn asks for it. A coroutine of its own would be one more that every open stream holds.
    return markcoroutinefunction(called)


async def _serve(app: ASGIApp, scope: Scope, body: CompressedBody, send: Send) -> None:
    """Call the application, which sees a disconnect if the body is refused, and answer if it has not taken the error.

    A route of the host knows nothing of the error: what it answers to the disconnect is not sent.
    """
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
    if not started and (error := body.take_refusal()):
        log_refused(error)
        await refuse(error, scope, send)
