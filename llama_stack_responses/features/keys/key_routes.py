"""The routes under `/v1/admin/keys`, for operators, and for the leads of teams."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from ...core.errors import ApiError, bad_request
from ...core.owner import Owner
from ...core.shapes import Schema
from ...items.listed_items import page_after
from ...store.access_keys import AccessKey, AccessKeys, NewKey, check_key_id, new_key_id, no_key
from ...wire.http_responses import JsonResponse
from ...wire.openapi import PAGING, TEXT, WHOLE, an_id, array_of, constant, deleted, described, page, whole
from ...wire.operators import Admitted, Operators
from ...wire.request_handling import Handler, Query, add_fallback, page_of, routes_within
from ...wire.route_admission import RouteAdmission
from .key_objects import belongs_to, key_object
from .new_key import bounded, check_covered, checked

_KEY: Final = whole(
    object=constant("organization.admin_api_key"),
    id=an_id("key"),
    name=TEXT,
    redacted_value=TEXT,
    created_at=WHOLE,
    owner=whole(id=TEXT),
    status=TEXT,
)
_CREATED: Final[Schema] = {**_KEY, "properties": {**_KEY["properties"], "value": TEXT}}
_NAMES: Final[Schema] = array_of(TEXT)
_NEW: Final[Schema] = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "owner": TEXT,
        "team": TEXT,
        "roles": _NAMES,
        "models": _NAMES,
        "limits": {"type": "object"},
        "expires_in_seconds": WHOLE,
    },
    "required": ["name"],
    "additionalProperties": False,
}
_ROTATION: Final[Schema] = {"type": "object", "properties": {"overlap_seconds": WHOLE}, "additionalProperties": False}
_MAX_OVERLAP_SECONDS: Final = 8_760 * 3_600


def keys_router(keys: AccessKeys, operators: Operators, limits: RouteAdmission, overlap_seconds: float) -> APIRouter:
    """Return the routes for these keys.

    Args:
        operators: admits operators and leads of teams.
        overlap_seconds: time for which a rotation that names no other accepts the old token.
    """
    routes = _Routes(keys, operators, limits, overlap_seconds)
    router = APIRouter(prefix="/v1/admin/keys", tags=["Administration"], route_class=routes_within(limits))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    example = {"name": "Ada's laptop", "owner": "ada", "team": "search", "expires_in_seconds": 7_776_000}
    add("POST", "", routes.create, "Create a key", described(_CREATED, body=_NEW, example=example))
    add("GET", "", routes.list, "List keys", described(page(_KEY), query={**PAGING, "owner": TEXT, "team": TEXT}))
    add("GET", "/{key_id}", routes.retrieve, "Retrieve a key", described(_KEY))
    rotated = described(_CREATED, body=_ROTATION, example={"overlap_seconds": 3600}, optional=True)
    add("POST", "/{key_id}/rotate", routes.rotate, "Give a key a new token", rotated)
    gone = described(deleted("organization.admin_api_key.deleted"))
    add("DELETE", "/{key_id}", routes.revoke, "Revoke a key", gone)
    add_fallback(router)
    return router


class _Routes:
    def __init__(self, keys: AccessKeys, operators: Operators, limits: RouteAdmission, overlap_seconds: float) -> None:
        self._keys = keys
        self._operators = operators
        self._limits = limits
        self._overlap_seconds = overlap_seconds

    async def create(self, request: Request) -> Response:
        act = "api_key.created"
        admitted = await self._operators.admit(request, act, leads=True)
        new = _new_key(await self._limits.bodies.json(request), admitted)
        if admitted.team:
            try:
                new = await self._of_lead(new, admitted)
            except ApiError:
                await self._operators.refuse(request, act, owner=new.owner)
                raise
        key_id = new_key_id()
        await self._operators.record(request, act, key_id, new.owner)
        key, token = await self._keys.create(new, key_id)
        return JsonResponse(key_object(key, None, key.created_at) | {"value": token})

    async def list(self, request: Request) -> Response:
        query = Query(request)
        admitted = await self._operators.admit(request, "api_key.listed", leads=True)
        await self._operators.record(request, "api_key.listed")
        owner, team = query.text("owner"), query.text("team")
        found = [key async for key in self._keys.all() if _is_seen(key, admitted) and belongs_to(key, owner, team)]
        found.sort(key=lambda key: (key.created_at, key.id), reverse=query.order() == "desc")
        shown = page_after([{"id": key.id, "key": key} for key in found], query.text("after"), query.limit())
        keys = [each["key"] for each in shown.data]
        uses, now = await self._keys.last_uses([key.id for key in keys]), await self._keys.now()
        return page_of([key_object(key, uses.get(key.id), now) for key in keys], has_more=shown.has_more)

    async def retrieve(self, key_id: str, request: Request) -> Response:
        key = await self._found(request, "api_key.read", key_id)
        await self._operators.record(request, "api_key.read", key_id, key.owner)
        uses = await self._keys.last_uses([key.id])
        return JsonResponse(key_object(key, uses.get(key.id), await self._keys.now()))

    async def rotate(self, key_id: str, request: Request) -> Response:
        key = await self._found(request, "api_key.updated", key_id, change=True, takes=True)
        overlap, rotated = _overlap(await self._body(request), self._overlap_seconds), None
        if key.status(await self._keys.now()) == "active":
            await self._operators.record(request, "api_key.updated", key_id, key.owner)
            rotated = await self._keys.rotate(key.id, overlap)
        if rotated is None:
            raise bad_request(f"Key '{key.id}' has expired or was revoked: create another one.", "key_id")
        return JsonResponse(key_object(rotated[0], None, await self._keys.now()) | {"value": rotated[1]})

    async def revoke(self, key_id: str, request: Request) -> Response:
        key = await self._found(request, "api_key.deleted", key_id, change=True)
        if key.revoked_at is None:
            await self._operators.record(request, "api_key.deleted", key_id, key.owner)
            await self._keys.revoke(key.id)
        return JsonResponse({"id": key.id, "object": "organization.admin_api_key.deleted", "deleted": True})

    async def _body(self, request: Request) -> Any:
        return await self._limits.bodies.json(request, optional=True)

    async def _found(
        self, request: Request, act: str, key_id: str, *, change: bool = False, takes: bool = False
    ) -> AccessKey:
        """Return a key that the user may see, change, or take the token of; write that they may not."""
        admitted = await self._operators.admit(request, act, key_id, leads=True)
        key = await self._keys.find(check_key_id(key_id))
        if key is None or not _is_seen(key, admitted):
            await self._operators.refuse(request, act, key_id)
            raise no_key(key_id)
        if change and admitted.team:
            try:
                await self._check_lead(key, admitted, takes=takes)
            except ApiError:
                await self._operators.refuse(request, act, key_id, key.owner)
                raise
        return key

    async def _check_lead(self, key: AccessKey, lead: Admitted, *, takes: bool) -> None:
        """Check that a team's lead may revoke a key of the team, or take its token, which is as good as a new key.

        Raises:
            ApiError: 403, the lead may not.
        """
        if key.roles:
            raise _beyond_team()
        if takes:
            await self._check_user(key.owner, lead)
            check_covered(key, lead.user)

    async def _of_lead(self, new: NewKey, lead: Admitted) -> NewKey:
        """Return a key that a team's lead may create: one without roles for a user who has keys of the team only.

        A key for another user would let the lead act as that user.

        Raises:
            ApiError: 403, the lead may not create it.
        """
        if new.roles or new.team != lead.team:
            raise _beyond_team()
        await self._check_user(new.owner, lead)
        return bounded(new, lead.user)

    async def _check_user(self, user: Owner, lead: Admitted) -> None:
        owned = [key async for key in self._keys.all() if key.owner.identity == user.identity]
        if not owned or any(key.team != lead.team or key.roles for key in owned):
            raise _beyond_team()


def _is_seen(key: AccessKey, admitted: Admitted) -> bool:
    return key.owner.tenant == admitted.user.tenant and admitted.team in ("", key.team)


def _beyond_team() -> ApiError:
    message = (
        "The lead of a team may create and rotate keys without roles, of users whose keys are all of the team: ask an "
        "operator."
    )
    return ApiError(403, message, code="insufficient_permissions")


def _new_key(body: Any, admitted: Admitted) -> NewKey:
    """Return the key that a request describes.

    Raises:
        ApiError: 400, it is invalid.
    """
    given = _object(body, _NEW)
    owner = Owner(_text(given, "owner", admitted.user.principal), tenant=admitted.user.tenant)
    seconds = given.get("expires_in_seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int)):
        raise _wrong("expires_in_seconds", "a whole number")
    limits = given.get("limits") or {}
    if not isinstance(limits, dict):
        raise _wrong("limits", "an object")
    return checked(
        NewKey(
            _text(given, "name", ""),
            owner,
            _text(given, "team", admitted.team),
            _texts(given, "roles") or [],
            _texts(given, "models"),
            limits,
            seconds,
        )
    )


def _overlap(body: Any, default: float) -> float:
    given = _object(body or {}, _ROTATION)
    seconds = given.get("overlap_seconds", default)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_OVERLAP_SECONDS:
        raise _wrong("overlap_seconds", f"a number from 0 to {_MAX_OVERLAP_SECONDS}")
    return seconds


def _object(body: Any, shape: Schema) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise bad_request("The body is not a JSON object.")
    for name in body:
        if name not in shape["properties"]:
            raise bad_request(f"Unknown parameter: '{name[:80]}'.", name[:80], "unknown_parameter")
    return body


def _text(given: dict[str, Any], name: str, default: str) -> str:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _wrong(name, "a string")
    return value


def _texts(given: dict[str, Any], name: str) -> list[str] | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(name, "an array of strings")
    return value


def _wrong(name: str, expected: str) -> ApiError:
    return bad_request(f"Invalid value for '{name}': expected {expected}.", name, "invalid_type")
