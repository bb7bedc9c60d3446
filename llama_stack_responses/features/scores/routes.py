"""The route of the score of a response."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from ...wire.request_handling import routes_within
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


def scores_router(operators: Operators | None, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> APIRouter:
    """Return the routes of the scores of responses.

    Args:
        operators: admits operators to the responses of others; None if there are none.
    """
    router = APIRouter()
    _add(router, "/v1/responses/{response_id}/score", "Responses", "a", _OfUsers(impl, limits))
    if operators:
        found = _OfAll(impl, limits, operators)
        _add(router, "/v1/admin/scores/{response_id}", "Administration", "any user's", found)
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


class _Routes(ABC):
    def __init__(self, impl: OpenAIResponsesImpl, limits: RouteAdmission) -> None:
        self._impl, self.limits = impl, limits
        self._scores = impl.archive.scores

    async def retrieve(self, response_id: str, request: Request) -> Response:
        entry, _ = await self._found(request, response_id, "read")
        score = await self._scores.find(entry)
        if score is None:
            raise ApiError(404, f"Response '{response_id}' has no score.", param="response_id")
        return JsonResponse(_object(response_id, score))

    async def write(self, response_id: str, request: Request) -> Response:
        given = _given(await self.limits.bodies.json(request))
        entry, version = await self._found(request, response_id, "updated")
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
        entry, _ = await self._found(request, response_id, "deleted")
        await self._scores.delete(entry)
        return JsonResponse({"id": response_id, "object": "response.score.deleted", "deleted": True})

    @abstractmethod
    async def _check(self, request: Request, entry: Entry | None, response_id: str, action: str) -> None:
        """Check that the user may read or write the score of a response.

        Args:
            entry: the response; None if it is not stored.
            action: `read`, `updated` or `deleted`.

        Raises:
            ApiError: 404, it is unknown, not stored yet, deleted, or another user's; 403, the action is not allowed.
        """

    async def _found(self, request: Request, response_id: str, action: str) -> tuple[Entry, int]:
        """Return a response of which the user may read or write the score, and the version of its record."""
        found = await self._impl.archive.entry_version(check_response_id(response_id, "response_id"))
        await self._check(request, found[0] if found else None, response_id, action)
        if found is None:
            raise not_found(response_id)
        return found


class _OfUsers(_Routes):
    async def _check(self, request: Request, entry: Entry | None, response_id: str, action: str) -> None:  # noqa: ARG002
        if entry:
            self._impl.reader.check_access(response_id, entry.owner, "read" if action == "read" else "update")


class _OfAll(_Routes):
    def __init__(self, impl: OpenAIResponsesImpl, limits: RouteAdmission, operators: Operators) -> None:
        super().__init__(impl, limits)
        self._operators = operators

    async def _check(self, request: Request, entry: Entry | None, response_id: str, action: str) -> None:
        act = f"score.{action}"
        await self._operators.admit(request, act, response_id)
        owner = entry.owner if entry else None
        if await self._operators.owner_for(request, act, response_id, owner) is None:
            raise not_found(response_id)


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
