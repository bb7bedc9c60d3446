"""The routes below `/v1/responses` that are about a conversation's length and make no response."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from llama_stack_responses.compaction import Compaction
from llama_stack_responses.counting import Counting

from .answers import FinishedAsJson, Json
from .asked import METHODS, ErrorsAsJson, Handler, decode, nothing, read_body


def context_router(counting: Counting, compaction: Compaction, request_bytes: int) -> APIRouter:
    """The routes; a request's body has at most `request_bytes` bytes."""
    router = APIRouter(prefix="/v1/responses", tags=["Responses"], route_class=ErrorsAsJson)
    router.add_api_route("/input_tokens", _count(counting, request_bytes), methods=["POST"], summary="Count tokens")
    router.add_api_route("/compact", _compact(compaction, request_bytes), methods=["POST"], summary="Compact")
    for path in ("/input_tokens", "/compact"):
        router.add_api_route(path, nothing(router), methods=METHODS, include_in_schema=False)
    return router


def _count(counting: Counting, request_bytes: int) -> Handler:
    async def count_input_tokens(request: Request) -> Response:
        body = decode(await read_body(request, request_bytes))
        return Json(await counting.count(body))

    return count_input_tokens


def _compact(compaction: Compaction, request_bytes: int) -> Handler:
    async def compact_conversation(request: Request) -> Response:
        body = decode(await read_body(request, request_bytes))
        return FinishedAsJson(compaction.compact(body), {})

    return compact_conversation
