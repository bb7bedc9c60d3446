"""Routes that need no token: those of features, and the one for probes of load balancers and Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Response

from ..service.readiness import ReadinessReport
from ..service.responses import OpenAIResponsesImpl
from .http_responses import JsonResponse
from .openapi import READINESS, described
from .request_handling import METHODS, Handler, nothing, routes_within
from .route_admission import RouteAdmission

_READY: Final = "/v1/ready"


@dataclass(frozen=True, slots=True)
class PublicRoute:
    """A route that anyone may read without a token. It has `GET` and `HEAD`.

    Its answers hold no data, unless it asks for something else that only some have, such as a signed link.

    Attributes:
        path: its path. llama-stack lets no path of any length pass without a token.
        answer: answers its requests.
    """

    path: str
    answer: Handler


PublicRoutes = Callable[[OpenAIResponsesImpl, RouteAdmission], Iterable[PublicRoute]]
"""Creates public routes of a feature."""


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


def add_ready_route(router: APIRouter, impl: OpenAIResponsesImpl, limits: RouteAdmission, public_key: str) -> None:
    """Add the route for probes.

    Args:
        router: the outermost router: llama-stack reads `public_key` from its own routes only.
        impl: reports whether it is ready.
        limits: the limits of the route.
        public_key: the key in the description of a route by which the host lets requests without a token pass.
    """
    description = described(READINESS) | {"tags": ["Responses"], "summary": "Check whether this server is ready"}
    description["openapi_extra"][public_key] = True
    kind = routes_within(limits)
    router.add_api_route(_READY, _report(impl), methods=["GET"], route_class_override=kind, **description)
    rest = APIRouter(route_class=kind)
    # OGX reads these too, by one of their methods, whichever a set has first: none may need a token.
    extra = {public_key: True}
    rest.add_api_route(_READY, nothing(router), methods=METHODS, include_in_schema=False, openapi_extra=extra)
    router.include_router(rest)


def _report(impl: OpenAIResponsesImpl) -> Handler:
    async def report_readiness() -> Response:
        report = await impl.ready()
        return JsonResponse(_fields(report), 200 if report.ready else 503, {"cache-control": "no-store"})

    return report_readiness


def _fields(report: ReadinessReport) -> dict[str, str]:
    return {"status": report.status, **report.parts, **report.notes}
