"""The routes under `/v1/organization`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from ...core.owner import Owner
from ...core.shapes import or_null
from ...wire.http_responses import JsonResponse
from ...wire.openapi import TEXT, WHOLE, YES_OR_NO, array_of, constant, described, one_of, whole
from ...wire.request_handling import Query, add_fallback, routes_within
from ...wire.route_admission import RouteAdmission
from .prices import Prices
from .queries import FILTERS, Results, asked, page_of
from .reading import Reading
from .reports import COST_GROUPS, COST_WIDTHS, REPORTS, WIDTHS, Width, costs
from .visibility import Visibility

_RESULT: Final = {"type": "object", "properties": {"object": TEXT}, "required": ["object"]}
_BUCKET: Final = whole(object=constant("bucket"), start_time=WHOLE, end_time=WHOLE, results=array_of(_RESULT))
_PAGE: Final = whole(
    object=constant("page"),
    data=array_of(_BUCKET),
    has_more=YES_OR_NO,
    next_page=or_null(TEXT),
)

ResultsOf = Callable[[Query], Results]
"""Returns what makes the results of a bucket for a request."""


def usage_router(
    reading: Reading,
    prices: Prices,
    visibility: Visibility,
    current_user: Callable[[], Owner],
    limits: RouteAdmission,
) -> APIRouter:
    """Return the routes of the reports."""
    router = APIRouter(prefix="/v1/organization", tags=["Usage"], route_class=routes_within(limits))

    def add(path: str, title: str, widths: Mapping[str, Width], groups: Collection[str], of: ResultsOf) -> None:
        async def answer(request: Request) -> Response:
            reader, query = current_user(), Query(request)
            question = asked(query, widths, groups)
            return JsonResponse(await page_of(question, reading, visibility.seen_by(reader), of(query)))

        router.add_api_route(path, answer, methods=["GET"], summary=title, **_described(widths, groups))

    for report in REPORTS:
        add(report.path, report.title, WIDTHS, report.groups, partial(_same, partial(report.results, prices=prices)))
    add("/costs", "Costs, by the configured prices", COST_WIDTHS, COST_GROUPS, partial(_costs, prices))
    add_fallback(router)
    return router


def _same(results: Results, _: Query) -> Results:
    return results


def _costs(prices: Prices, query: Query) -> Results:
    return partial(costs, prices=prices, line_items=query.texts("line_items"))


def _described(widths: Mapping[str, Width], groups: Collection[str]) -> dict[str, Any]:
    query = {
        **dict.fromkeys(("start_time", "end_time", "limit"), WHOLE),
        "page": TEXT,
        "bucket_width": one_of(*widths),
        "group_by": array_of(one_of(*groups)),
        **{name: array_of(TEXT) for name in FILTERS},
    }
    return described(_PAGE, query=query)
