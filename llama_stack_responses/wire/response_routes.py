"""The routes under `/v1/responses`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol

from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from ..jobs.direct_delivery import DirectClient
from ..requests.request import request_schema
from ..service.detached_responses import DetachedResponse
from ..service.responses import OpenAIResponsesImpl
from .context_routes import context_router
from .conversation_routes import conversations_router
from .http_responses import (
    FinishedJsonResponse,
    FollowedResponse,
    JsonResponse,
    RunEventsResponse,
    RunJsonResponse,
    write_past_asgi,
)
from .noted_requests import NotedRequest
from .openapi import INCLUDE, ITEMS, PAGING, REPLAY, RESPONSE, TEXT, deleted, described, page
from .public_routes import PublicRoutes, add_public_routes, add_ready_route
from .request_handling import Handler, Query, add_fallback, page_of, query_of_items, routes_within
from .request_headers import idempotency_key
from .route_admission import RouteAdmission
from .route_order import RouteOrder
from .sse import KEEP_ALIVE_SECONDS
from .unversioned_routes import unversioned_router
from .websocket.connection import ConnectionAuthorizer, socket_route

_PREFIX: Final = "/v1/responses"
_CREATE: Final = described(
    RESPONSE,
    body=request_schema(),
    example={"model": "local/qwen3", "input": "Write a haiku about the sea.", "stream": True},
    streams=True,
)


Routes = Callable[[OpenAIResponsesImpl, RouteAdmission], APIRouter]
"""Creates routes of a feature, with `routes_within` of `wire/request_handling.py`: bounds and errors are the same."""


class Routed(Protocol):
    """What has routes, such as a feature."""

    @property
    def routes(self) -> Iterable[Routes]:
        """The routes that need a token."""
        ...

    @property
    def public_routes(self) -> Iterable[PublicRoutes]:
        """The routes that need none."""
        ...


def create_router(
    impl: OpenAIResponsesImpl, authorizer: ConnectionAuthorizer, public_key: str, features: Iterable[Routed] = ()
) -> APIRouter:
    """Return the routes of the Responses API. It has no side effects.

    Args:
        authorizer: authorizes WebSocket connections.
        public_key: the key in the description of a route by which the host lets requests without a token pass.
        features: have further routes.
    """

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        impl.start()
        yield

    router = APIRouter(lifespan=lifespan)
    limits = RouteAdmission(
        impl.config.limits,
        impl.access.current_user,
        impl.large_work,
        impl.abort_connection,
        impl.streams,
        impl.config.share_of,
    )
    # Most requests are for this route, and routes are matched in their order. It is in the outermost router, since an
    # open stream holds the frames of each router around its route.
    router.add_api_route(
        _PREFIX,
        _create(impl, limits),
        methods=["POST"],
        summary="Create a model response",
        tags=["Responses"],
        route_class_override=routes_within(limits, impl.refusals),
        **_CREATE,
    )
    # These come before the other routes of responses: the names of their routes would match as ids of responses.
    add_ready_route(router, impl, limits, public_key)
    for feature in features:
        for public_routes in feature.public_routes:
            add_public_routes(router, public_routes(impl, limits), limits, public_key)
        for routes in feature.routes:
            router.include_router(routes(impl, limits))
    router.include_router(context_router(impl.counting, impl.compaction, impl.refusals, limits))
    router.include_router(_responses(impl, limits, router))
    router.add_websocket_route(_PREFIX, socket_route(impl, authorizer, limits))
    router.include_router(conversations_router(impl.conversations, limits))
    router.include_router(unversioned_router(limits))
    return router


def _responses(impl: OpenAIResponsesImpl, limits: RouteAdmission, outermost: APIRouter) -> APIRouter:
    router = APIRouter(prefix=_PREFIX, tags=["Responses"], route_class=routes_within(limits))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    add("GET", "", _list(impl, limits), "List responses", described(page(RESPONSE), query={**PAGING, "model": TEXT}))
    replayed = described(RESPONSE, query={**REPLAY, **INCLUDE}, streams=True)
    add("GET", "/{response_id}", _retrieve(impl, limits), "Retrieve a response", replayed)
    add("DELETE", "/{response_id}", _delete(impl), "Delete a response", described(deleted("response")))
    add("POST", "/{response_id}/cancel", _cancel(impl, limits), "Cancel a response", described(RESPONSE))
    listed = described(ITEMS, query={**PAGING, **INCLUDE})
    add("GET", "/{response_id}/input_items", _input_items(impl, limits), "List a response's input items", listed)
    add_fallback(router, outermost)
    return router


def _create(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> Handler:
    order = RouteOrder(enabled=impl.config.host_shortcuts)

    async def create_response(request: Request) -> Response:
        order.begin_with(request)
        with NotedRequest(impl.refusals) as noted:
            body = await limits.bodies.json(request)
            noted.has(body)
            if body.get("stream"):
                limits.hold_stream(request.scope)
            created = await impl.create(body, idempotency_key(request.headers), limits.bodies.hold(request))
        if isinstance(created, DetachedResponse):
            return await _detached_response(impl, limits, request.scope, created, stream=bool(body.get("stream")))
        impl.refusals.watch(created, body)
        return RunEventsResponse(created) if body.get("stream") else RunJsonResponse(created)

    return create_response


async def _detached_response(
    impl: OpenAIResponsesImpl, limits: RouteAdmission, scope: Scope, detached: DetachedResponse, *, stream: bool
) -> Response:
    response_id = detached.response["id"]
    headers = dict(detached.headers) | ({"idempotent-replayed": "true"} if detached.replayed else {})
    if stream:
        return await _followed(impl, limits, scope, response_id, -1, headers)
    if detached.response["background"]:
        return JsonResponse(detached.response, headers=headers)
    return FinishedJsonResponse(impl.detached.finish(response_id, limits.hold_value(scope)), headers)


def _retrieve(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> Handler:
    async def retrieve_response(response_id: str, request: Request) -> Response:
        query = query_of_items(request)
        query.flag("include_obfuscation")  # only validated: no stream of this server has obfuscation
        stream, after = query.flag("stream"), query.integer("starting_after", 0, None)
        if not stream:
            return JsonResponse(await impl.reader.retrieve(response_id, limits.hold_value(request.scope)))
        limits.hold_stream(request.scope)
        return await _followed(impl, limits, request.scope, response_id, -1 if after is None else after, {})

    return retrieve_response


async def _followed(
    impl: OpenAIResponsesImpl,
    limits: RouteAdmission,
    scope: Scope,
    response_id: str,
    after: int,
    headers: dict[str, str],
) -> Response:
    # The owner is found here: the events may be read later, outside of the request's context.
    reserve = partial(limits.large_answer, impl.access.current_user())
    client = DirectClient(partial(write_past_asgi, scope))
    batches = await impl.reader.follow(response_id, after, KEEP_ALIVE_SECONDS, reserve, client)
    return FollowedResponse(batches, headers, client.connect)


def _list(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> Handler:
    async def list_responses(request: Request) -> Response:
        query = Query(request)
        page = await impl.reader.list(
            **query.paging(),
            model=query.text("model"),
            hold=limits.hold_value(request.scope),
        )
        return page_of(page.data, has_more=page.has_more, last=page.last)

    return list_responses


def _delete(impl: OpenAIResponsesImpl) -> Handler:
    async def delete_response(response_id: str) -> Response:
        await impl.delete(response_id)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})

    return delete_response


def _cancel(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> Handler:
    async def cancel_response(response_id: str, request: Request) -> Response:
        return JsonResponse(await impl.cancel(response_id, limits.hold_value(request.scope)))

    return cancel_response


def _input_items(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> Handler:
    async def list_input_items(response_id: str, request: Request) -> Response:
        query = query_of_items(request)
        page = await impl.reader.input_items(
            response_id,
            **query.paging(),
            hold=limits.bodies.hold(request),
        )
        return page_of(page.data, has_more=page.has_more)

    return list_input_items
