"""The routes below `/v1/responses` that are about a conversation's length and make no response."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from llama_stack_responses.compaction import COMPACTED, Compaction
from llama_stack_responses.core.request import FIELDS, request_schema
from llama_stack_responses.counting import NOT_COUNTED, Counting

from .answers import FinishedAsJson, Json
from .asked import METHODS, ErrorsAsJson, Handler, decode, nothing, read_body
from .schemas import COMPACTION, TOKENS, described


def context_router(counting: Counting, compaction: Compaction, request_bytes: int) -> APIRouter:
    """The routes; a request's body has at most `request_bytes` bytes."""
    router = APIRouter(prefix="/v1/responses", tags=["Responses"], route_class=ErrorsAsJson)

    def add(path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=["POST"], summary=summary, **description)
        router.add_api_route(path, nothing(router), methods=METHODS, include_in_schema=False)

    example = {"model": "local/qwen3", "input": "Write a haiku about the sea."}
    counted = described(TOKENS, body=request_schema(FIELDS - NOT_COUNTED), example=example)
    compacted = described(COMPACTION, body=request_schema(COMPACTED), example=example)
    add("/input_tokens", _count(counting, request_bytes), "Count tokens", counted)
    add("/compact", _compact(compaction, request_bytes), "Compact", compacted)
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
