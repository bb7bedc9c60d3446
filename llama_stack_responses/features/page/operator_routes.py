"""The routes from which the page shows operators what all users of their tenant have stored."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from fastapi import APIRouter, Request, Response

from ...core.owner import Owner
from ...core.types import Json
from ...feature import Stack
from ...service.responses import OpenAIResponsesImpl
from ...wire.http_responses import JsonResponse
from ...wire.openapi import TEXT, described
from ...wire.operators import Operators
from ...wire.request_cycle import cycle_of, while_connected
from ...wire.request_handling import add_fallback, routes_within
from ...wire.response_routes import Routes
from ...wire.route_admission import RouteAdmission
from . import schemas
from .lists import Lists
from .page_routes import FILTERS, filter_of, limit_of
from .response_views import Views
from .search.finding import Search
from .view import owner_of


def operator_routes(stack: Stack, search: Search | None) -> Sequence[Routes]:
    """Return the routes; nothing if the setting `roles` names no operators.

    Args:
        search: as for the routes of the page's other lists.
    """
    if not stack.config.roles.operator:
        return []

    def routes(impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
        shown = _Shown(stack.operators, Lists(impl.archive, impl.jobs, None, search), impl, limits)
        router = APIRouter(prefix="/v1/admin/ui", tags=["Administration"], route_class=routes_within(limits))
        query = {**FILTERS, "owner": TEXT, "limit": limit_of(100), "after": TEXT}
        listed, viewed = described(schemas.OWNED_ROWS, query=query), described(schemas.VIEW)
        router.add_api_route("/responses", shown.list, summary="List all users' responses for the page", **listed)
        router.add_api_route("/responses/{response_id}", shown.one, summary="Show any user's response", **viewed)
        add_fallback(router)
        return router

    return [routes]


class _Shown:
    def __init__(self, operators: Operators, lists: Lists, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> None:
        self._operators, self._lists, self._impl, self._limits = operators, lists, impl, limits
        self._views = Views(impl, lists)

    async def list(self, request: Request) -> Response:
        wanted, listed = filter_of(request), await self._operators.admit_list(request, "response.listed")
        await self._operators.record(request, "response.listed", owner=listed.owner)
        limit, after = listed.query.integer("limit", 1, 100) or 50, listed.query.text("after")
        if listed.owner is None:
            page = self._lists.page_of_all(listed.tenant, wanted, after, limit)
        else:
            page = _owned(listed.owner, self._lists.page(listed.owner, wanted, after, limit, "desc"))
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
