"""Handling of requests that all routes share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from itertools import chain
from typing import Any, ClassVar, Final, TypedDict, cast

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from ..core.errors import ApiError, bad_request
from ..generation.response_log import log_refused
from ..items.listed_items import Order
from ..logs import get_logger
from ..requests.request_values import INCLUDABLE
from ..service.refusals import Refusals
from .http_responses import JsonResponse, failure
from .openapi import ERROR_RESPONSES, TEXT
from .request_cycle import RequestCycle, log_failure
from .request_headers import known, request_id
from .route_admission import RouteAdmission

logger = get_logger(__name__)

Handler = Callable[..., Coroutine[Any, Any, Response]]

MAX_PAGE_ROWS: Final = 100
_PAGE_ROWS: Final = 20
METHODS: Final = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"]
_MAX_HEADERS_BYTES: Final = 65_536
_MAX_TEXT_CHARACTERS: Final = 512
_CLIENT_LEFT: Final = 499
"""The status of an answer after the client has disconnected, as nginx logs it."""
_NUMBER: Final = re.compile("[0-9]{1,15}")


class _AnyPathConvertor(PathConvertor):
    """What starlette's `path` matches, and line breaks."""

    regex = r"[\s\S]*"


register_url_convertor("any_path", _AnyPathConvertor())


class JsonErrorRoute(APIRoute):
    """A route that returns errors in OpenAI's format and adds OpenAI's headers to its answers.

    It calls its endpoint with the request and the parameters of its path. What FastAPI does for other endpoints would
    find nothing to do, and takes a sixteenth of the CPU of a short response. Nor does FastAPI read the endpoint's
    parameters: for all routes, that would take a sixtieth of the CPU of a start, and a megabyte.

    Raises:
        TypeError: the endpoint wants more than that.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["responses"] = {**(options.get("responses") or {}), **ERROR_RESPONSES}
        # FastAPI makes a route again from the endpoint of another when it includes a router.
        shown = endpoint if isinstance(endpoint, _Endpoint) else _Endpoint(endpoint)
        super().__init__(path, shown, **options)
        self.called = shown.called
        self._request_name, self._texts = _parameters(path, shown.called, self.param_convertors)
        self.openapi_extra = _with_texts(self.openapi_extra or {}, self._texts)

    limits: ClassVar[RouteAdmission]
    """The limits that the routes of a router share; `routes_within` creates a class with them."""
    refusals: ClassVar[Refusals | None]
    """Notes requests that are refused before their endpoint is called; None for requests that are not noted."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        own_id, limits = request_id(scope), self.limits
        cycle = RequestCycle(
            scope,
            receive,
            send,
            request_id=own_id,
            unread_seconds=limits.unread_seconds,
            abort_connection=limits.abort_connection,
            reserve_answer=limits.large_answer,
        )
        with known(scope, own_id), limits.working_for(), cycle:
            try:
                answer = await self._answer(Request(scope, cycle.receive))
                await answer(scope, cycle.receive, cycle.send)
            except ClientDisconnect:
                _client_left(scope)
            except Exception as error:  # noqa: BLE001 - it is logged
                # If it went on to the web server, that would format the whole traceback.
                log_failure(scope, error)
                await _end(scope, cycle)

    async def _answer(self, request: Request) -> Response:
        """Return the answer to a request, or that for the error."""
        try:
            if request.method not in (methods := self.methods or ()):
                return _not_allowed(request.method, request.scope["path"], methods)
            self._check_headers(request)
            given: dict[str, Any] = {name: request.path_params[name] for name in self._texts}
            if self._request_name:
                given[self._request_name] = request
            answer: Response = await self.called(**given)
        except ApiError as error:
            log_refused(error)
            return failure(error)
        except ClientDisconnect:
            _client_left(request.scope)
            return Response(status_code=_CLIENT_LEFT)
        except Exception as error:  # noqa: BLE001 - it is logged
            log_failure(request.scope, error)
            return _failure()
        return answer

    def _check_headers(self, request: Request) -> None:
        """Raise `ApiError` 431 if the headers are too large."""
        if sum(len(name) + len(value) for name, value in request.headers.raw) > _MAX_HEADERS_BYTES:
            message = f"The request's headers are larger than {_MAX_HEADERS_BYTES} bytes."
            error = ApiError(431, message, code="request_header_fields_too_large")
            if self.refusals:
                self.refusals.note(error)
            raise error


