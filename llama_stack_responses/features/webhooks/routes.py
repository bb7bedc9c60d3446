"""The routes under `/v1/webhook_endpoints`, and `/v1/webhook_event_types`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request, Response

from ...core.errors import ApiError, bad_request
from ...core.ids import check_id, new_id
from ...core.owner import Owner
from ...core.shapes import Schema, or_null
from ...core.types import Json
from ...fetch.address_policy import AddressPolicy
from ...items.listed_items import page_after
from ...store.content_names import Hasher
from ...wire.http_responses import JsonResponse
from ...wire.openapi import (
    PAGING,
    TEXT,
    WHOLE,
    YES_OR_NO,
    an_id,
    array_of,
    constant,
    deleted,
    described,
    one_of,
    page,
    whole,
)
from ...wire.request_handling import Handler, Query, add_fallback, page_of, routes_within
from ...wire.route_admission import RouteAdmission
from .deliveries import Deliveries
from .endpoints import OVERLAP_SECONDS, Endpoints, no_endpoint
from .new_endpoint import checked_endpoint, checked_flag, checked_type
from .objects import delivery_object, endpoint_object
from .rows import Endpoint, event_object
from .sending import Sender
from .settings import EVENT_TYPES, Webhooks
from .signing import signed_headers

_TYPES: Final[Schema] = {"type": "array", "items": one_of(*EVENT_TYPES), "minItems": 1}
_ENDPOINT: Final = whole(
    object=constant("webhook_endpoint"),
    id=an_id("we"),
    name=TEXT,
    url=TEXT,
    event_types=array_of(TEXT),
    created_at=WHOLE,
    updated_at=WHOLE,
    signing_secret_hint=TEXT,
    disabled_at=or_null(WHOLE),
    disabled_reason=or_null(TEXT),
)
_WITH_SECRET: Final = whole(**_ENDPOINT["properties"], signing_secret=TEXT)
_NEW: Final = {**whole(name=TEXT, url=TEXT, event_types=_TYPES), "additionalProperties": False}
_CHANGES: Final[Schema] = {"type": "object", "properties": _NEW["properties"], "additionalProperties": False}
_ROTATION: Final[Schema] = {
    "type": "object",
    "properties": {"keep_old_secret_active_for_24_hours": YES_OR_NO},
    "additionalProperties": False,
}
_TEST: Final = {**whole(event_type=one_of(*EVENT_TYPES)), "additionalProperties": False}
_TESTED: Final = whole(
    object=constant("webhook_endpoint.test"),
    webhook_endpoint_id=an_id("we"),
    event_type=TEXT,
    success={"type": "boolean", "const": True},
    status_code=WHOLE,
)
_DELIVERY: Final = whole(
    object=constant("webhook_endpoint.delivery"),
    id=an_id("wh"),
    webhook_endpoint_id=an_id("we"),
    event={"type": "object"},
    status=one_of("waiting", "delivered", "failed"),
    created_at=WHOLE,
    attempts=array_of(whole(at=WHOLE, status_code=or_null(WHOLE), answer=TEXT)),
)


@dataclass(frozen=True, slots=True)
class EndpointRoutes:
    """Answers the requests for the endpoints of users.

    Attributes:
        sender: sends samples.
        address_policy: which addresses endpoints may have.
        look: has the dispatcher look for what is due at an endpoint.
        current_user: returns the user of the current request.
    """

    endpoints: Endpoints
    deliveries: Deliveries
    sender: Sender
    address_policy: AddressPolicy
    look: Callable[[str], None]
    settings: Webhooks
    current_user: Callable[[], Owner]
    limits: RouteAdmission

    async def create(self, request: Request) -> Response:
        given = await self._given(request, whole=True)
        most = self.settings.per_user
        created, secret = await self.endpoints.create(self.current_user(), most=most, **given)
        return JsonResponse(endpoint_object(created, None) | {"signing_secret": secret})

    async def _given(self, request: Request, *, whole: bool) -> Json:
        """Return what a request says of an endpoint."""
        body = await self.limits.bodies.json(request)
        return checked_endpoint(body, self.settings.allow_http, self.address_policy, whole=whole)

    async def list(self, request: Request) -> Response:
        query = Query(request)
        found = await self.endpoints.of_owner(self._of)
        shown = page_after(
            [{"id": each.id, "of": each} for each in reversed(found)], query.text("after"), query.limit()
        )
        states = await self.endpoints.states([each["id"] for each in shown.data])
        objects = [endpoint_object(each["of"], states.get(each["id"])) for each in shown.data]
        return page_of(objects, has_more=shown.has_more)

    async def retrieve(self, webhook_endpoint_id: str) -> Response:
        return JsonResponse(await self._object(await self._found(webhook_endpoint_id)))

    async def update(self, webhook_endpoint_id: str, request: Request) -> Response:
        given = await self._given(request, whole=False)
        found = await self._found(webhook_endpoint_id)
        changed = await self.endpoints.update(self.current_user(), found.id, given)
        return JsonResponse(endpoint_object(changed, None))

    async def delete(self, webhook_endpoint_id: str) -> Response:
        found = await self._found(webhook_endpoint_id)
        await self.endpoints.delete(self.current_user(), found.id)
        return JsonResponse({"id": found.id, "object": "webhook_endpoint.deleted", "deleted": True})

    async def rotate(self, webhook_endpoint_id: str, request: Request) -> Response:
        keep = checked_flag(await self.limits.bodies.json(request, optional=True))
        found = await self._found(webhook_endpoint_id)
        overlap = OVERLAP_SECONDS if keep else 0.0
        rotated, secret = await self.endpoints.rotate(self.current_user(), found.id, overlap)
        return JsonResponse(await self._object(rotated) | {"signing_secret": secret})

    async def test(self, webhook_endpoint_id: str, request: Request) -> Response:
        kind = checked_type(await self.limits.bodies.json(request))
        found, now = await self._found(webhook_endpoint_id), await self.endpoints.now()
        of = "batch" if kind.startswith("batch.") else "resp"
        body = orjson.dumps(event_object(new_id("evt"), kind, new_id(of), now))
        secrets = await self.endpoints.secrets_of(found, now)
        answer = await self.sender.post(found.url, signed_headers(new_id("wh"), int(now), body, secrets), body)
        if answer.status is None:
            raise bad_request(f"The sample could not be delivered. {answer.text}", code="webhook_test_failed")
        tested = {"object": "webhook_endpoint.test", "webhook_endpoint_id": found.id, "event_type": kind}
        return JsonResponse(tested | {"success": True, "status_code": answer.status})

    async def list_deliveries(self, webhook_endpoint_id: str, request: Request) -> Response:
        query, found = Query(request), await self._found(webhook_endpoint_id)
        if after := query.text("after"):
            check_id("wh_", after, "after")
        listed, more = await self.deliveries.page(found.id, after, query.limit())
        return page_of([delivery_object(each) for each in listed], has_more=more)

    async def resend(self, webhook_endpoint_id: str, delivery_id: str) -> Response:
        found = await self._found(webhook_endpoint_id)
        check_id("wh_", delivery_id, "delivery_id")
        again = await self.deliveries.resend(self._of, found.id, delivery_id)
        self.look(found.id)
        return JsonResponse(delivery_object(again))

    @property
    def _of(self) -> str:
        return Hasher(self.current_user()).owner

    async def _object(self, endpoint: Endpoint) -> Json:
        return endpoint_object(endpoint, await self.endpoints.state(endpoint.id))

    async def _found(self, endpoint_id: str) -> Endpoint:
        """Return an endpoint of the current user.

        Raises:
            ApiError: 404, the user has none with this id.
        """
        try:
            check_id("we_", endpoint_id, "webhook_endpoint_id")
        except ApiError:
            raise no_endpoint(endpoint_id) from None
        if found := await self.endpoints.find(self._of, endpoint_id):
            return found
        raise no_endpoint(endpoint_id)


def event_types_router(limits: RouteAdmission) -> APIRouter:
    """Return the route that lists the types of events."""
    router = APIRouter(prefix="/v1/webhook_event_types", tags=["Webhooks"], route_class=routes_within(limits))

    async def types() -> Response:
        return JsonResponse({"object": "list", "data": list(EVENT_TYPES)})

    schema = whole(object=constant("list"), data=array_of(TEXT))
    router.add_api_route("", types, methods=["GET"], summary="List the types of events", **described(schema))
    add_fallback(router)
    return router


def webhooks_router(routes: EndpointRoutes) -> APIRouter:
    """Return the routes for the endpoints of users."""
    router = APIRouter(prefix="/v1/webhook_endpoints", tags=["Webhooks"], route_class=routes_within(routes.limits))

    def add(method: str, path: str, answer: Handler, summary: str, description: dict[str, Any]) -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    example = {"name": "Jobs", "url": "https://hooks.example.com/openai", "event_types": ["response.completed"]}
    paging = {name: PAGING[name] for name in ("after", "limit")}
    one = "/{webhook_endpoint_id}"
    add("POST", "", routes.create, "Create a webhook endpoint", described(_WITH_SECRET, body=_NEW, example=example))
    add("GET", "", routes.list, "List webhook endpoints", described(page(_ENDPOINT), query=paging))
    add("GET", one, routes.retrieve, "Retrieve a webhook endpoint", described(_ENDPOINT))
    changed = described(_ENDPOINT, body=_CHANGES, example={"name": "Finished jobs"})
    add("POST", one, routes.update, "Change a webhook endpoint", changed)
    add("DELETE", one, routes.delete, "Delete a webhook endpoint", described(deleted("webhook_endpoint.deleted")))
    rotated = described(_WITH_SECRET, body=_ROTATION, optional=True)
    add("POST", f"{one}/rotate_secret", routes.rotate, "Give a webhook endpoint a new secret", rotated)
    tested = described(_TESTED, body=_TEST, example={"event_type": "response.completed"})
    add("POST", f"{one}/test", routes.test, "Send a sample to a webhook endpoint", tested)
    listed = described(page(_DELIVERY), query=paging)
    add("GET", f"{one}/deliveries", routes.list_deliveries, "List the deliveries of a webhook endpoint", listed)
    again = f"{one}/deliveries/{{delivery_id}}/resend"
    add("POST", again, routes.resend, "Send a delivery again", described(_DELIVERY))
    add_fallback(router)
    return router
