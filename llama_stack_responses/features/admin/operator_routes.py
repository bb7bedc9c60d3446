"""The routes of operators: what all users of their tenant have stored, and the audit log."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from ...core.errors import bad_request
from ...core.ids import check_conversation_id, check_response_id
from ...core.owner import Owner
from ...core.shapes import Schema
from ...core.statuses import STATUSES
from ...core.types import Json
from ...feature import Feature, PageView, RouteAdmission, Stack
from ...items.listed_items import Page
from ...requests.conversation_bodies import conversation_object, no_conversation
from ...service.responses import OpenAIResponsesImpl
from ...store.all_lists import OwnedRows
from ...store.audit_log import wanted_entries
from ...store.list_row_pages import Rows, Span, cursor_text, parsed_cursor
from ...wire.http_responses import JsonResponse
from ...wire.openapi import (
    CONVERSATION,
    ITEMS,
    PAGING,
    RESPONSE,
    TEXT,
    TIME,
    an_id,
    constant,
    deleted,
    described,
    one_of,
    page,
    whole,
)
from ...wire.operators import NAME_CHARACTERS, Operators
from ...wire.request_cycle import cycle_of, while_connected
from ...wire.request_handling import Handler, Query, add_fallback, page_of, routes_within
from .store_view import StoreView, owner_fields

_ROW: Final = whole(
    id=an_id("resp"), status=one_of(*STATUSES), model=TEXT, created_at=TIME, owner=whole(principal=TEXT)
)
_ENTRY: Final = whole(object=constant("audit_log"), id=an_id("audit"), type=TEXT, effective_at=TIME, outcome=TEXT)
_NEWEST: Final = {name: PAGING[name] for name in ("limit", "after")}


def open_operators(stack: Stack) -> Feature:
    """Return the routes as a feature, with a view of the audit log on the page."""

    def routes(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
        return operator_router(impl, limits, stack.operators, StoreView(stack.records))

    return Feature(routes=[routes], views=[PageView("admin", "Audit log", "clock", "a", of_operators=True)])


def operator_router(
    impl: OpenAIResponsesImpl, limits: RouteAdmission, operators: Operators, view: StoreView
) -> APIRouter:
    """Return the routes.

    Args:
        operators: admits operators, and has the audit log, in which they read.
        view: reads what all users have stored.
    """
    router, kind = APIRouter(), routes_within(limits)
    filters: dict[str, Schema] = {**_NEWEST, "owner": TEXT}

    def group(name: str, *routes: tuple[str, str, Handler, str, dict[str, Any]]) -> None:
        of_group = APIRouter(prefix=f"/v1/admin/{name}", tags=["Administration"], route_class=kind)
        for method, path, answer, summary, description in routes:
            of_group.add_api_route(path, answer, methods=[method], summary=summary, **description)
        add_fallback(of_group)
        router.include_router(of_group)

    responses = _Responses(impl, limits, operators, view)
    one, items = "/{response_id}", described(ITEMS, query=PAGING)
    rows = described(page(_ROW), query={**filters, "model": TEXT, "status": one_of(*STATUSES)})
    group(
        "responses",
        ("GET", "", responses.list, "List all users' responses", rows),
        ("GET", one, responses.retrieve, "Retrieve any user's response", described(RESPONSE)),
        ("GET", f"{one}/input_items", responses.input_items, "List the input of any user's response", items),
        ("POST", f"{one}/cancel", responses.cancel, "Cancel any user's response", described(RESPONSE)),
        ("DELETE", one, responses.delete, "Delete any user's response", described(deleted("response"))),
    )
    talks = _Conversations(impl, limits, operators, view)
    one, gone = "/{conversation_id}", described(deleted("conversation.deleted"))
    found = described(page(CONVERSATION), query=filters)
    group(
        "conversations",
        ("GET", "", talks.list, "List all users' conversations", found),
        ("GET", one, talks.retrieve, "Retrieve any user's conversation", described(CONVERSATION)),
        ("GET", f"{one}/items", talks.items, "List the items of any user's conversation", items),
        ("DELETE", one, talks.delete, "Delete any user's conversation", gone),
    )
    entries = described(page(_ENTRY), query={**filters, "actor": TEXT, "type": TEXT, "resource_id": TEXT})
    group("audit", ("GET", "", _Audit(operators).list, "List the audit log", entries))
    return router


class _Acting:
    """What the routes share: who may act, for whom, and what the answer may hold."""

    def __init__(
        self, impl: OpenAIResponsesImpl, limits: RouteAdmission, operators: Operators, view: StoreView
    ) -> None:
        self._impl = impl
        self._limits = limits
        self._operators = operators
        self._view = view
        self._as = impl.access.acting_for


class _Responses(_Acting):
    async def list(self, request: Request) -> Response:
        listed = await self._operators.admit_list(request, "response.listed")
        await self._operators.record(request, "response.listed", owner=listed.owner)
        query, archive = listed.query, self._impl.archive
        wanted = {name: value for name in ("model", "status") if (value := query.text(name)) is not None}
        after, limit, has = query.text("after"), query.limit(), partial(_has, wanted) if wanted else None
        span = Span(after=await self._position(after) if after else None)
        if listed.owner is None:
            reading = _rows_of(archive.all_lists.page(listed.tenant, span, limit, has))
        else:
            reading = archive.listing.page(listed.owner, span, limit, has)
        page = await while_connected(request.scope, reading)
        shown = [_shown(await self._view.with_owner(row)) for row in page.rows]
        ends_with_row = page.next is None or page.cursors[-1:] == [page.next]
        return page_of(shown, has_more=page.next is not None, last=None if ends_with_row else cursor_text(page.next))

    async def _position(self, after: str) -> tuple[str, str]:
        """Return the cursor of a response, or that with which a page ended that found no more rows in its time."""
        if not after.startswith("resp_"):
            return parsed_cursor(after)
        entry = await self._impl.archive.entry(check_response_id(after, "after"))
        if entry is None:
            raise bad_request(f"Response with id '{after}' not found.", "after", "invalid_value")
        return entry.order, after

    async def retrieve(self, response_id: str, request: Request) -> Response:
        owner = await self._owner(request, "response.read", response_id)
        hold = self._limits.hold_value(request.scope)
        with self._as(owner, {}):
            response = await self._impl.reader.retrieve(response_id, hold)
        return JsonResponse(response | {"owner": owner_fields(owner)})

    async def input_items(self, response_id: str, request: Request) -> Response:
        query = Query(request)
        owner = await self._owner(request, "response.read", response_id)
        hold = self._limits.bodies.hold(request)
        with self._as(owner, {}):
            found = await self._impl.reader.input_items(response_id, **query.paging(), hold=hold)
        return _items(found)

    async def cancel(self, response_id: str, request: Request) -> Response:
        owner = await self._owner(request, "response.cancelled", response_id)
        hold = self._limits.hold_value(request.scope)
        with self._as(owner, {}):
            return JsonResponse(await self._impl.cancel(response_id, hold))

    async def delete(self, response_id: str, request: Request) -> Response:
        owner = await self._owner(request, "response.deleted", response_id)
        with self._as(owner, {}):
            await self._impl.delete(response_id)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})

    async def _owner(self, request: Request, act: str, response_id: str) -> Owner:
        owner = await self._operators.owner_of_response(request, act, response_id, self._impl.archive)
        _reserve_answer(request)
        return owner


class _Conversations(_Acting):
    async def list(self, request: Request) -> Response:
        listed = await self._operators.admit_list(request, "conversation.listed")
        await self._operators.record(request, "conversation.listed", owner=listed.owner)
        after = listed.query.text("after")
        found = await self._view.conversations(
            listed.tenant,
            listed.owner,
            listed.query.limit(),
            check_conversation_id(after, "after") if after else None,
        )
        shown = [
            {**conversation_object(each.id, each.created_at, each.metadata), "owner": owner_fields(each.owner)}
            for each in found.data
        ]
        return page_of(shown, has_more=found.last is not None, last=found.last)

    async def retrieve(self, conversation_id: str, request: Request) -> Response:
        owner = await self._owner(request, "conversation.read", conversation_id)
        with self._as(owner, {}):
            found = await self._impl.conversations.retrieve(conversation_id)
        return JsonResponse({**found, "owner": owner_fields(owner)})

    async def items(self, conversation_id: str, request: Request) -> Response:
        query = Query(request)
        owner = await self._owner(request, "conversation.read", conversation_id)
        hold = self._limits.bodies.hold(request)
        with self._as(owner, {}):
            found = await self._impl.conversations.list_items(conversation_id, **query.paging(), hold=hold)
        return _items(found)

    async def delete(self, conversation_id: str, request: Request) -> Response:
        owner = await self._owner(request, "conversation.deleted", conversation_id)
        with self._as(owner, {}):
            await self._impl.conversations.delete(conversation_id)
        return JsonResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def _owner(self, request: Request, act: str, conversation_id: str) -> Owner:
        await self._operators.admit(request, act, conversation_id)
        check_conversation_id(conversation_id, "conversation_id")
        found = await self._impl.archive.conversations.load(conversation_id)
        owner = await self._operators.owner_for(request, act, conversation_id, found.owner if found else None)
        if owner is None:
            raise no_conversation(conversation_id)
        _reserve_answer(request)
        return owner


class _Audit:
    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    async def list(self, request: Request) -> Response:
        listed = await self._operators.admit_list(request, "audit_log.read")
        await self._operators.record(request, "audit_log.read")
        query = listed.query
        wanted = wanted_entries(
            actor=query.text("actor", NAME_CHARACTERS),
            act=query.text("type"),
            object_id=query.text("resource_id"),
            owner=listed.owner,
            tenant=listed.tenant,
        )
        limit = query.limit()
        found, last = await self._operators.log.page(limit, query.text("after"), wanted)
        return page_of(found, has_more=last is not None, last=last)


def _reserve_answer(request: Request) -> None:
    """Have what the answer holds count for the operator, and not for the owner, for whom the rest is done."""
    _ = cycle_of(request.scope).answer_reservation


async def _rows_of(page: Awaitable[OwnedRows]) -> Rows:
    return (await page).page


def _has(wanted: Json, row: Json) -> bool:
    return all(row[name] == value for name, value in wanted.items())


def _shown(row: Json) -> Json:
    return {name: value for name, value in row.items() if name != "version"} | {"owner": owner_fields(row["owner"])}


def _items(found: Page) -> Response:
    return page_of(found.data, has_more=found.has_more)
