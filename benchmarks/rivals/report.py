"""The table of the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.report import markdown_table
from benchmarks.rivals import loads

type Json = dict[str, Any]

UNITS: Final[Mapping[str, tuple[float, str]]] = {
    loads.STORED: (1e3, "{:.2f} ms"),
    loads.UNSTORED: (1e3, "{:.2f} ms"),
    f"{loads.LATENCY}median": (1e3, "{:.0f} ms"),
    f"{loads.LATENCY}99%": (1e3, "{:.0f} ms"),
    loads.RATES.format(16): (1, "{:.0f}"),
    loads.RATES.format(64): (1, "{:.0f}"),
    loads.STEPPED: (1e6, "{:.0f} µs"),
    loads.FULL: (1e6, "{:.0f} µs"),
    f"{loads.FIRST}median": (1e3, "{:.0f} ms"),
    f"{loads.FIRST}99%": (1e3, "{:.0f} ms"),
    loads.LATE: (1e3, "{:.1f} ms"),
    loads.REST: (1e-6, "{:.0f} MB"),
    loads.AFTER: (1e-6, "{:.0f} MB"),
    loads.CHAIN: (1e-3, "{:,.0f} kB"),
    loads.TURN: (1e3, "{:.2f} ms"),
}
"""The rows: the factor of the unit, and how a value is shown."""


def ratio(rounds: Sequence[Json], first: Sequence[Json], name: str) -> str:
    """Return the median of the rounds' ratios to the first server's."""
    pairs = zip(rounds, first, strict=False)
    ratios = [each[name] / other[name] for each, other in pairs if name in each and other.get(name)]
    return f" ({median(ratios):.2f})" if ratios and rounds is not first else ""


def cell(rounds: Sequence[Json], first: Sequence[Json], name: str) -> str:
    """Return the median of the rounds, and the ratio."""
    values = [each[name] for each in rounds if name in each]
    if not values:
        return ""
    factor, shown = UNITS[name]
    return shown.format(median(values) * factor) + ratio(rounds, first, name)


def table(found: Json) -> str:
    """Return the measurements as a table, with a column for each server, and the servers that have none."""
    servers = found["servers"]
    ran = {name: each for name, each in servers.items() if each["rounds"]}
    first = next(iter(ran.values()))["rounds"] if ran else []
    head = ["", *(each["title"] for each in ran.values())]
    rows = [["version", *(each["version"] for each in ran.values())]]
    rows += [["stores in", *(each["store"] for each in ran.values())]]
    rows += [[name, *(cell(each["rounds"], first, name) for each in ran.values())] for name in UNITS]
    rows += [["streams that survive `kill -9`", *(each.get("survived", "") for each in ran.values())]]
    return shown(found, head, rows)


def shown(found: Json, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table of a comparison below its date and load, and the servers that could not be measured."""
    missing = [
        f"- {each['title']} {each['version']}: {each['error']}\n"
        for each in found["servers"].values()
        if each.get("error")
    ]
    about = f"{found['at']}; load average {found['load'][0]:.1f} before and {found['load'][1]:.1f} after.\n\n"
    return about + markdown_table(head, rows) + "\n" * bool(missing) + "".join(missing)