class _Endpoint:
    """An endpoint, as FastAPI sees it: a function without parameters."""

    __signature__: Final = inspect.Signature()

    def __init__(self, called: Callable[..., Any]) -> None:
        self.called = called
        self.__name__ = called.__name__
        self.__doc__ = called.__doc__

    async def __call__(self) -> None:
        """Do nothing: the route calls the endpoint itself."""


def _parameters(path: str, endpoint: Callable[..., Any], names: Collection[str]) -> tuple[str | None, list[str]]:
    """Return the name of the parameter with which an endpoint takes the request, None if it does not, and its texts.

    Raises:
        TypeError: it takes something else than that and texts of its path, whose names are in `names`.
    """
    request, texts = None, []
    for name, parameter in inspect.signature(endpoint).parameters.items():
        if parameter.annotation in ("Request", Request):
            request = name
        elif parameter.annotation in ("str", str) and name in names:
            texts.append(name)
        else:
            raise TypeError(f"The endpoint of {path} may take the request and texts of its path, and nothing else.")
    return request, texts


def _with_texts(extra: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    """Return the description of a route with the texts of its path; those of an included router have it already."""
    given = extra.get("parameters", [])
    described = {each["name"] for each in given if each["in"] == "path"}
    new = [
        {"name": name, "in": "path", "required": True, "schema": {**TEXT, "title": name.replace("_", " ").title()}}
        for name in texts
        if name not in described
    ]
    return {**extra, "parameters": [*new, *given]} if new else dict(extra)


def routes_within(bounds: RouteAdmission, noting: Refusals | None = None) -> type[JsonErrorRoute]:
    """Return a class of routes that share these limits.

    Args:
        bounds: the limits.
        noting: notes requests that are refused before their endpoint is called.
    """

    class Route(JsonErrorRoute):
        limits, refusals = bounds, noting

    return Route


def _client_left(scope: Scope) -> None:
    logger.debug("%s %r: client disconnected", scope["method"], scope["path"])


def _not_allowed(method: str, path: str, allowed: Iterable[str]) -> Response:
    """Return the answer to a request with a method that its path does not have."""
    message = f"Not allowed to {method} on {path}. Perhaps you meant to use a different HTTP method."
    refusal = failure(ApiError(405, message, code="method_not_supported"))
    refusal.headers["allow"] = ", ".join(sorted(allowed))
    return refusal


def _failure() -> Response:
    """Return the answer to a request that failed for an internal reason."""
    return failure(ApiError(500, "The server had an error while processing your request."))


async def _end(scope: Scope, cycle: RequestCycle) -> None:
    """End the answer to a request that failed: with a 500, or by breaking off an answer that has begun."""
    if cycle.started:
        cycle.abort_connection()
    else:
        await _failure()(scope, cycle.receive, cycle.send)


class Paging(TypedDict):
    """Which page of a list is asked for.

    Attributes:
        limit: the number of rows.
        after: the id of the row before the page; None for the first page.
        order: by the time of creation.
    """

    limit: int
    after: str | None
    order: Order


class Query:
    """The query parameters of a request, parsed as OpenAI parses them."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params

    def text(self, name: str, most: int = _MAX_TEXT_CHARACTERS) -> str | None:
        """Return the value, of at most so many characters, or None if it is missing or empty."""
        value = self._query.get(name) or None
        if value and len(value) > most:
            message = f"Invalid '{name}': expected at most {most} characters."
            raise bad_request(message, name, "string_above_max_length")
        return value

    def flag(self, name: str) -> bool:
        """Return the value of `true` or `false`; False if it is missing."""
        value = self._query.get(name, "false").lower()
        if value not in ("true", "false"):
            raise bad_request(f"Invalid value for '{name}': expected 'true' or 'false'.", name, "invalid_value")
        return value == "true"

    def texts(self, name: str) -> list[str]:
        """Return the values of a list, written `name=a&name=b` or `name[]=a&name[]=b`."""
        values = [*self._query.getlist(name), *self._query.getlist(f"{name}[]")]
        if any(len(value) > _MAX_TEXT_CHARACTERS for value in values):
            message = f"Invalid '{name}': expected at most {_MAX_TEXT_CHARACTERS} characters in each value."
            raise bad_request(message, name, "string_above_max_length")
        return values

    def several(self, name: str, supported: Collection[str]) -> list[str]:
        """Return the values of a list as `texts` does; each is one of `supported`."""
        values = self.texts(name)
        for value in values:
            if value not in supported:
                message = f"Invalid value for '{name}': expected one of {', '.join(map(repr, supported))}."
                raise bad_request(message, name, "invalid_value")
        return values

    def integer(self, name: str, low: int, high: int | None) -> int | None:
        """Return an integer from `low` to `high`, or None if it is missing."""
        if (value := self._query.get(name)) is None:
            return None
        if not _NUMBER.fullmatch(value) or int(value) < low or (high is not None and int(value) > high):
            bounds = f"from {low} to {high}" if high is not None else f"of at least {low}"
            raise bad_request(f"Invalid value for '{name}': expected an integer {bounds}.", name, "invalid_value")
        return int(value)

    def limit(self) -> int:
        """Return the number of rows of a page; the default is OpenAI's."""
        return self.integer("limit", 1, MAX_PAGE_ROWS) or _PAGE_ROWS

    def paging(self) -> Paging:
        """Return which page of a list is asked for."""
        return {"limit": self.limit(), "after": self.text("after"), "order": self.order()}

    def order(self) -> Order:
        """Return `asc` or `desc`; the default is OpenAI's, newest first."""
        value = self._query.get("order", "desc")
        if value not in ("asc", "desc"):
            raise bad_request("Invalid value for 'order': expected 'asc' or 'desc'.", "order", "invalid_value")
        return cast("Order", value)


def query_of_items(request: Request) -> Query:
    """Return the query of a request for items.

    `include` is only validated. Additional parts of an item are chosen when it is created, and are always returned.
    """
    query = Query(request)
    query.several("include", INCLUDABLE)
    return query


def page_of(data: list[dict[str, Any]], *, has_more: bool, last: str | None = None) -> JsonResponse:
    """Return a page of a list in OpenAI's format.

    Args:
        data: the objects.
        has_more: whether more objects may follow.
        last: the id after which the next page begins, if it is not that of the last object.
    """
    return JsonResponse(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": last or (data[-1]["id"] if data else None),
            "has_more": has_more,
        }
    )


