"""The routes under `/v1/responses`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.core.schema.request import request_schema
from llama_stack_responses.service.responses import DetachedResponse, OpenAIResponsesImpl
from llama_stack_responses.ui.assets import Assets

from .container_routes import containers_router
from .context_routes import context_router
from .conversation_routes import conversations_router
from .openapi import INCLUDE, ITEMS, PAGING, REPLAY, RESPONSE, TEXT, deleted, described, page
from .ready_route import add_ready_route
from .requests import MAX_PAGE, Handler, Query, add_fallback, asked_of_items, page_of, routes_within
from .responses import KEEP_ALIVE_AFTER, FinishedAsJson, Json, RunAsEvents, RunAsJson, followed
from .traffic import Traffic
from .ui_files import add_ui_files
from .ui_routes import ui_router
from .websocket import ConnectionAuthorizer, socket_route

_KEY: Final = re.compile("[ -~]{1,255}")
_CREATE: Final = described(
    RESPONSE,
    body=request_schema(),
    example={"model": "local/qwen3", "input": "Write a haiku about the sea.", "stream": True},
    streams=True,
)


def create_router(impl: OpenAIResponsesImpl, gate: ConnectionAuthorizer, public_key: str) -> APIRouter:
    """Return the routes of the Responses API for `impl`; `gate` authorizes WebSocket connections.

    It has no side effects: the host calls it more than once. `public_key` is the key in the description of a route by
    which the host lets requests without a token pass.
    """

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        impl.start()
        yield

    router = APIRouter(lifespan=lifespan)
    # These come first: the names of their routes would match as ids of responses.
    traffic = Traffic(impl.config.limits, impl.access.who, impl.break_off, impl.streams)
    add_ready_route(router, impl, traffic, public_key)
    if impl.config.ui.enabled:
        add_ui_files(router, Assets(), traffic, public_key)
        router.include_router(ui_router(impl, traffic))
    router.include_router(context_router(impl.counting, impl.compaction, traffic))
    router.include_router(_responses(impl, traffic))
    router.add_websocket_route("/v1/responses", socket_route(impl, gate, traffic))
    router.include_router(conversations_router(impl.conversations, traffic))
    if impl.containers:
        router.include_router(containers_router(impl.containers, impl.access.who, traffic))
    return router


def _responses(impl: OpenAIResponsesImpl, traffic: Traffic) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", tags=["Responses"], route_class=routes_within(traffic))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    add("POST", "", _create(impl, traffic), "Create a model response", _CREATE)
    add("GET", "", _list(impl, traffic), "List responses", described(page(RESPONSE), query={**PAGING, "model": TEXT}))
    replayed = described(RESPONSE, query={**REPLAY, **INCLUDE}, streams=True)
    add("GET", "/{response_id}", _retrieve(impl, traffic), "Retrieve a response", replayed)
    add("DELETE", "/{response_id}", _delete(impl), "Delete a response", described(deleted("response")))
    add("POST", "/{response_id}/cancel", _cancel(impl, traffic), "Cancel a response", described(RESPONSE))
    listed = described(ITEMS, query={**PAGING, **INCLUDE})
    add("GET", "/{response_id}/input_items", _input_items(impl, traffic), "List a response's input items", listed)
    add_fallback(router)
    return router


def _create(impl: OpenAIResponsesImpl, traffic: Traffic) -> Handler:
    async def create_response(request: Request) -> Response:
        body = await traffic.bodies.json(request)
        if body.get("stream"):
            traffic.hold_stream(request.scope)
        made = await impl.create(body, _idempotency_key(request), traffic.bodies.hold(request))
        if isinstance(made, DetachedResponse):
            return await _kept(impl, traffic, request.scope, made, stream=bool(body.get("stream")))
        return RunAsEvents(made) if body.get("stream") else RunAsJson(made)

    return create_response


async def _kept(
    impl: OpenAIResponsesImpl, traffic: Traffic, scope: Scope, made: DetachedResponse, *, stream: bool
) -> Response:
    response_id = made.response["id"]
    headers = {"idempotent-replayed": "true"} if made.replayed else {}
    if stream:
        return await _followed(impl, traffic, response_id, -1, headers)
    if made.response["background"]:
        return Json(made.response, headers=headers)
    return FinishedAsJson(impl.finish(response_id, traffic.hold_value(scope)), headers)


def _idempotency_key(request: Request) -> str | None:
    match request.headers.getlist("idempotency-key"):
        case []:
            return None
        case [key] if _KEY.fullmatch(key):
            return key
    raise bad_request(
        "The Idempotency-Key header must be sent once, with 1 to 255 printable ASCII characters.",
        code="invalid_idempotency_key",
    )


def _retrieve(impl: OpenAIResponsesImpl, traffic: Traffic) -> Handler:
    async def retrieve_response(response_id: str, request: Request) -> Response:
        query = asked_of_items(request)
        stream, after = query.flag("stream"), query.integer("starting_after", 0, None)
        if not stream:
            return Json(await impl.retrieve(response_id, traffic.hold_value(request.scope)))
        traffic.hold_stream(request.scope)
        return await _followed(impl, traffic, response_id, -1 if after is None else after, {})

    return retrieve_response


async def _followed(
    impl: OpenAIResponsesImpl,
    traffic: Traffic,
    response_id: str,
    after: int,
    headers: dict[str, str],
) -> Response:
    # The owner is found here: the events may be read later, outside of the request's context.
    lease = partial(traffic.large_answer, impl.access.who())
    return followed(await impl.follow(response_id, after, KEEP_ALIVE_AFTER, lease), headers)


def _list(impl: OpenAIResponsesImpl, traffic: Traffic) -> Handler:
    async def list_responses(request: Request) -> Response:
        query = Query(request)
        page = await impl.list(
            limit=query.integer("limit", 1, MAX_PAGE) or 20,
            after=query.text("after"),
            order=query.order(),
            model=query.text("model"),
            hold=traffic.hold_value(request.scope),
        )
        return page_of(page.data, has_more=page.has_more, last=page.last)

    return list_responses


def _delete(impl: OpenAIResponsesImpl) -> Handler:
    async def delete_response(response_id: str) -> Response:
        await impl.delete(response_id)
        return Json({"id": response_id, "object": "response", "deleted": True})

    return delete_response


def _cancel(impl: OpenAIResponsesImpl, traffic: Traffic) -> Handler:
    async def cancel_response(response_id: str, request: Request) -> Response:
        return Json(await impl.cancel(response_id, traffic.hold_value(request.scope)))

    return cancel_response


def _input_items(impl: OpenAIResponsesImpl, traffic: Traffic) -> Handler:
    async def list_input_items(response_id: str, request: Request) -> Response:
        query = asked_of_items(request)
        page = await impl.input_items(
            response_id,
            limit=query.integer("limit", 1, MAX_PAGE) or 20,
            after=query.text("after"),
            order=query.order(),
            hold=traffic.bodies.hold(request),
        )
        return page_of(page.data, has_more=page.has_more)

    return list_input_items
