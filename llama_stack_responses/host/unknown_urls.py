"""Answers requests below `/v1` for which the application has no route, in OpenAI's form.

The host answers them with `{"detail": "Not Found"}`, of which OpenAI's clients show nothing but the status.
"""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import markcoroutinefunction
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ..core.errors import ApiError
from ..core.shapes import excerpt
from ..generation.response_log import log_refused
from .platform import ServerCall
from .refusals import refuse

_PREFIX: Final = "/v1/"
_ADVICE: Final = "Check the URL for typos, and whether this stack has the API: GET /openapi.json lists its routes."


class _UnknownUrls:
    """Takes the place of what an application calls without a route, and leaves it all but requests below `/v1`.

    Args:
        default: what the application calls.
    """

    def __init__(self, default: ASGIApp) -> None:
        self._default = default

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_PREFIX):
            await self._default(scope, receive, send)
            return
        message = f"Unknown request URL: {scope['method']} {excerpt(scope['path'])}. {_ADVICE}"
        error = ApiError(404, message, code="unknown_url")
        log_refused(error)
        await refuse(error, scope, send)


def answering_unknown_urls(call: ServerCall) -> ServerCall:
    """Return the `__call__` of the host's application that answers requests without a route so."""

    def called(app: Any, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if not isinstance(app.router.default, _UnknownUrls):
            app.router.default = _UnknownUrls(app.router.default)
        return call(app, scope, receive, send)

    # uvicorn asks for it. A coroutine of its own would be one more that every open stream holds.
    return markcoroutinefunction(called)
