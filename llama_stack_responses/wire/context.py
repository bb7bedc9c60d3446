"""The routes below `/v1/responses` that are about a conversation's length and make no response."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from llama_stack_responses.counting import Counting

from .answers import Json
from .asked import METHODS, ErrorsAsJson, Handler, decode, nothing, read_body


def context_router(counting: Counting, request_bytes: int) -> APIRouter:
    """The routes; a request's body has at most `request_bytes` bytes."""
    router = APIRouter(prefix="/v1/responses", tags=["Responses"], route_class=ErrorsAsJson)
    router.add_api_route("/input_tokens", _count(counting, request_bytes), methods=["POST"], summary="Count tokens")
    router.add_api_route("/input_tokens", nothing(router), methods=METHODS, include_in_schema=False)
    return router


def _count(counting: Counting, request_bytes: int) -> Handler:
    async def count_input_tokens(request: Request) -> Response:
        body = decode(await read_body(request, request_bytes))
        return Json(await counting.count(body))

    return count_input_tokens
