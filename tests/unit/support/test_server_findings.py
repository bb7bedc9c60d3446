"""The table of what was found out about model servers has all servers and checks, and is compared with what is found."""

from __future__ import annotations

from llama_stack_responses.features.doctor.checks import CHECKS
from llama_stack_responses.features.doctor.report import Finding, Report
from tests.support.model_servers import MODEL_SERVERS
from tests.support.server_findings import TITLES, UNCLEAR, column_of, disagreements, documented, table


def report(**outcomes: tuple[str, ...]) -> Report:
    """Return a report with findings: the outcome of each, then its changes."""
    found = [Finding(name, name, outcome, "", tuple(more)) for name, (outcome, *more) in outcomes.items()]  # type: ignore[arg-type]
    return Report("here", "m", tuple(found))


def test_guide_has_a_column_for_each_titled_server_and_a_row_for_each_check() -> None:
    columns = documented()
    assert columns.keys() == TITLES.keys()
    assert columns.keys() <= MODEL_SERVERS.keys()
    assert all(list(column) == [check.title for check in CHECKS] for column in columns.values())


def test_table_has_what_examinations_agree_in() -> None:
    one = report(a=("works",), b=("adapted", "drop user"), c=("works",), d=("unclear",))
    other = report(a=("works",), b=("unclear",), c=("lost",), d=("unclear",))
    assert column_of([one, other]) == {"a": "works", "b": "adapted: `drop user`", "c": UNCLEAR, "d": UNCLEAR}


def test_other_outcome_than_the_documented_one_disagrees() -> None:
    said = {"a": "works", "b": UNCLEAR, "c": "works", "d": "adapted: `x`"}
    found = {"a": "lost", "b": "works", "c": UNCLEAR, "d": "adapted: `y`"}
    assert disagreements(said, found) == {"a": ("works", "lost"), "d": ("adapted: `x`", "adapted: `y`")}


def test_table_is_read_as_it_was_written() -> None:
    lines = table({"vllm": {"images": "lost: `no_images`"}}).splitlines()
    assert lines[:2] == ["| what is asked | vLLM |", "|---|---|"]
    assert "| images | lost: `no_images` |" in lines
    assert len(lines) == len(CHECKS) + 2
