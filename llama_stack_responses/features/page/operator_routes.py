"""The routes from which the page shows operators what all users of their tenant have stored."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from fastapi import APIRouter, Request, Response

from ...core.owner import Owner
from ...core.types import Json
from ...feature import Stack
from ...service.responses import OpenAIResponsesImpl
from ...store.audit_log import AuditLog
from ...wire.http_responses import JsonResponse
from ...wire.openapi import TEXT, described
from ...wire.operators import Operators
from ...wire.request_cycle import cycle_of, while_connected
from ...wire.request_handling import Query, routes_within
from ...wire.response_routes import Routes
from ...wire.route_admission import RouteAdmission
from . import schemas
from .lists import Lists
from .page_routes import FILTERS, filter_of, limit_of
from .response_views import Views
from .search.finding import Search
from .view import owner_of

_OWNER_CHARACTERS: Final = 8192
"""Longer names than the hosts' tokens have."""


def operator_routes(stack: Stack, search: Search | None) -> Sequence[Routes]:
    """Return the routes; nothing if the setting `roles` names no operators.

    Args:
        search: as for the routes of the page's other lists.
    """
    roles = stack.config.roles
    if not roles.operator:
        return []
    operators = Operators(roles, stack.current_user, AuditLog(stack.records, roles.audit_seconds))

    def routes(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
        shown = _Shown(operators, Lists(impl.archive, impl.jobs, None, search), impl, limits)
        router = APIRouter(prefix="/v1/admin/ui", tags=["Administration"], route_class=routes_within(limits))
        query = {**FILTERS, "owner": TEXT, "limit": limit_of(100), "after": TEXT}
        listed, viewed = described(schemas.OWNED_ROWS, query=query), described(schemas.VIEW)
        router.add_api_route("/responses", shown.list, summary="List all users' responses for the page", **listed)
        router.add_api_route("/responses/{response_id}", shown.one, summary="Show any user's response", **viewed)
        return router

    return [routes]


class _Shown:
    def __init__(self, operators: Operators, lists: Lists, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> None:
        self._operators, self._lists, self._impl, self._limits = operators, lists, impl, limits
        self._views = Views(impl, lists)

    async def list(self, request: Request) -> Response:
        query, wanted = Query(request), filter_of(request)
        limit, after = query.integer("limit", 1, 100) or 50, query.text("after")
        tenant = (await self._operators.admit(request, "response.listed")).user.tenant
        name = query.text("owner", _OWNER_CHARACTERS)
        owner = None if name is None else Owner(name, tenant=tenant)
        await self._operators.record(request, "response.listed", owner=owner)
        if owner is None:
            page = self._lists.page_of_all(tenant, wanted, after, limit)
        else:
            page = _owned(owner, self._lists.page(owner, wanted, after, limit, "desc"))
        return JsonResponse(await while_connected(request.scope, page))

    async def one(self, response_id: str, request: Request) -> Response:
        owner = await self._operators.owner_of_response(request, "response.read", response_id, self._impl.archive)
        _ = cycle_of(request.scope).answer_reservation  # What the answer holds counts for the operator.
        hold = self._limits.hold_value(request.scope)
        with self._impl.access.acting_for(owner, {}):
            return JsonResponse(await self._views.response(response_id, hold))


async def _owned(owner: Owner, page: Awaitable[Json]) -> Json:
    """Return a page of an owner's list, each row with its `owner`."""
    found = await page
    return found | {"data": [row | {"owner": owner_of(owner)} for row in found["data"]]}
