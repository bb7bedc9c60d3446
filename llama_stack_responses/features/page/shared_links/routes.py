"""The routes of links: for those who make them, and for anyone who has one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter, Request, Response

from ....config.roles import Roles
from ....core.errors import ApiError, bad_request, not_found
from ....core.ids import check_response_id
from ....core.owner import Owner
from ....core.recent_counts import RecentCounts
from ....core.shapes import Location, check_json, integer, object_of, schema_of
from ....core.statuses import UNFINISHED
from ....core.types import Json
from ....service.responses import OpenAIResponsesImpl
from ....store.layout import Entry
from ....store.records import Records
from ....wire.http_responses import JsonResponse
from ....wire.openapi import TEXT, WHOLE, array_of, constant, deleted, described, whole
from ....wire.operators import Operators
from ....wire.public_routes import PublicRoute
from ....wire.request_cycle import cycle_of
from ....wire.request_handling import add_fallback, routes_within
from ....wire.route_admission import RouteAdmission
from ..lists import Lists
from ..response_views import Views
from .links import Link, Links, invalid_link

SHARED: Final = "/v1/ui/shared"
"""The route that needs no token of a user."""
TOKEN_HEADER: Final = "x-shared-link"  # noqa: S105 - the name of a header
"""The header with the token of a link: an address would be in logs."""

_LEAST_SECONDS: Final = 60
_USES: Final = 30
_USES_SECONDS: Final = 60.0
"""Uses of a link within this time, on each server. Each is an entry of the audit log."""
_MAX_USED: Final = 4096
_PRIVATE: Final = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-robots-tag": "noindex, nofollow"}
_LINK: Final = whole(object=constant("ui.link"), id=TEXT, by=TEXT, created_at=WHOLE, expires_at=WHOLE)
_LINKS: Final = whole(object=constant("list"), data=array_of(_LINK))
_MADE: Final = whole(**_LINK["properties"], path=TEXT)
_REVOKED: Final = deleted("ui.links.deleted")
_OF_USERS: Final = ("user", "safety_identifier", "prompt_cache_key")
"""Settings that may name the client's own users."""


type Find = Callable[[Request, str, str], Awaitable[tuple[Entry, int]]]
"""Returns a response for which the user of a request may do something, and the version of its record.

It gets the request, the id, and what is to be done: `created`, `listed` or `deleted`. It raises `ApiError` 404.
"""


