"""Routes of features that need no token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import APIRouter

from .requests import Handler, routes_within
from .route_admission import RouteAdmission


@dataclass(frozen=True, slots=True)
class PublicRoute:
    """A route that anyone may read without a token, so its answers hold no data. It has `GET` and `HEAD`.

    Attributes:
        path: its path. llama-stack lets no path of any length pass without a token.
        answer: answers its requests.
    """

    path: str
    answer: Handler


def add_public_routes(
    router: APIRouter, routes: Iterable[PublicRoute], limits: RouteAdmission, public_key: str
) -> None:
    """Add routes.

    Args:
        router: the outermost router: llama-stack reads `public_key` from its own routes only.
        routes: the routes.
        limits: the limits of the routes.
        public_key: the key in the description of a route by which the host lets requests without a token pass.
    """
    for route in routes:
        router.add_api_route(
            route.path,
            route.answer,
            methods=["GET", "HEAD"],
            route_class_override=routes_within(limits),
            openapi_extra={public_key: True},
            include_in_schema=False,
        )
