"""The answer to clients whose base URL lacks the `/v1`, which the host would answer with `Not Found` alone."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from ..core.errors import ApiError
from ..core.shapes import excerpt
from .request_handling import METHODS, routes_within
from .route_admission import RouteAdmission

_PATHS: Final = (
    "/chat/completions",
    "/conversations",
    "/embeddings",
    "/files",
    "/models",
    "/responses",
    "/vector_stores",
)
"""What OpenAI's clients append to their base URL first."""


def unversioned_router(limits: RouteAdmission) -> APIRouter:
    """Return the routes, with these limits."""
    router = APIRouter(route_class=routes_within(limits))
    for path in _PATHS:
        router.add_api_route(path, _refuse, methods=METHODS, include_in_schema=False)
    return router


async def _refuse(request: Request) -> Response:
    raise ApiError(
        404,
        f"Invalid URL ({request.method} {excerpt(request.url.path)}): the routes of this server begin with /v1, so the "
        "base URL of a client has to end with /v1.",
    )