class SharedLinks:
    """The routes of links to responses.

    Args:
        records: the store.
        roles: who the operators are.
        operators: admits them, and writes what is done with links.
        max_seconds: the longest time for which a link holds.
    """

    def __init__(self, records: Records, roles: Roles, operators: Operators, max_seconds: int) -> None:
        self._records, self._roles, self._max_seconds = records, roles, max_seconds
        self._operators = operators

    def routes(self, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
        """Return the routes for the owners of responses, and for operators if there are some."""
        router, kind = APIRouter(), routes_within(limits)

        def add(to: APIRouter, path: str, tag: str, whose: str, find: Find) -> None:
            made = _Made(Links(self._records, impl.sealer), find, self._max_seconds, impl, limits)
            new = described(_MADE, body=schema_of(made.body), example={"expires_in_seconds": 3600})
            for method, answer, summary, description in (
                ("GET", made.list, f"List the links to {whose} response", described(_LINKS)),
                ("POST", made.make, f"Make a link to {whose} response", new),
                ("DELETE", made.revoke, f"Revoke the links to {whose} response", described(_REVOKED)),
            ):
                more = description | {"tags": [tag], "route_class_override": kind}
                to.add_api_route(path, answer, methods=[method], summary=summary, **more)

        add(router, "/v1/ui/responses/{response_id}/links", "Page", "a", _of_owner(impl, self._operators))
        if self._roles.operator:
            of_anyone = APIRouter(prefix="/v1/admin/links", route_class=kind)
            add(of_anyone, "/{response_id}", "Administration", "any user's", _of_anyone(impl, self._operators))
            add_fallback(of_anyone)
            router.include_router(of_anyone)
        return router

    def public_routes(self, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> list[PublicRoute]:
        """Return the route for those who have a link."""
        views = Views(impl, Lists(impl.archive, impl.jobs, None))
        reader = _Reader(Links(self._records, impl.sealer), self._operators, views, impl, limits)
        return [PublicRoute(SHARED, reader.show)]


def _of_owner(impl: OpenAIResponsesImpl, operators: Operators) -> Find:
    """Return what finds the responses of the user, and writes what they do with links."""

    async def find(request: Request, response_id: str, act: str) -> tuple[Entry, int]:
        found = await impl.archive.entry_version(check_response_id(response_id, "response_id"))
        if found is None or found[0].owner.identity != impl.access.current_user().identity:
            raise not_found(response_id)
        if act != "listed":
            await operators.record(request, f"link.{act}", response_id, found[0].owner)
        return found

    return find


def _of_anyone(impl: OpenAIResponsesImpl, operators: Operators) -> Find:
    """Return what finds the responses of all users, for operators."""

    async def find(request: Request, response_id: str, act: str) -> tuple[Entry, int]:
        return await operators.response_for(request, f"link.{act}", response_id, impl.archive)

    return find


class _Made:
    def __init__(
        self, links: Links, find: Find, max_seconds: int, impl: OpenAIResponsesImpl, limits: RouteAdmission
    ) -> None:
        self._links, self._find, self._impl, self._limits = links, find, impl, limits
        self.body = object_of({"expires_in_seconds": integer(_LEAST_SECONDS, max_seconds)}, "expires_in_seconds")

    async def list(self, response_id: str, request: Request) -> Response:
        await self._find(request, response_id, "listed")
        links = await self._links.of(response_id)
        return JsonResponse({"object": "list", "data": [_object(each) for each in links]})

    async def make(self, response_id: str, request: Request) -> Response:
        given = await self._limits.bodies.json(request)
        check_json(given)
        seconds = self.body(given, Location("", refuse_unknown=True))["expires_in_seconds"]
        entry, version = await self._find(request, response_id, "created")
        if entry.response["status"] in UNFINISHED:
            message = f"Response '{response_id}' is still in progress: make a link when it has ended."
            raise bad_request(message, code="response_not_ready")
        made = await self._links.make(entry, version, self._impl.access.current_user().principal, seconds)
        if made is None:
            raise not_found(response_id)
        link, token = made
        return JsonResponse({**_object(link), "path": f"/ui/shared#{token}"}, 200, _PRIVATE)

    async def revoke(self, response_id: str, request: Request) -> Response:
        await self._find(request, response_id, "deleted")
        await self._links.revoke(response_id)
        return JsonResponse({"id": response_id, "object": "ui.links.deleted", "deleted": True})


class _Reader:
    """Shows a response to those who have a link to it.

    A use counts as one of a user whose name is the id of the link, in the audit log and in the limits.
    """

    def __init__(
        self, links: Links, operators: Operators, views: Views, impl: OpenAIResponsesImpl, limits: RouteAdmission
    ) -> None:
        self._links, self._operators, self._views, self._limits = links, operators, views, limits
        self._impl = impl
        self._uses: RecentCounts[str] = RecentCounts(_USES_SECONDS, _MAX_USED)

    async def show(self, request: Request) -> Response:
        try:
            return await self._shown(request)
        except ApiError as error:
            error.headers = {**error.headers, **_PRIVATE}
            raise

    async def _shown(self, request: Request) -> Response:
        response_id, link = await self._links.opened(request.headers.get(TOKEN_HEADER, ""))
        if self._uses.add(link.id) > _USES:
            raise ApiError(429, "This link is used too often. Try again in a minute.", retry_after=int(_USES_SECONDS))
        entry = await self._impl.archive.entry(response_id)
        if entry is None:
            raise invalid_link()
        with self._impl.access.acting_for(Owner(link.id, tenant=entry.owner.tenant), {}):
            await self._operators.record(request, "link.used", response_id, entry.owner)
            _ = cycle_of(request.scope).answer_reservation  # What the answer holds counts for the link.
        hold = self._limits.hold_value(request.scope)
        with self._impl.access.acting_for(entry.owner, {}):
            view = await self._views.response(response_id, hold)
        return JsonResponse(_alone(view) | {"expires_at": link.expires_at}, 200, _PRIVATE)


def _alone(view: Json) -> Json:
    """Return the view of a response without what leads to others, and without what only its owner needs."""
    facts, summary = view["facts"], view["summary"]
    nothing = dict.fromkeys(("previous_response_id", "conversation"))
    settings = {name: value for name, value in facts["settings"].items() if name not in _OF_USERS}
    return {
        **view,
        "summary": {**summary, **nothing, "waits_for": None, "asks": [], "answers": []},
        "facts": {**facts, **nothing, "settings": settings},
        "continued_by": [],
        "owner": {"name": "", "tenant": ""},
        "score": None,
        "requests": 0,
        "replayable": False,
    }


def _object(link: Link) -> Json:
    return {"object": "ui.link", **link.fields()}
