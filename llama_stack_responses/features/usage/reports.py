"""The reports about usage, in the form of OpenAI's administration API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core.types import Json
from .counted import Counts, Dimensions, add
from .histograms import BINS, HISTOGRAMS, histogram
from .prices import Prices
from .rows import DAYS, HOURS, MINUTES, Table, Unit

type Cells = Iterator[tuple[Mapping[str, Any], Counts]]
"""Fields of groups with what was used."""


@dataclass(frozen=True, slots=True)
class Width:
    """A width of buckets.

    Attributes:
        unit: the tables that have it.
        default, most: buckets of a page.
    """

    unit: Unit
    default: int
    most: int


WIDTHS: Final = {"1m": Width(MINUTES, 60, 1440), "1h": Width(HOURS, 24, 168), "1d": Width(DAYS, 7, 31)}
COST_WIDTHS: Final = {"1d": Width(DAYS, 7, 180)}

_IDS: Final[dict[str, Callable[[Dimensions], Any]]] = {
    "project_id": lambda each: each.team or None,
    "user_id": lambda each: user_id(each) or None,
    "api_key_id": lambda each: each.key or None,
    "model": lambda each: each.model,
    "metadata": lambda each: each.metadata or None,
    "batch": lambda _: False,
    "service_tier": lambda _: "default",
    "api_source": lambda _: "unlabeled",
}
"""What each field of a group is. A team is a project, and requests of other kinds than the default do not exist."""


def user_id(dimensions: Dimensions) -> str:
    """Return the name of a user, with their tenant if there are tenants."""
    return f"{dimensions.tenant}/{dimensions.user}" if dimensions.tenant else dimensions.user


_TOTALS: Final = (
    "input_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "images",
    "sessions",
    "sandbox_ms",
)
_TABLES: Final = {
    "status": "statuses",
    "errors": "errors",
    "tools": "tool_calls",
    **{name: name for name in HISTOGRAMS},
}
"""The tables of the report of everything, by what the names of their counts begin with."""
_PLACES: Final[Mapping[str, tuple[str, Any]]] = BINS | dict.fromkeys(("requests", *_TOTALS), ("", None))
"""What `_place` returns for the names of most counts: a report of a month by user asks for a hundred thousand."""


def _by_model(table: Table, group_by: Sequence[str]) -> dict[tuple[tuple[Any, ...], str], Counts]:
    """Return the sums of a bucket by group and model: what they cost depends on the model only."""
    ids = [_IDS[name] for name in group_by]
    found: dict[tuple[tuple[Any, ...], str], Counts] = {}
    for dimensions, counts in table.items():
        _add_group(found, (tuple([each(dimensions) for each in ids]), dimensions.model), counts)
    return found


def _add_group[Group](groups: dict[Group, Counts], group: Group, counts: Counts) -> None:
    if group in groups:
        add(groups[group], counts)
    else:
        groups[group] = dict(counts)  # faster than an addition


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        path: the path of its route, after `/v1/organization`.
        kind: the type of its results.
        title: what it shows.
        groups: the fields by which it can be grouped.
        numbers: returns the numbers of a result; None if nothing of the kind was used.
        has_costs: whether its results have what was used costs.
    """

    path: str
    kind: str
    title: str
    groups: Sequence[str]
    numbers: Callable[[Counts], Json | None]
    has_costs: bool = False

    def results(self, table: Table, group_by: Sequence[str], prices: Prices) -> list[Json]:
        """Return the results of one bucket."""
        groups: dict[tuple[Any, ...], Counts] = {}
        amounts: defaultdict[tuple[Any, ...], float] = defaultdict(float)
        for (group, model), counts in _by_model(table, group_by).items():
            amounts[group] += prices.cost(model, counts) if self.has_costs else 0.0
            _add_group(groups, group, counts)
        ids = dict.fromkeys(name for name in self.groups if name != "metadata")
        results: list[Json] = []
        for group, counts in groups.items():
            if numbers := self.numbers(counts):
                cost = {"cost": _cost(amounts[group], prices)} if self.has_costs else {}
                fields = dict(zip(group_by, group, strict=True))
                results.append({"object": self.kind, **numbers, **cost, **ids, **fields})
        return results


def _cost(amount: float, prices: Prices) -> Json | None:
    return None if prices.are_none else {"value": amount, "currency": prices.currency}


