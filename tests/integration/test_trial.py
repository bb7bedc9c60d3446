"""The operator's trial in its short form: nothing that was acknowledged is lost, whatever happens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.trial.__main__ import run
from benchmarks.trial.rows import ROWS

# Stores, signals and the web server do not depend on the host.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

IN_TURN: Final = {
    ("replacement", "redis"): 4,
    ("replacement", "postgres"): 0,
    ("failover", "redis"): 1,
    ("failover", "postgres"): 3,
}
"""What no other test has on a whole server, and on which day it runs. For the other rows, there are cheaper tests."""


def cases() -> Iterator[Any]:
    """Yield each row with each of its stores."""
    for row, (_, stores) in ROWS.items():
        for store in stores:
            day = IN_TURN.get((row, store))
            marks = [pytest.mark.whole_run] if day is None else [pytest.mark.extended, pytest.mark.day(day)]
            yield pytest.param(row, store, marks=marks)


@pytest.mark.parametrize(("row", "store"), list(cases()))
def test_row_of_the_trial_has_no_fault(row: str, store: str, tmp_path: Path) -> None:
    outcome = run(row, store, "llama_stack", tmp_path, short=True)
    assert outcome.well, outcome
