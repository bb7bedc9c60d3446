"""Refuses requests of foreign web pages on every route of the stack, before the host's middleware sees them.

The host's application is the outermost place of this package's own: a middleware could not be added, since the routes
are built after those of the host.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from inspect import markcoroutinefunction
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from ..config import ResponsesConfig
from ..core.errors import ApiError
from ..generation.response_log import log_refused
from ..wire.cross_site import CrossSitePolicy
from .platform import SERVER
from .refusals import refuse

Call = Callable[[Any, Scope, Receive, Send], Awaitable[None]]

_APP: Final = "StackApp"
_AUTHENTICATION: Final = "AuthenticationMiddleware"
_CONFIG: Final = "_llama_stack_responses_config"
_POLICY: Final = "_llama_stack_responses_cross_site_policy"


def refuse_cross_site_requests(config: ResponsesConfig) -> None:
    """Make the host's application check each request. Without a server, there is none."""
    app: Any = getattr(sys.modules.get(SERVER), _APP, None)
    if app is None:
        return
    if not hasattr(app, _CONFIG):
        app.__call__ = _checking(app.__call__)
    setattr(app, _CONFIG, config)


def _checking(call: Call) -> Call:
    """Return the `__call__` of the application with the check before it."""

    def checked(app: Any, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "lifespan":
            try:
                _policy(app).check(scope)
            except ApiError as error:
                log_refused(error)
                return refuse(error, scope, send)
        return call(app, scope, receive, send)

    # uvicorn asks for it. A coroutine of its own would be one more that every open stream holds.
    return markcoroutinefunction(checked)


def _policy(app: Any) -> CrossSitePolicy:
    """Return the application's policy, made for its first request, when all middleware was added."""
    found: CrossSitePolicy | None = vars(app).get(_POLICY)
    if found is None:
        found = policy_of(app, getattr(app, _CONFIG))
        setattr(app, _POLICY, found)
    return found


def policy_of(app: Any, config: ResponsesConfig) -> CrossSitePolicy:
    """Return the policy for an application with these settings."""
    listening: Any = app.stack.run_config.server.host
    own = {socket.gethostname().lower(), *([listening.lower()] if isinstance(listening, str) else [])}
    cors = [each.cls(app, *each.args, **each.kwargs) for each in app.user_middleware if each.cls is CORSMiddleware]
    return CrossSitePolicy(
        config.allowed_hosts | own,
        config.allowed_origins,
        lambda origin: any(each.is_allowed_origin(origin) for each in cors),
        authenticated=any(each.cls.__name__ == _AUTHENTICATION for each in app.user_middleware),
    )
