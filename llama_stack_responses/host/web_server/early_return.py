"""Makes a middleware of the host send the rest of a stream, so that all that it contains can return before."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from ...wire.after_routes import AfterRoutes
from ..platform import SERVER

Call = Callable[[Any, Scope, Receive, Send], Awaitable[None]]

_MIDDLEWARE: Final = "ProviderDataMiddleware"
"""The innermost middleware that every server of both hosts has.

Those of metrics, authentication, quotas and CORS are outside of it. Inside are those that check the version and add a
header, which do nothing after the head of an answer, and those of FastAPI that handle exceptions of routes.
"""
_EXTENDED: Final = "_llama_stack_responses_sends_rest"


def return_early() -> None:
    """Extend the host's middleware. Without a server, there is none."""
    middleware: Any = getattr(sys.modules.get(SERVER), _MIDDLEWARE, None)
    if middleware is not None and not hasattr(middleware, _EXTENDED):
        middleware.__call__ = _with_rest(middleware.__call__)
        setattr(middleware, _EXTENDED, True)


def _with_rest(call: Call) -> Call:
    """Return the `__call__` of an ASGI middleware that sends the rest of the answer afterwards."""

    @wraps(call)
    async def called(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
        with AfterRoutes(scope) as after:
            await call(self, scope, receive, send)
            if after.rest:
                await after.send_rest(after.rest, receive, send)

    return called
