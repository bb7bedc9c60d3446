"""The routes below `/v1/ui`, from which the built-in page reads what it shows."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from ...core.errors import bad_request
from ...core.ids import check_response_id
from ...core.owner import Owner
from ...core.shapes import Schema
from ...core.statuses import STATUSES
from ...installed_host import own_version
from ...service.responses import OpenAIResponsesImpl
from ...wire import sse
from ...wire.http_responses import JsonResponse, stream_headers
from ...wire.openapi import EVENTS, TEXT, WHOLE, array_of, described, one_of
from ...wire.request_cycle import while_connected
from ...wire.request_handling import Handler, Query, add_fallback, routes_within
from ...wire.route_admission import RouteAdmission
from . import schemas
from .blocks import MARKDOWN_CHARACTERS
from .cards import ShownCards
from .chains import ChainViews
from .exports import Exports
from .lists import ListFilter, Lists, restricted_to
from .refused.rows import FIELDS, STATUS, RefusedRequests
from .response_views import Views, settings_of
from .search.box import searched
from .search.finding import Search
from .sessions import Sessions
from .streams import NamedEvent, Streams

_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_MAX_PAIRS: Final = 16
_EXPORTED: Final = 20
"""Responses of a page of an export."""
_TEXTS: Final = 100
"""Texts of a request for their HTML."""
_STATUSES: Final = (*STATUSES, STATUS)

_SEVERAL: Final[Schema] = {"type": "array", "items": TEXT, "maxItems": _MAX_PAIRS}
FILTERS: Final[Mapping[str, Schema]] = {
    "status": array_of(one_of(*_STATUSES)),
    "model": TEXT,
    "conversation": TEXT,
    "metadata": _SEVERAL,
    "text": TEXT,
    "failed_tools": {"type": "boolean"},
    "waits": {"type": "boolean"},
    "min_tokens": {"type": "integer", "minimum": 0},
    "min_seconds": {"type": "number", "minimum": 0},
    "from": {"type": "number", "minimum": 0},
    "to": {"type": "number", "minimum": 0},
}
"""The query parameters of `filter_of`."""


class _Add(Protocol):
    """Adds a route."""

    def __call__(
        self, path: str, answer: Handler, summary: str, description: dict[str, Any], method: str = "GET"
    ) -> None: ...


def ui_router(
    refused: RefusedRequests,
    search: Search | None,
    cards: Callable[[OpenAIResponsesImpl], ShownCards],
    impl: OpenAIResponsesImpl,
    limits: RouteAdmission,
) -> APIRouter:
    """Return the routes, with these limits.

    Args:
        refused: the refused requests, which the lists also have.
        search: searches the index, if there is one.
        cards: returns the cards of the view of what runs now.
        impl: the responses.
        limits: what requests may hold.
    """
    router = APIRouter(prefix="/v1/ui", tags=["Page"], route_class=routes_within(limits))

    def add(path: str, answer: Handler, summary: str, description: dict[str, Any], method: str = "GET") -> None:
        router.add_api_route(path, answer, methods=[method], summary=summary, **description)

    lists = Lists(impl.archive, impl.jobs, refused, search)
    views = Views(impl, lists)
    add("/session", _session(impl), "Describe the server and the user", described(schemas.SESSION))
    add("/tools", _tools(impl), "List the hosted tools of the server", described(schemas.TOOLS))
    list_cards, refresh_cards = _cards(cards(impl))
    add("/cards", list_cards, "List what features show on the page", described(schemas.CARDS))
    add("/cards", refresh_cards, "Renew what features show on the page", described(schemas.CARDS), "POST")
    paged = {**FILTERS, "limit": limit_of(100), "after": TEXT, "order": one_of("asc", "desc")}
    add("/responses", _list(impl, lists), "List responses for the page", described(schemas.ROWS, query=paged))
    add("/sessions", _sessions(impl, lists), "List sessions", described(schemas.SESSIONS, query={"after": TEXT}))
    lines = {**paged, "limit": limit_of(_EXPORTED)}
    add("/export", _export(impl, lists, limits), "Export responses", described(schemas.LINES, query=lines))
    streams = Streams(impl, lists, refused)
    watched = described(EVENTS, query=FILTERS, media="text/event-stream")
    add("/responses/stream", _changes(impl, streams, limits), "Follow the list of responses", watched)
    one = described(EVENTS, query={"response": TEXT}, media="text/event-stream")
    add("/live", _live(impl, streams, limits), "Follow running responses", one)
    following = described(EVENTS, media="text/event-stream")
    add("/stats", _followed(impl, streams.stats, limits), "Follow this server's counts", following)
    add("/history", _history(impl), "Show this server's last hour", described(schemas.HISTORY))
    add("/refused/{refused_id}", _refused(impl, refused), "Show a refused request", described(schemas.REFUSED))
    _add_parts(add, impl, views, limits)
    add_fallback(router)
    return router


def _add_parts(add: _Add, impl: OpenAIResponsesImpl, views: Views, limits: RouteAdmission) -> None:
    """Add the routes of one response, chain or conversation, and of what they show."""
    add("/responses/{response_id}", _view(views, limits), "Show a response", described(schemas.VIEW))
    add(
        "/responses/{response_id}/input", _input(views, limits), "Show a response's own input", described(schemas.INPUT)
    )
    texts = described(schemas.HTML, body=schemas.MARKDOWN, example={"texts": ["**Salt** wind"]})
    add("/markdown", _markdown(views, limits), "Render Markdown", texts, "POST")
    numbered = described(schemas.EVENT_PAGE, query={"limit": limit_of(1000), "after": WHOLE})
    add("/responses/{response_id}/events", _events(views, limits), "List a response's events", numbered)
    numbered = described(schemas.REQUESTS, query={"limit": limit_of(20), "after": WHOLE})
    add("/responses/{response_id}/requests", _requests(views, limits), "List a response's chat requests", numbered)
    chained = described(schemas.CHAIN, query={"limit": limit_of(50), "after": TEXT, "newest": {"type": "boolean"}})
    add("/chain/{response_id}", _chain(ChainViews(impl, views), limits), "Show a chain of responses", chained)
    ordered = described(
        schemas.CONVERSATION, query={"limit": limit_of(100), "after": TEXT, "order": one_of("asc", "desc")}
    )
    add("/conversations/{conversation_id}", _conversation(views, limits), "Show a conversation", ordered)


def _changes(impl: OpenAIResponsesImpl, streams: Streams, limits: RouteAdmission) -> Handler:
    async def follow_list(request: Request) -> Response:
        wanted = filter_of(request)
        limits.hold_stream(request.scope)
        return _stream(streams.changes(impl.access.current_user(), wanted))

    return follow_list


def _live(impl: OpenAIResponsesImpl, streams: Streams, limits: RouteAdmission) -> Handler:
    async def follow_running(request: Request) -> Response:
        response_id = Query(request).text("response")
        if response_id:
            check_response_id(response_id, "response")
        limits.hold_stream(request.scope)
        return _stream(streams.live(impl.access.current_user(), response_id))

    return follow_running


def _followed(
    impl: OpenAIResponsesImpl, events: Callable[[Owner], AsyncIterator[NamedEvent | None]], limits: RouteAdmission
) -> Handler:
    async def follow(request: Request) -> Response:
        limits.hold_stream(request.scope)
        return _stream(events(impl.access.current_user()))

    return follow


def _stream(events: AsyncIterator[NamedEvent | None]) -> Response:
    async def frames() -> AsyncIterator[bytes]:
        async for event in events:
            yield sse.KEEP_ALIVE if event is None else sse.named(*event)

    return StreamingResponse(frames(), media_type="text/event-stream", headers=stream_headers())


def limit_of(maximum: int) -> Schema:
    """Return the schema of a number of rows."""
    return {"type": "integer", "minimum": 1, "maximum": maximum}


def filter_of(request: Request) -> ListFilter:
    """Return the filters of a request for a list.

    Raises:
        ApiError: 400, one is invalid.
    """
    query = Query(request)
    return restricted_to(
        searched(query.text("text")),
        statuses=frozenset(query.several("status", _STATUSES)),
        model=query.text("model"),
        conversation=query.text("conversation"),
        metadata=_pairs(request),
        failed_tools=query.flag("failed_tools"),
        waits=query.flag("waits"),
        tokens=query.integer("min_tokens", 0, None),
        seconds=_number(query, "min_seconds", "a number of seconds"),
        since=_number(query, "from", "seconds since the epoch"),
        until=_number(query, "to", "seconds since the epoch"),
    )


def _pairs(request: Request) -> list[tuple[str, str | None]]:
    pairs = request.query_params.getlist("metadata")
    if len(pairs) > _MAX_PAIRS or any(len(pair) > 1024 for pair in pairs):
        raise bad_request(f"Invalid 'metadata': expected at most {_MAX_PAIRS} pairs.", "metadata", "invalid_value")
    return [(name, value if colon else None) for name, colon, value in (pair.partition(":") for pair in pairs)]


def _number(query: Query, name: str, what: str) -> float | None:
    value = query.text(name)
    if value is not None and not _NUMBER.fullmatch(value):
        raise bad_request(f"Invalid '{name}': expected {what}.", name, "invalid_value")
    return None if value is None else float(value)


def _session(impl: OpenAIResponsesImpl) -> Handler:
    async def show_session() -> Response:
        return JsonResponse(settings_of(impl, own_version()))

    return show_session


def _tools(impl: OpenAIResponsesImpl) -> Handler:
    async def list_tools() -> Response:
        tools = await impl.available_tools()
        details = {name: each for name, each in tools.items() if each}
        return JsonResponse({"object": "ui.tools", "available": list(tools), "details": details})

    return list_tools


def _cards(cards: ShownCards) -> tuple[Handler, Handler]:
    async def list_cards() -> Response:
        return JsonResponse(await cards.read())

    async def refresh_cards() -> Response:
        return JsonResponse(await cards.refresh())

    return list_cards, refresh_cards


def _history(impl: OpenAIResponsesImpl) -> Handler:
    async def show_history() -> Response:
        found = await impl.processes.history(impl.access.current_user())
        return JsonResponse({"object": "ui.history", "at": time.time(), **found})

    return show_history


def _list(impl: OpenAIResponsesImpl, lists: Lists) -> Handler:
    async def list_rows(request: Request) -> Response:
        query = Query(request)
        limit = query.integer("limit", 1, 100) or 50
        after, order = query.text("after"), query.order()
        page = lists.page(impl.access.current_user(), filter_of(request), after, limit, order)
        # Who types on leaves a search: the next one must not wait for it.
        return JsonResponse(await while_connected(request.scope, page))

    return list_rows


def _export(impl: OpenAIResponsesImpl, lists: Lists, limits: RouteAdmission) -> Handler:
    exports = Exports(impl.archive, lists)

    async def export(request: Request) -> Response:
        query = Query(request)
        limit = query.integer("limit", 1, _EXPORTED) or _EXPORTED
        after, order, hold = query.text("after"), query.order(), limits.hold_value(request.scope)
        owner = impl.access.current_user()
        return JsonResponse(await exports.page(owner, filter_of(request), after, limit, order, hold))

    return export


def _sessions(impl: OpenAIResponsesImpl, lists: Lists) -> Handler:
    sessions = Sessions(impl.archive, lists)

    async def list_sessions(request: Request) -> Response:
        return JsonResponse(await sessions.page(impl.access.current_user(), Query(request).text("after")))

    return list_sessions


def _refused(impl: OpenAIResponsesImpl, refused: RefusedRequests) -> Handler:
    async def show_refused(refused_id: str) -> Response:
        row = await refused.find(impl.access.current_user(), refused_id)
        return JsonResponse({"object": "ui.refused", **{name: row[name] for name in FIELDS}})

    return show_refused


def _view(views: Views, limits: RouteAdmission) -> Handler:
    async def show_response(response_id: str, request: Request) -> Response:
        return JsonResponse(await views.response(response_id, limits.hold_value(request.scope)))

    return show_response


def _input(views: Views, limits: RouteAdmission) -> Handler:
    async def show_input(response_id: str, request: Request) -> Response:
        items = await views.own_input(response_id, limits.hold_value(request.scope))
        return JsonResponse({"object": "ui.input", "data": items})

    return show_input


def _markdown(views: Views, limits: RouteAdmission) -> Handler:
    async def render_markdown(request: Request) -> Response:
        texts = (await limits.bodies.json(request)).get("texts")
        if not isinstance(texts, list) or len(texts) > _TEXTS or not all(isinstance(each, str) for each in texts):
            raise bad_request(f"Invalid 'texts': expected at most {_TEXTS} texts.", "texts", "invalid_value")
        if sum(map(len, texts)) > MARKDOWN_CHARACTERS:
            message = f"Invalid 'texts': expected at most {MARKDOWN_CHARACTERS} characters in all."
            raise bad_request(message, "texts", "string_above_max_length")
        return JsonResponse({"object": "ui.html", "html": await views.markdown(texts)})

    return render_markdown


def _events(views: Views, limits: RouteAdmission) -> Handler:
    async def list_events(response_id: str, request: Request) -> Response:
        after, limit = _after(request), Query(request).integer("limit", 1, 1000) or 500
        return JsonResponse(await views.events(response_id, after, limit, limits.hold_value(request.scope)))

    return list_events


def _requests(views: Views, limits: RouteAdmission) -> Handler:
    async def list_requests(response_id: str, request: Request) -> Response:
        limit = Query(request).integer("limit", 1, 20) or 5
        hold = limits.hold_value(request.scope)
        return JsonResponse(await views.requests(response_id, _after(request), limit, hold))

    return list_requests


def _after(request: Request) -> int:
    after = Query(request).integer("after", 0, None)
    return -1 if after is None else after


def _chain(chains: ChainViews, limits: RouteAdmission) -> Handler:
    async def show_chain(response_id: str, request: Request) -> Response:
        query = Query(request)
        limit, hold = query.integer("limit", 1, 50) or 20, limits.hold_value(request.scope)
        last = await chains.newest(response_id) if query.flag("newest") else response_id
        return JsonResponse(await chains.page(last, query.text("after"), limit, hold))

    return show_chain


def _conversation(views: Views, limits: RouteAdmission) -> Handler:
    async def show_conversation(conversation_id: str, request: Request) -> Response:
        query = Query(request)
        limit = query.integer("limit", 1, 100) or 50
        order = query.order() if "order" in request.query_params else "asc"
        hold = limits.hold_value(request.scope)
        return JsonResponse(await views.conversation(conversation_id, query.text("after"), limit, order, hold))

    return show_conversation
