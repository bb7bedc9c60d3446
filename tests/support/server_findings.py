"""What `doctor` finds out about the real model servers of the tests, as the table of the guide.

    python -m tests.support.server_findings llama.cpp vllm      # or all, without names

starts the servers, examines each twice, and writes their columns of the table in docs/guides/model-servers.md again. A
server's other columns stay as they are. `tests/integration/test_model_servers.py` compares the table with what it finds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from llama_stack_responses.features.doctor.checks import CHECKS
from llama_stack_responses.features.doctor.report import Finding, Report
from tests.support.model_servers import MODEL_SERVERS, ModelServer
from tests.support.stack import REPOSITORY

GUIDE: Final = REPOSITORY / "docs" / "guides" / "model-servers.md"
HEADING: Final = "## What was found out about model servers\n"
TITLES: Final = {
    "llama.cpp": "llama.cpp",
    "litellm": "LiteLLM before llama.cpp",
    "transformers": "transformers serve",
    "vllm": "vLLM",
    "vllm-mistral": "vLLM, a Mistral template, no tools",
}
"""The titles of the columns, by the names of servers in `MODEL_SERVERS`."""
UNCLEAR: Final = "?"
CLI: Final = [sys.executable, "-c", "import sys; from llama_stack_responses.cli import main; sys.exit(main())"]
SECONDS: Final = "120"
"""Time limit of one answer on a busy machine."""
_RUNS: Final = 2
_TABLE: Final = re.compile(r"^\|.*\|\n(?:\|.*\|\n)+", re.MULTILINE)

type Column = Mapping[str, str]
"""The cells of a server, by the title of their checks."""


def examine(server: ModelServer) -> Report:
    """Examine a server that runs with the command."""
    known = ["--key", server.key, "--context", str(server.context)]
    command = [*CLI, "doctor", server.url, server.model, *known, "--seconds", SECONDS, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return Report.of_json(json.loads(done.stdout))


def column_of(reports: Sequence[Report]) -> Column:
    """Return the cells of a server: what several examinations agree in, those aside that found nothing out."""
    cells = [dict(map(_cell, report.findings)) for report in reports]
    found = {title: {each[title] for each in cells} - {UNCLEAR} for title in cells[0]}
    return {title: next(iter(each)) if len(each) == 1 else UNCLEAR for title, each in found.items()}


def _cell(finding: Finding) -> tuple[str, str]:
    changes = " ".join(f"`{each}`" for each in finding.changes)
    outcome = UNCLEAR if finding.outcome == "unclear" else finding.outcome
    return finding.title, f"{outcome}: {changes}" if changes and outcome != UNCLEAR else outcome


def disagreements(documented: Column, found: Column) -> dict[str, tuple[str, str]]:
    """Return the checks, by title, of which a column says something else than was found; what is unclear agrees."""
    return {
        title: (documented[title], cell)
        for title, cell in found.items()
        if documented[title] != cell and UNCLEAR not in (documented[title], cell)
    }


def documented() -> dict[str, Column]:
    """Return the columns of the table in the guide, by the names of the servers."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in _table().splitlines()]
    titles = {title: name for name, title in TITLES.items()}
    return {titles[title]: {row[0]: row[number] for row in rows[2:]} for number, title in enumerate(rows[0][1:], 1)}


def table(columns: Mapping[str, Column]) -> str:
    """Return the table with these columns."""
    head = ["what is asked", *(TITLES[name] for name in columns)]
    rows = [[check.title, *(column.get(check.title, UNCLEAR) for column in columns.values())] for check in CHECKS]
    return (
        "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])
        .replace("| ---", "|---")
        .replace("--- |", "---|")
    )


def _section() -> tuple[str, str, str]:
    """Return the guide before the section with the table, the section, and what comes behind it."""
    before, heading, rest = GUIDE.read_text().partition(HEADING)
    section, mark, after = rest.partition("\n## ")
    return before + heading, section, mark + after


def _table() -> str:
    found = _TABLE.search(_section()[1])
    return found[0] if found else ""


def write(names: Iterable[str]) -> None:
    """Examine servers, and write their columns."""
    columns = documented() if _table() else {}
    for name in names:
        with TemporaryDirectory() as folder, MODEL_SERVERS[name](Path(folder)) as server:
            columns[name] = column_of([examine(server) for _ in range(_RUNS)])
    before, section, after = _section()
    ordered = {name: columns[name] for name in TITLES if name in columns}
    GUIDE.write_text(before + _TABLE.sub("", section).rstrip("\n") + "\n\n" + table(ordered) + after)


if __name__ == "__main__":
    write(sys.argv[1:] or TITLES)
