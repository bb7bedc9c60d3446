"""The order of an application's routes."""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

_TELEMETRY: Final = "fastapi.telemetry"
"""Key of what FastAPI notes about a request in its scope while the operator traces or measures it."""


class RouteOrder:
    """Makes a route of this package match before the application's other routes.

    An application matches its routes in their order, and a host includes more than fifty before those of this package.
    The paths of the two differ, so only the time to find a route changes.

    Args:
        enabled: False leaves the order.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._due = enabled

    def begin_with(self, request: Request) -> None:
        """Put the route of this request, the first one, at the beginning of the application's routes."""
        if not self._due:
            return
        self._due = False
        route = request.scope.get("route")
        if isinstance(route, BaseRoute):
            request.app.router.routes.insert(0, _Shortcut(request.scope, route))


class _Shortcut(BaseRoute):
    """Matches requests with one method and path, and leaves them to their route.

    Otherwise the application would match a router that it has included, and that one asks all routers in it whether
    their routes have changed.

    Args:
        scope: of one of the requests.
        route: their route.
    """

    def __init__(self, scope: Scope, route: BaseRoute) -> None:
        self._method, self.path, self._prefix = scope["method"], scope["path"], scope.get("root_path")
        self._route = route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match, unless FastAPI has to note the route of a request in its telemetry."""
        is_one = scope["path"] == self.path and scope["type"] == "http" and scope["method"] == self._method
        if not is_one or scope.get("root_path") != self._prefix or scope.get(_TELEMETRY) is not None:
            return Match.NONE, {}
        return Match.FULL, {"path_params": {}, "route": self._route}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Leave the request to the route."""
        await self._route.handle(scope, receive, send)