def add_fallback(router: APIRouter, *others: APIRouter) -> None:
    """Add a fallback for paths below the router's prefix that have no route. Call it after adding the routes.

    Args:
        router: the router.
        others: routers with further routes below the prefix, which match before the others.
    """
    for path in ("", "/{rest:any_path}"):
        router.add_api_route(path, nothing(router, *others), methods=METHODS, include_in_schema=False)


def nothing(*routers: APIRouter) -> Handler:
    """Return the handler of requests that match no route of `routers`, or none with this method."""

    async def not_found(request: Request) -> Response:
        method, path = request.method, request.url.path
        if path.endswith("/"):
            return _without_slash(request.scope)
        if allowed := _methods(routers, request.scope):
            return _not_allowed(method, path, allowed)
        raise ApiError(404, f"Invalid URL ({method} {path}).")

    return not_found


def _methods(routers: Iterable[APIRouter], scope: Scope) -> list[str]:
    """Return the methods that the routes of this path accept."""
    every = chain.from_iterable(router.routes for router in routers)
    routes = [route for route in every if route.matches(scope)[0] is Match.PARTIAL]
    return sorted({method for route in routes if isinstance(route, APIRoute) for method in route.methods or ()})


def _without_slash(scope: Scope) -> Response:
    """Redirect the client to the path without the trailing slash."""
    path, query = scope["raw_path"].rstrip(b"/").decode("latin-1"), scope["query_string"].decode("latin-1")
    return Response(status_code=307, headers={"location": f"{path}?{query}" if query else path})
