"""The routes under `/v1/conversations`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from ..service.conversations import Conversations
from .http_responses import JsonResponse
from .openapi import (
    CONVERSATION,
    INCLUDE,
    ITEM,
    ITEMS,
    METADATA,
    NEW_CONVERSATION,
    NEW_ITEMS,
    PAGING,
    deleted,
    described,
)
from .request_handling import Handler, add_fallback, page_of, query_of_items, routes_within
from .route_admission import RouteAdmission


def conversations_router(conversations: Conversations, limits: RouteAdmission) -> APIRouter:
    """Return the routes for these conversations."""
    routes = _Routes(conversations, limits)
    router = APIRouter(prefix="/v1/conversations", tags=["Conversations"], route_class=routes_within(limits))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    one, items = "/{conversation_id}", "/{conversation_id}/items"
    created = described(CONVERSATION, body=NEW_CONVERSATION, example={"metadata": {"topic": "otters"}}, optional=True)
    add("POST", "", routes.create, "Create a conversation", created)
    add("GET", one, routes.retrieve, "Retrieve a conversation", described(CONVERSATION))
    updated = described(CONVERSATION, body=METADATA, example={"metadata": {"topic": "seals"}})
    add("POST", one, routes.update, "Update a conversation's metadata", updated)
    gone = described(deleted("conversation.deleted"))
    add("DELETE", one, routes.delete, "Delete a conversation and its items", gone)
    example = {"items": [{"role": "user", "content": "Hello!"}]}
    put = described(ITEMS, body=NEW_ITEMS, example=example, query=INCLUDE)
    add("POST", items, routes.create_items, "Add items to a conversation", put)
    add("GET", items, routes.list_items, "List a conversation's items", described(ITEMS, query={**PAGING, **INCLUDE}))
    path = f"{items}/{{item_id:any_path}}"
    add("GET", path, routes.retrieve_item, "Retrieve a conversation's item", described(ITEM, query=INCLUDE))
    add("DELETE", path, routes.delete_item, "Delete a conversation's item", described(CONVERSATION))
    add_fallback(router)
    return router


class _Routes:
    def __init__(self, conversations: Conversations, limits: RouteAdmission) -> None:
        self._conversations = conversations
        self._limits = limits

    async def create(self, request: Request) -> Response:
        body = await self._limits.bodies.json(request, optional=True)
        return JsonResponse(await self._conversations.create(body, self._limits.bodies.hold(request)))

    async def retrieve(self, conversation_id: str) -> Response:
        return JsonResponse(await self._conversations.retrieve(conversation_id))

    async def update(self, conversation_id: str, request: Request) -> Response:
        body = await self._limits.bodies.json(request)
        return JsonResponse(await self._conversations.update(conversation_id, body))

    async def delete(self, conversation_id: str) -> Response:
        await self._conversations.delete(conversation_id)
        return JsonResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def create_items(self, conversation_id: str, request: Request) -> Response:
        query_of_items(request)
        body = await self._limits.bodies.json(request)
        hold = self._limits.bodies.hold(request)
        return page_of(await self._conversations.add_items(conversation_id, body, hold), has_more=False)

    async def list_items(self, conversation_id: str, request: Request) -> Response:
        query = query_of_items(request)
        page = await self._conversations.list_items(
            conversation_id,
            **query.paging(),
            hold=self._limits.bodies.hold(request),
        )
        return page_of(page.data, has_more=page.has_more)

    async def retrieve_item(self, conversation_id: str, item_id: str, request: Request) -> Response:
        query_of_items(request)
        hold = self._limits.bodies.hold(request)
        return JsonResponse(await self._conversations.retrieve_item(conversation_id, item_id, hold))

    async def delete_item(self, conversation_id: str, item_id: str) -> Response:
        return JsonResponse(await self._conversations.delete_item(conversation_id, item_id))
