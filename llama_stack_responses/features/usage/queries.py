"""What a client asks of usage, and the pages of the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ...concurrency.offloading import in_thread
from ...core.errors import bad_request
from ...core.types import Json
from ...wire.request_handling import Query
from .counted import Dimensions
from .reading import Reading, Span
from .reports import Width, user_id
from .rows import Table
from .visibility import Seen

FILTERS: Final[Mapping[str, Callable[[Dimensions], str]]] = {
    "project_ids": lambda each: each.team,
    "user_ids": user_id,
    "api_key_ids": lambda each: each.key,
    "models": lambda each: each.model,
}
_DIMENSIONS: Final[Mapping[str, Collection[str]]] = {
    "project_id": ("team",),
    "user_id": ("tenant", "user"),
    "api_key_id": ("key",),
    "metadata": ("metadata",),
}
"""The dimensions on which the fields of a group depend, and the filters of the same names, besides the model."""
_OTHER_FILTERS: Final = ("sizes", "sources", "context_levels", "vector_store_ids")
"""Filters of OpenAI by what is not counted here."""
_MAX_SECONDS: Final = 2**32 - 1
_INLINE_ROWS: Final = 200
"""Rows that the event loop groups; more are left to a thread."""
_PAGE: Final = "page_"
_DAY: Final = 86_400

type Results = Callable[[Table, Sequence[str]], list[Json]]
"""Returns the results of a bucket, grouped by these fields."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about usage.

    Attributes:
        start, end: the first bucket, and the end of the last one, in units since the epoch; the end is None for now.
        width: the width of the buckets.
        limit: buckets of a page.
        group_by: the fields by which results are grouped.
        filters: the values that count, by the name of the filter.
        nothing: whether the filters exclude everything.
    """

    start: int
    end: int | None
    width: Width
    limit: int
    group_by: Sequence[str] = ()
    filters: Mapping[str, Collection[str]] = field(default_factory=dict)
    nothing: bool = False

    def counts(self, usage: Dimensions) -> bool:
        """Return whether the filters include this usage."""
        return not self.nothing and all(FILTERS[name](usage) in values for name, values in self.filters.items())

    @property
    def needs(self) -> frozenset[str]:
        """The names of the dimensions on which the answer depends; what is used costs by its model."""
        named = (*self.group_by, *(name.removesuffix("s") for name in self.filters))
        return frozenset({"model"}.union(*(_DIMENSIONS.get(name, ()) for name in named)))


def asked(query: Query, widths: Mapping[str, Width], groups: Collection[str]) -> Asked:
    """Return what a request asks.

    Raises:
        ApiError: 400, a parameter is wrong or missing.
    """
    start_time, end_time = query.integer("start_time", 0, _MAX_SECONDS), query.integer("end_time", 0, _MAX_SECONDS)
    if start_time is None:
        raise bad_request("Missing required parameter: 'start_time'.", "start_time", "missing_required_parameter")
    name = query.text("bucket_width") or "1d"
    if name not in widths:
        raise bad_request(
            f"Invalid value for 'bucket_width': expected one of {', '.join(map(repr, widths))}.",
            "bucket_width",
            "invalid_value",
        )
    for each in _OTHER_FILTERS:
        if query.texts(each):
            raise bad_request(f"Unsupported parameter: '{each}' is not counted here.", each, "unsupported_parameter")
    width = widths[name]
    seconds = width.unit.seconds
    start = start_time // seconds
    page = query.text("page")
    return Asked(
        start if page is None else max(start, _start_of(page)),
        None if end_time is None else -(-end_time // seconds),
        width,
        query.integer("limit", 1, width.most) or width.default,
        list(dict.fromkeys(query.several("group_by", groups))),
        {each: frozenset(values) for each in FILTERS if (values := query.texts(each))},
        query.flag("batch"),
    )


def _start_of(page: str) -> int:
    try:
        if page.startswith(_PAGE) and len(page) <= len(_PAGE) + 8:
            return int(page.removeprefix(_PAGE), 16)
    except ValueError:
        pass
    raise bad_request("Invalid value for 'page': it is the 'next_page' of an earlier answer.", "page", "invalid_value")


async def page_of(
    question: Asked,
    reading: Reading,
    seen: Seen,
    results: Results,
) -> Json:
    """Return a page of buckets.

    Args:
        seen: what the reader may see.
        results: returns the results of a bucket.

    Raises:
        ApiError: 400, what is asked is no longer kept; 503, the store does not answer.
    """
    unit, now = question.width.unit, await reading.now()
    if unit.kept_days is not None and question.start * unit.seconds < now - unit.kept_days * _DAY:
        message = f"Minutes are kept for {unit.kept_days:g} days: ask for a later 'start_time', or 'bucket_width=1h'."
        raise bad_request(message, "start_time", "invalid_value")
    last = int(now) // unit.seconds + 1
    end = last if question.end is None else min(question.end, last)
    stop = min(end, question.start + question.limit)
    span = Span(unit, question.start, max(question.start, stop), seen.user, question.needs.union(seen.needs))
    tables = await reading.read(span, lambda usage: question.counts(usage) and seen.shows(usage))
    make = partial(_buckets, span, tables, question.group_by, results)
    is_large = sum(map(len, tables.values())) > _INLINE_ROWS
    has_more = stop < end
    return {
        "object": "page",
        "data": await in_thread(make) if is_large else make(),
        "has_more": has_more,
        "next_page": f"{_PAGE}{stop:x}" if has_more else None,
    }


def _buckets(span: Span, tables: Mapping[int, Table], group_by: Sequence[str], results: Results) -> list[Json]:
    seconds = span.unit.seconds
    return [
        {
            "object": "bucket",
            "start_time": start,
            "end_time": start + seconds,
            "results": results(tables.get(start, {}), group_by),
        }
        for start in range(span.start * seconds, span.end * seconds, seconds)
    ]
