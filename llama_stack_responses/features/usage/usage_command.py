"""The command `usage`: prints what was used as a table, CSV or JSON."""

from __future__ import annotations

import csv
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...commands.opened_store import with_store
from ...commands.tables import moment, print_rows
from ...config import ResponsesConfig
from ...core.types import Json
from ...store.decoder import Decoder
from ...store.records import Records
from .counted import Counts, Dimensions, add
from .prices import Prices
from .reading import Reading, Span
from .reports import user_id
from .rows import DAYS, HOURS, Table
from .settings import SETTINGS, Usage

_GROUPS: Final[dict[str, Callable[[Dimensions], str]]] = {
    "user": user_id,
    "team": lambda each: each.team,
    "key": lambda each: each.key,
    "model": lambda each: each.model,
    "metadata": lambda each: each.metadata,
}
_COUNTS: Final = ("requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_TITLES: Final = {
    "start": "START",
    **{name: name.upper() for name in _GROUPS},
    "requests": "REQUESTS",
    "input_tokens": "INPUT",
    "cached_tokens": "CACHED",
    "output_tokens": "OUTPUT",
    "reasoning_tokens": "REASONING",
    "tool_calls": "TOOLS",
    "images": "IMAGES",
    "sandbox_seconds": "SANDBOX S",
    "errors": "ERRORS",
    "cost": "COST",
}
_DETAILS: Final = ("status", "errors", "tools")
"""What each kind of is a column of its own in CSV."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet computes."""


def usage(arguments: Namespace) -> None:
    """Print what was used."""

    async def work(records: Records, config: ResponsesConfig) -> None:
        settings = SETTINGS.of(config) or Usage()
        prices = Prices(settings.prices, settings.currency)
        reading = Reading(records, Decoder(config.limits.decoding_bytes))
        unit = HOURS if arguments.width == "hour" else DAYS
        today = int(await reading.now()) // DAYS.seconds
        per_day = DAYS.seconds // unit.seconds
        span = Span(unit, (today + 1 - arguments.days) * per_day, (today + 1) * per_day)
        tables = await reading.read(span, lambda _: True)
        rows = _rows(tables, arguments.by, prices, total=arguments.width == "total")
        _print(rows, arguments)

    with_store(arguments, work)


def _rows(tables: dict[int, Table], by: Sequence[str], prices: Prices, *, total: bool) -> list[Json]:
    """Return a row for each time and group, by time and then by the most requests."""
    counted: dict[tuple[Any, ...], Counts] = {}
    costs: dict[tuple[Any, ...], float] = {}
    for start, table in tables.items():
        for dimensions, counts in table.items():
            group = (None if total else start, *(_GROUPS[name](dimensions) for name in by))
            add(counted.setdefault(group, {}), counts)
            costs[group] = costs.get(group, 0.0) + prices.cost(dimensions.model, counts)
    rows = [
        {
            "start": moment(start),
            **dict(zip(by, values, strict=True)),
            **_numbers(counts),
            "cost": round(costs[group], 6),
        }
        for group, counts in counted.items()
        for start, *values in [group]
    ]
    return sorted(rows, key=lambda row: (row["start"] or "", -row["requests"]))


def _numbers(counts: Counts) -> Json:
    def sum_of(prefix: str) -> int:
        return sum(count for name, count in counts.items() if name.startswith(prefix))

    return {
        **{name: counts.get(name, 0) for name in _COUNTS},
        "tool_calls": sum_of("tools."),
        "images": counts.get("images", 0),
        "sandbox_seconds": counts.get("sandbox_ms", 0) / 1000,
        "errors": sum_of("errors."),
        "details": {name: count for name, count in counts.items() if name.partition(".")[0] in _DETAILS},
    }


def _print(rows: Sequence[Json], arguments: Namespace) -> None:
    shown = ([] if arguments.width == "total" else ["start"]) + arguments.by
    names = [*shown, *list(_TITLES)[1 + len(_GROUPS) :]]
    if arguments.csv:
        _print_csv(rows, names)
        return
    print_rows(rows, {name: _TITLES[name] for name in names}, as_json=arguments.json)


def _print_csv(rows: Sequence[Json], names: Sequence[str]) -> None:
    """Print the rows with a column for each kind of tool call, error and status."""
    details = sorted({name for row in rows for name in row["details"]})
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*names, *details])
    for row in rows:
        writer.writerow([*(_cell(row[name]) for name in names), *(row["details"].get(name, 0) for name in details)])


def _cell(value: Any) -> Any:
    """Return a value as a cell that no spreadsheet computes."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
