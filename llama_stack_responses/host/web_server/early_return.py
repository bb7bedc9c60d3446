"""Makes a middleware of the host send the rest of a stream, so that all that it contains can return before."""

from __future__ import annotations

from functools import wraps
from typing import Any

from starlette.types import Receive, Scope, Send

from ...wire.after_routes import AfterRoutes
from ..platform import ServerCall


def sending_rest(call: ServerCall) -> ServerCall:
    """Return the `__call__` of an ASGI middleware that sends the rest of the answer afterwards.

    Middlewares of metrics, authentication, quotas and CORS are outside of it. Inside are those that check the version
    and add a header, which do nothing after the head of an answer, and those of FastAPI that handle exceptions of
    routes.
    """

    @wraps(call)
    async def called(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        with AfterRoutes(scope) as after:
            await call(self, scope, receive, send)
            if after.rest:
                await after.send_rest(after.rest, receive, send)

    return called
