"""The route of the score of a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from ...core.errors import ApiError, bad_request, not_found
from ...core.ids import check_response_id
from ...core.shapes import Location, check_json, number, object_of, or_null, schema_of, string
from ...core.types import Json
from ...service.responses import OpenAIResponsesImpl
from ...store.conflict_retry import ConflictRetry
from ...store.layout import Entry
from ...store.scores import Score
from ...wire.http_responses import JsonResponse
from ...wire.openapi import TEXT, TIME, an_id, constant, deleted, described, whole
from ...wire.operators import Operators
from ...wire.request_handling import add_fallback, routes_within
from ...wire.route_admission import RouteAdmission

_NOTE_CHARACTERS: Final = 1_000
_NEW: Final = object_of({"score": number(0, 1), "note": string(0, _NOTE_CHARACTERS)})
_SCORE: Final = whole(
    object=constant("response.score"),
    response_id=an_id("resp"),
    score=or_null({"type": "number", "minimum": 0, "maximum": 1}),
    note=TEXT,
    by=TEXT,
    at=TIME,
)


type Find = Callable[[Request, str, str], Awaitable[tuple[Entry, int]]]
"""Returns a response of which the user of a request may read or write the score, and the version of its record.

It gets the request, the id, and what is to be done: `read`, `updated` or `deleted`. It raises `ApiError`: 404, the
response is unknown, not stored yet, deleted, or another user's; 403, the user may not do this.
"""


def scores_router(operators: Operators | None, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
    """Return the routes of the scores of responses.

    Args:
        operators: admits operators to the responses of others; None if there are none.
    """
    router = APIRouter()
    _add(router, "/v1/responses/{response_id}/score", "Responses", "a", _Routes(_of_user(impl), impl, limits))
    if operators:
        found = _Routes(_of_anyone(impl, operators), impl, limits)
        of_anyone = APIRouter(prefix="/v1/admin/scores", route_class=routes_within(limits))
        _add(of_anyone, "/{response_id}", "Administration", "any user's", found)
        add_fallback(of_anyone)
        router.include_router(of_anyone)
    return router


def _add(router: APIRouter, path: str, tag: str, whose: str, routes: _Routes) -> None:
    written = described(_SCORE, body=schema_of(_NEW), example={"score": 1, "note": "Cites the right page."})
    gone = described(deleted("response.score.deleted"))
    for method, answer, summary, description in (
        ("GET", routes.retrieve, f"Retrieve the score of {whose} response", described(_SCORE)),
        ("POST", routes.write, f"Score {whose} response", written),
        ("DELETE", routes.delete, f"Delete the score of {whose} response", gone),
    ):
        kind = routes_within(routes.limits)
        router.add_api_route(
            path, answer, methods=[method], tags=[tag], summary=summary, route_class_override=kind, **description
        )


def _of_user(impl: OpenAIResponsesImpl) -> Find:
    """Return what finds the responses that the access policy lets the user read or update."""

    async def find(_: Request, response_id: str, action: str) -> tuple[Entry, int]:
        found = await impl.archive.entry_version(check_response_id(response_id, "response_id"))
        if found is None:
            raise not_found(response_id)
        impl.reader.check_access(response_id, found[0].owner, "read" if action == "read" else "update")
        return found

    return find


def _of_anyone(impl: OpenAIResponsesImpl, operators: Operators) -> Find:
    """Return what finds the responses of all users, for operators."""

    async def find(request: Request, response_id: str, action: str) -> tuple[Entry, int]:
        return await operators.response_for(request, f"score.{action}", response_id, impl.archive)

    return find


class _Routes:
    def __init__(self, find: Find, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> None:
        self._find, self._impl, self.limits = find, impl, limits
        self._scores = impl.archive.scores

    async def retrieve(self, response_id: str, request: Request) -> Response:
        entry, _ = await self._find(request, response_id, "read")
        score = await self._scores.find(entry)
        if score is None:
            raise ApiError(404, f"Response '{response_id}' has no score.", param="response_id")
        return JsonResponse(_object(response_id, score))

    async def write(self, response_id: str, request: Request) -> Response:
        given = _given(await self.limits.bodies.json(request))
        entry, version = await self._find(request, response_id, "updated")
        by, at = self._impl.access.current_user().principal, int(await self._scores.now())
        score = Score(given.get("score"), given.get("note", ""), by, at)
        retry = ConflictRetry()
        while not await self._scores.put(entry, version, score):
            # Its record is written as it runs; a deletion ends this.
            await retry.wait()
            found = await self._impl.archive.entry_version(response_id)
            if found is None:
                raise not_found(response_id)
            entry, version = found
        return JsonResponse(_object(response_id, score))

    async def delete(self, response_id: str, request: Request) -> Response:
        entry, _ = await self._find(request, response_id, "deleted")
        await self._scores.delete(entry)
        return JsonResponse({"id": response_id, "object": "response.score.deleted", "deleted": True})


def _given(body: Any) -> Json:
    """Return the `score` and the `note` of a request.

    Raises:
        ApiError: 400, the request has neither, or one that is wrong.
    """
    check_json(body)
    given: Json = _NEW(body, Location("", refuse_unknown=True))
    if not given.get("note") and "score" not in given:
        raise bad_request("Expected a 'score' from 0 to 1, a 'note', or both.", "score", "missing_required_parameter")
    return given


def _object(response_id: str, score: Score) -> Json:
    return {"object": "response.score", "response_id": response_id, **score.fields()}
