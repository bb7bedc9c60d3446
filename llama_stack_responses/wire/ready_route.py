"""The route for probes of load balancers and Kubernetes, which needs no token."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response

from llama_stack_responses.service.readiness import ReadinessReport
from llama_stack_responses.service.responses import OpenAIResponsesImpl

from .openapi import READINESS, described
from .requests import METHODS, Handler, nothing, routes_within
from .responses import Json
from .traffic import Traffic

_PATH: Final = "/v1/ready"


def add_ready_route(router: APIRouter, impl: OpenAIResponsesImpl, traffic: Traffic, public_key: str) -> None:
    """Add the route.

    Args:
        router: the outermost router: llama-stack reads `public_key` from its own routes only.
        impl: reports whether it is ready.
        traffic: the limits of the route.
        public_key: the key in the description of a route by which the host lets requests without a token pass.
    """
    description = described(READINESS) | {"tags": ["Responses"], "summary": "Check whether this server is ready"}
    description["openapi_extra"][public_key] = True
    kind = routes_within(traffic)
    router.add_api_route(_PATH, _ready(impl), methods=["GET"], route_class_override=kind, **description)
    rest = APIRouter(route_class=kind)
    rest.add_api_route(_PATH, nothing(router), methods=METHODS, include_in_schema=False)
    router.include_router(rest)


def _ready(impl: OpenAIResponsesImpl) -> Handler:
    async def report_readiness() -> Response:
        report = await impl.ready()
        return Json(_shown(report), 200 if report.ready else 503, {"cache-control": "no-store"})

    return report_readiness


def _shown(report: ReadinessReport) -> dict[str, str]:
    return {"status": report.status, **report.parts, **report.notes}
