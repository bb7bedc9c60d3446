"""The order of an application's routes."""

from __future__ import annotations

from fastapi import Request
from starlette.routing import Match


class RouteOrder:
    """Makes this package's routes match before the application's other routes.

    An application matches its routes in their order, and a host includes more than fifty before those of this package.
    The paths of the two differ, so only the time to find a route changes.

    Args:
        enabled: False leaves the order.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._due = enabled

    def begin_with(self, request: Request) -> None:
        """Move what matches this request, the first one, to the beginning of the application's routes."""
        if not self._due:
            return
        self._due = False
        routes = request.app.router.routes
        # The scope only has the innermost route, not the included router that the application found it in.
        matching = next((route for route in routes if route.matches(request.scope)[0] is Match.FULL), None)
        if matching is not None:
            routes.remove(matching)
            routes.insert(0, matching)
