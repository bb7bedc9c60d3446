"""Sends the rest of a stream after the application's routes have returned.

An ASGI application returns when its answer has been sent, so an open stream would hold the coroutines of all
middlewares and routers around it, and what these hold. Nothing inside the host's middleware that decodes headers acts
on the end of an answer. Once the head was sent, all that is inside returns, and that middleware sends the rest. The
middlewares outside of it, such as that of the metrics, see the whole answer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol, Self

from starlette.types import Receive, Scope, Send

from .direct_writer import pass_bodies

_KEY: Final = "llama_stack_responses.after_routes"
"""Key of the object in the scope of its request."""
_LEFT_OVER: Final = "fastapi_middleware_astack"
"""Key of what FastAPI leaves in the scope: an exit stack that has ended."""


class RestOfAnswer(Protocol):
    """The rest of an answer whose head was sent."""

    def send_rest(self, receive: Receive, send: Send) -> Awaitable[None]:
        """Send it."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class AfterRoutes:
    """Takes the rest of an answer from the routes. As a context manager, it closes the rest at the end.

    Args:
        scope: the scope of the request.
    """

    __slots__ = ("_scope", "rest")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.rest: RestOfAnswer | None = None
        scope[_KEY] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The scope and this object refer to each other.
        self._scope.pop(_KEY, None)
        if self.rest:
            self.rest.close()

    def take(self) -> RestOfAnswer | None:
        """Return the rest of the answer, after the routes have returned; None if there is none."""
        self._scope.pop(_LEFT_OVER, None)
        return self.rest


def after_routes(scope: Scope) -> AfterRoutes | None:
    """Return what sends the rest of an answer after the routes have returned; None if it has to be sent by the route.

    That is so if no middleware of the host does it, or if one is not known to pass bodies on unchanged.
    """
    found = scope.get(_KEY)
    return found if isinstance(found, AfterRoutes) and pass_bodies(scope.get("app")) else None
