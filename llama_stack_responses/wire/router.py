"""The routes under `/v1/responses`."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, cast

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match

from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.impl import Kept, OpenAIResponsesImpl, Page

from .answers import KEEP_ALIVE_AFTER, FinishedAsJson, Json, RunAsEvents, RunAsJson, failure, followed

logger = logging.getLogger(__name__)

_MAX_PAGE: Final = 100
_KEY: Final = re.compile("[ -~]{1,255}")
_NUMBER: Final = re.compile("[0-9]{1,15}")
_METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")


class ErrorsAsJson(APIRoute):
    """A route whose errors have OpenAI's form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await answer(request)
            except ApiError as error:
                return failure(error)
            except Exception:
                logger.exception("%s %s failed", request.method, request.url.path)
                return failure(ApiError(500, "The server had an error while processing your request."))

        return handler


def create_router(impl: OpenAIResponsesImpl) -> APIRouter:
    """The Responses API's routes for one implementation. Has no side effects: the host calls it more than once."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        impl.start()
        yield

    router = APIRouter(prefix="/v1/responses", tags=["Responses"], route_class=ErrorsAsJson, lifespan=lifespan)
    router.add_api_route("", _create(impl), methods=["POST"], summary="Create a model response")
    router.add_api_route("", _list(impl), methods=["GET"], summary="List responses")
    router.add_api_route("/{response_id}", _retrieve(impl), methods=["GET"], summary="Retrieve a response")
    router.add_api_route("/{response_id}", _delete(impl), methods=["DELETE"], summary="Delete a response")
    router.add_api_route("/{response_id}/cancel", _cancel(impl), methods=["POST"], summary="Cancel a response")
    router.add_api_route(
        "/{response_id}/input_items", _input_items(impl), methods=["GET"], summary="List a response's input items"
    )
    # Last, so that whatever is a route above is not taken for one of these.
    for path in ("", "/{response_id}", "/{response_id}/{part}"):
        router.add_api_route(path, _nothing(router), methods=list(_METHODS), include_in_schema=False)
    return router


Handler = Callable[..., Coroutine[Any, Any, Response]]


def _create(impl: OpenAIResponsesImpl) -> Handler:
    async def create_response(request: Request) -> Response:
        body = _decode(await _read(request, impl.config.limits.request_bytes))
        made = await impl.create(body, _idempotency_key(request))
        if isinstance(made, Kept):
            return await _kept(impl, made, stream=bool(body.get("stream")))
        return RunAsEvents(made) if body.get("stream") else RunAsJson(made)

    return create_response


async def _kept(impl: OpenAIResponsesImpl, made: Kept, *, stream: bool) -> Response:
    response_id = made.response["id"]
    headers = {"idempotent-replayed": "true"} if made.replayed else {}
    if stream:
        return await _followed(impl, response_id, -1, headers)
    if made.response["background"]:
        return Json(made.response, headers=headers)
    return FinishedAsJson(impl.finish(response_id), headers)


def _idempotency_key(request: Request) -> str | None:
    match request.headers.getlist("idempotency-key"):
        case []:
            return None
        case [key] if _KEY.fullmatch(key):
            return key
    raise bad_request(
        "The Idempotency-Key header must be there once, with 1 to 255 printable ASCII characters.",
        code="invalid_idempotency_key",
    )


def _retrieve(impl: OpenAIResponsesImpl) -> Handler:
    async def retrieve_response(response_id: str, request: Request) -> Response:
        query = Query(request)
        stream, after = query.flag("stream"), query.integer("starting_after", 0, None)
        if not stream:
            return Json(await impl.retrieve(response_id))
        return await _followed(impl, response_id, -1 if after is None else after, {})

    return retrieve_response


async def _followed(impl: OpenAIResponsesImpl, response_id: str, after: int, headers: dict[str, str]) -> Response:
    return followed(await impl.follow(response_id, after, KEEP_ALIVE_AFTER), headers)


def _list(impl: OpenAIResponsesImpl) -> Handler:
    async def list_responses(request: Request) -> Response:
        query = Query(request)
        page = await impl.list(
            limit=query.integer("limit", 1, _MAX_PAGE) or 20,
            after=query.text("after"),
            order=query.order(),
            model=query.text("model"),
        )
        return _page(page)

    return list_responses


def _delete(impl: OpenAIResponsesImpl) -> Handler:
    async def delete_response(response_id: str) -> Response:
        await impl.delete(response_id)
        return Json({"id": response_id, "object": "response", "deleted": True})

    return delete_response


def _cancel(impl: OpenAIResponsesImpl) -> Handler:
    async def cancel_response(response_id: str) -> Response:
        return Json(await impl.cancel(response_id))

    return cancel_response


def _input_items(impl: OpenAIResponsesImpl) -> Handler:
    async def list_input_items(response_id: str, request: Request) -> Response:
        query = Query(request)
        page = await impl.input_items(
            response_id,
            limit=query.integer("limit", 1, _MAX_PAGE) or 20,
            after=query.text("after"),
            order=query.order(),
        )
        return _page(page)

    return list_input_items


def _nothing(router: APIRouter) -> Handler:
    async def answer_what_is_no_route(request: Request) -> Response:
        method, path = request.method, request.url.path
        if any(route.matches(request.scope)[0] is Match.PARTIAL for route in router.routes):
            message = f"Not allowed to {method} on {path}. Perhaps you meant to use a different HTTP method."
            raise ApiError(405, message, code="method_not_supported")
        raise ApiError(404, f"Invalid URL ({method} {path}).")

    return answer_what_is_no_route


class Query:
    """The query of a request, read as OpenAI reads it."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params

    def text(self, name: str) -> str | None:
        """The value, or None when it is missing or empty."""
        return self._query.get(name) or None

    def flag(self, name: str) -> bool:
        """`true` or `false`; false when it is missing."""
        value = self._query.get(name, "false").lower()
        if value not in ("true", "false"):
            raise bad_request(f"Invalid value for '{name}': expected 'true' or 'false'.", name, "invalid_value")
        return value == "true"

    def integer(self, name: str, low: int, high: int | None) -> int | None:
        """A whole number from `low` to `high`, or None when it is missing."""
        if (value := self._query.get(name)) is None:
            return None
        if not _NUMBER.fullmatch(value) or int(value) < low or (high is not None and int(value) > high):
            bounds = f"from {low} to {high}" if high is not None else f"of at least {low}"
            raise bad_request(f"Invalid value for '{name}': expected an integer {bounds}.", name, "invalid_value")
        return int(value)

    def order(self) -> Literal["asc", "desc"]:
        """`asc` or `desc`; OpenAI's default is the newest first."""
        value = self._query.get("order", "desc")
        if value not in ("asc", "desc"):
            raise bad_request("Invalid value for 'order': expected 'asc' or 'desc'.", "order", "invalid_value")
        return cast("Literal['asc', 'desc']", value)


def _page(page: Page) -> Json:
    data = page.data
    return Json(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": page.has_more,
        }
    )


async def _read(request: Request, limit: int) -> bytes:
    """The body, if it has no more than `limit` bytes; it is not collected past that."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise ApiError(413, f"The request's body is larger than {limit} bytes.", code="request_too_large")
        pieces.append(piece)
    return b"".join(pieces)


def _decode(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(
            f"We could not parse the JSON body of your request: {error}. The body must be a JSON object."
        ) from error
    if not isinstance(value, dict):
        raise bad_request("The request's body must be a JSON object.")
    return value
