"""Refuses requests of foreign web pages on every route of the stack, before the host's middleware sees them.

The host's application is the outermost place of this package's own: a middleware could not be added, since the routes
are built after those of the host.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from inspect import markcoroutinefunction
from typing import Any, Final
from weakref import WeakKeyDictionary

from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from ..config import ResponsesConfig
from ..core.errors import ApiError
from ..generation.response_log import log_refused
from ..wire.cross_site import CrossSitePolicy
from .platform import ServerCall
from .refusals import refuse

_AUTHENTICATION: Final = "AuthenticationMiddleware"


def refusing_cross_site_requests(config: ResponsesConfig) -> Callable[[ServerCall], ServerCall]:
    """Return what puts the check before the `__call__` of the host's application."""
    policies: WeakKeyDictionary[Any, CrossSitePolicy] = WeakKeyDictionary()

    def policy(app: Any) -> CrossSitePolicy:
        """Return the application's policy, made for its first request, when all middleware was added."""
        found = policies.get(app)
        if found is None:
            found = policies[app] = policy_of(app, config)
        return found

    def checking(call: ServerCall) -> ServerCall:
        def checked(app: Any, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            if scope["type"] != "lifespan":
                try:
                    policy(app).check(scope)
                except ApiError as error:
                    log_refused(error)
                    return refuse(error, scope, send)
            return call(app, scope, receive, send)

        # uvicorn asks for it. A coroutine of its own would be one more that every open stream holds.
        return markcoroutinefunction(checked)

    return checking


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
