"""docs/guides/operations.md has a row for each metric that the code declares, and for no other."""

import asyncio
import re
from typing import Any

from llama_stack_responses.telemetry.gauges import Gauges
from tests.support.documented_tables import DOCS, METRICS, declared_metrics, table_of_metrics


class NoteNames:
    """Notes the names of the gauges that it is asked to make, in place of a meter."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def create_observable_gauge(self, name: str, *_: Any) -> None:
        self.names.add(name)


async def gauges() -> set[str]:
    """Return the names of the gauges of a server."""
    noted: Any = NoteNames()
    nothing: Any = None
    Gauges(noted, nothing, asyncio.get_running_loop())
    return set(noted.names)


def documented() -> list[str]:
    """Return the names in the table of metrics, in its order."""
    return re.findall(r"^\| `([a-z_.]+)` \|", table_of_metrics((DOCS / METRICS).read_text()), re.MULTILINE)


async def test_table_of_metrics_matches_code() -> None:
    declared = [name for name, _, _ in declared_metrics()]
    assert sorted(documented()) == sorted({*declared, *await gauges()}), "`make tables` adds what is missing"


def test_metric_is_declared_once() -> None:
    names = [name for name, _, _ in declared_metrics()]
    assert len(names) == len(set(names))
