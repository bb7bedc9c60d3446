"""docs/guides/operations.md has a row for each metric that the code declares, and for no other."""

import ast
import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final

from llama_stack_responses.telemetry.gauges import Gauges
from tests.support.stack import REPOSITORY

PACKAGE: Final = REPOSITORY / "llama_stack_responses"
GUIDE: Final = REPOSITORY / "docs" / "guides" / "operations.md"


def declared() -> Iterator[str]:
    """Yield the names of all `Metric(...)` of the package."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Metric":
                yield ast.literal_eval(node.args[0])


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
    table = GUIDE.read_text().partition("| metric | meaning |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)


async def test_table_of_metrics_matches_code() -> None:
    assert sorted(documented()) == sorted({*declared(), *await gauges()})


def test_metric_is_declared_once() -> None:
    names = list(declared())
    assert len(names) == len(set(names))
