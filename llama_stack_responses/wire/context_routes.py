"""The routes below `/v1/responses` that count tokens and compact a conversation, without creating a response."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ..requests.request import FIELDS, request_schema
from ..service.compact import COMPACTED, Compaction
from ..service.refusals import Refusals
from ..service.token_counting import NOT_COUNTED, TokenCounting
from .http_responses import FinishedJsonResponse, JsonResponse
from .noted_requests import NotedRequest
from .openapi import COMPACTION, TOKENS, described
from .request_bodies import Bodies
from .request_handling import METHODS, Handler, nothing, routes_within
from .route_admission import RouteAdmission


def context_router(
    counting: TokenCounting, compaction: Compaction, refusals: Refusals, limits: RouteAdmission
) -> APIRouter:
    """Return the routes, with these limits. Refused requests for compactions are noted; a count is no response."""
    router = APIRouter(prefix="/v1/responses", tags=["Responses"], route_class=routes_within(limits))
    noting = routes_within(limits, refusals)

    def add(path: str, answer: Handler, summary: str, description: dict[str, Any], kind: Any = None) -> None:
        router.add_api_route(path, answer, methods=["POST"], summary=summary, route_class_override=kind, **description)
        router.add_api_route(path, nothing(router), methods=METHODS, include_in_schema=False)

    example = {"model": "local/qwen3", "input": "Write a haiku about the sea."}
    counted = described(TOKENS, body=request_schema(FIELDS - NOT_COUNTED), example=example)
    compacted = described(COMPACTION, body=request_schema(COMPACTED), example=example)
    add("/input_tokens", _count(counting, limits.bodies), "Count tokens", counted)
    add("/compact", _compact(compaction, refusals, limits.bodies), "Compact", compacted, noting)
    return router


def _count(counting: TokenCounting, bodies: Bodies) -> Handler:
    async def count_input_tokens(request: Request) -> Response:
        body = await bodies.json(request)
        return JsonResponse(await counting.count(body, bodies.hold(request)))

    return count_input_tokens


def _compact(compaction: Compaction, refusals: Refusals, bodies: Bodies) -> Handler:
    async def compact_conversation(request: Request) -> Response:
        with NotedRequest(refusals) as noted:
            body = await bodies.json(request)
            noted.has({**body, "store": False})  # a compaction stores nothing
        return FinishedJsonResponse(noted.result(compaction.compact(body, bodies.hold(request))), {})

    return compact_conversation
