"""Sends the rest of a stream after the application's routes have returned.

An ASGI application returns when its answer has been sent, so an open stream would hold the coroutines of all
middlewares and routers around it, and what these hold. Nothing inside the host's middleware that decodes headers acts
on the end of an answer. Once the head was sent, all that is inside returns, and that middleware sends the rest. The
middlewares outside of it, such as that of the metrics, see the whole answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, Protocol, Self

from starlette.types import Receive, Scope, Send

from .direct_writer import pass_bodies

Call = Callable[[Any, Scope, Receive, Send], Awaitable[Any]]

_KEY: Final = "llama_stack_responses.after_routes"
"""Key of the object in the scope of its request."""
_OF_ROUTES: Final = ("fastapi", "fastapi_middleware_astack", "starlette.exception_handlers")
"""Keys of what only the routes need of the scope, and what is inside of the middleware."""


class RestOfAnswer(Protocol):
    """The rest of an answer whose head was sent."""

    def send_rest(self, receive: Receive, send: Send) -> Awaitable[None]:
        """Send it."""
        ...

    def fail(self, error: Exception) -> None:
        """End it because sending it has failed."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class AfterRoutes:
    """Takes the rest of an answer from the routes. As a context manager, it ends the rest with the block.

    Args:
        scope: the scope of the request.

    Attributes:
        rest: the rest of the answer; None if there is none.
    """

    __slots__ = ("_begun", "_scope", "rest")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._begun = False
        self.rest: RestOfAnswer | None = None
        scope[_KEY] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        self._scope.pop(_KEY, None)  # it refers to this object in turn
        if self.rest is None:
            return False
        # An error of the rest would be logged by the web server with the whole traceback, if it went on.
        if handled := self._begun and isinstance(error, Exception):
            self.rest.fail(error)
        self.rest.close()
        return handled

    def send_rest(self, rest: RestOfAnswer, receive: Receive, send: Send) -> Awaitable[None]:
        """Send the rest of the answer, after the routes have returned."""
        self._begun = True
        self._shrink_scope()
        return rest.send_rest(receive, send)

    def _shrink_scope(self) -> None:
        """Remove what is not needed any more; a dict only gets smaller when it is filled anew."""
        scope = self._scope
        for name in (_KEY, *_OF_ROUTES):
            scope.pop(name, None)
        kept = list(scope.items())
        scope.clear()
        scope.update(kept)


def after_routes(scope: Scope) -> AfterRoutes | None:
    """Return what sends the rest of an answer after the routes have returned; None if it has to be sent by the route.

    That is so if no middleware of the host does it, or if one is not known to pass bodies on unchanged.
    """
    found = scope.get(_KEY)
    return found if isinstance(found, AfterRoutes) and pass_bodies(scope.get("app")) else None


def sending_rest(call: Call) -> Call:
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