def _completions(counts: Counts) -> Json | None:
    inputs, cached = counts.get("input_tokens", 0), counts.get("cached_tokens", 0)
    written = counts.get("cache_write_tokens", 0)
    return {
        "input_tokens": inputs,
        "output_tokens": counts.get("output_tokens", 0),
        "num_model_requests": counts["requests"],
        "input_cached_tokens": cached,
        "input_cache_write_tokens": written,
        "input_uncached_tokens": max(0, inputs - cached - written),
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
    }


def _calls(kind: str, name: str = "num_requests") -> Callable[[Counts], Json | None]:
    def numbers(counts: Counts) -> Json | None:
        return {name: counts[kind]} if counts.get(kind) else None

    return numbers


def _web_searches(counts: Counts) -> Json | None:
    searches = counts.get("tools.web_search_call")
    return {"num_requests": searches, "num_model_requests": counts["requests"]} if searches else None


def _images(counts: Counts) -> Json | None:
    calls = counts.get("tools.image_generation_call")
    return {"images": counts.get("images", 0), "num_model_requests": calls} if calls else None


def _all(counts: Counts) -> Json | None:
    tables: dict[str, dict[Any, int]] = {name: {} for name in _TABLES.values()}
    for name, count in counts.items():
        table, key = _PLACES.get(name) or _place(name)
        if table:
            tables[table][key] = count
    return {
        "requests": counts["requests"],
        **{name: counts.get(name, 0) for name in _TOTALS},
        **tables,
        **{name: histogram(tables[name]) for name in HISTOGRAMS},
    }


def _place(name: str) -> tuple[str, Any]:
    """Return the table in which a count is, with its key there; no table for one of the totals."""
    kind, dot, key = name.partition(".")
    return (_TABLES[kind], key) if dot and kind in _TABLES else ("", None)


_USERS: Final = ("project_id", "user_id", "api_key_id")
_MODELS: Final = (*_USERS, "model")

REPORTS: Final = (
    Report(
        "/usage/completions",
        "organization.usage.completions.result",
        "Tokens and requests",
        (*_MODELS, "batch", "service_tier", "api_source", "metadata"),
        _completions,
    ),
    Report("/usage/images", "organization.usage.images.result", "Generated images", _MODELS, _images),
    Report(
        "/usage/web_search_calls",
        "organization.usage.web_searches.result",
        "Web searches",
        (*_MODELS, "api_source"),
        _web_searches,
    ),
    Report(
        "/usage/file_search_calls",
        "organization.usage.file_searches.result",
        "File searches",
        _USERS,
        _calls("tools.file_search_call"),
    ),
    Report(
        "/usage/code_interpreter_sessions",
        "organization.usage.code_interpreter_sessions.result",
        "Containers in which code ran",
        ("project_id",),
        _calls("sessions", "num_sessions"),
    ),
    Report(
        "/usage/responses",
        "organization.usage.responses.result",
        "All that is counted, which OpenAI's reports do not show together",
        (*_MODELS, "metadata"),
        _all,
        has_costs=True,
    ),
)
COST_GROUPS: Final = (*_USERS, "line_item", "api_source", "metadata")


def costs(table: Table, group_by: Sequence[str], prices: Prices, line_items: Iterable[str] = ()) -> list[Json]:
    """Return the costs of one bucket.

    Args:
        group_by: the fields of `COST_GROUPS` by which they are grouped.
        line_items: the only line items that count; none for all.
    """
    wanted = frozenset(line_items)
    amounts: dict[tuple[Any, ...], tuple[float, int]] = {}
    for dimensions, counts in table.items():
        for item in prices.items(dimensions.model, counts):
            line = f"{dimensions.model}, {item.name}"
            if wanted and line not in wanted:
                continue
            group = tuple(line if name == "line_item" else _IDS[name](dimensions) for name in group_by)
            amount, quantity = amounts.get(group, (0.0, 0))
            amounts[group] = (amount + item.amount, quantity + item.quantity)
    by_line = "line_item" in group_by
    ids = dict.fromkeys(name for name in COST_GROUPS if name != "metadata")
    return [
        {
            "object": "organization.costs.result",
            "amount": {"value": amount, "currency": prices.currency},
            "quantity": float(quantity) if by_line else None,
            "quantity_unit": "tokens" if by_line and str(fields["line_item"]).endswith("_tokens") else None,
            **ids,
            **fields,
        }
        for group, (amount, quantity) in amounts.items()
        for fields in [dict(zip(group_by, group, strict=True))]
    ]
