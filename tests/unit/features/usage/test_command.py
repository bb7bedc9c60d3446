"""The command `usage`: table, CSV and JSON."""

from __future__ import annotations

import asyncio
import csv
import json
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from llama_stack_responses.cli import main
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.counting import count
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.placement import ONE_PARTITION
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.conversations import response
from tests.support.stack import STARTER
from tests.support.variants import Json, responses_config, variant


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose store has the usage of two users."""
    path = tmp_path / "responses.db"

    def change(stack: Json) -> None:
        responses_config(stack)["store"] = {"type": "sqlite", "path": str(path)}
        responses_config(stack)["usage"] = {"metadata_key": "project", "prices": [{"input": 2.0}]}

    asyncio.run(_fill(SqliteRecords(path)))
    return variant(STARTER, tmp_path / "config.yaml", change)


async def _fill(records: SqliteRecords) -> None:
    archive = Archive(records, at_end=[partial(count, "project", ONE_PARTITION)])
    now = await records.now()
    owners = [Owner("ada", {"teams": ["search"]}), Owner("=HYPERLINK(1)"), Owner("ada", {"teams": ["search"]})]
    for owner in owners:
        calls = [{"type": "web_search_call"}] if owner.team else []
        await archive.ends.unstored(Ended(response(output=calls), owner, None, now))
    await records.close()


def test_table_has_the_sums_by_user_and_model(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--config", str(config), "--by", "user,model"]) == 0

    [head, ada, other] = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head[:4] == ["USER", "MODEL", "REQUESTS", "INPUT"]
    assert ada[:9] == ["ada", "openai/gpt-oss-20b", "2", "2468", "2048", "642", "128", "2", "0"]
    assert ada[-1] == "0.004936"
    assert other[2] == "1"


def test_csv_has_all_counts_and_no_formula(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--config", str(config), "--by", "user", "--width", "day", "--csv"]) == 0

    rows = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    assert [(row["user"], row["requests"], row["tools.web_search_call"]) for row in rows] == [
        ("ada", "2", "2"),
        ("'=HYPERLINK(1)", "1", "0"),
    ]
    assert rows[0]["start"].endswith("T00:00:00Z")


def test_json_has_a_line_for_each_team(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--config", str(config), "--by", "team", "--json"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["team"], row["requests"], row["details"]["status.completed"]) for row in rows] == [
        ("search", 2, 2),
        ("", 1, 1),
    ]


@pytest.mark.parametrize("arguments", [["--days", "0"], ["--by", "owner"], ["--width", "week"], ["--csv", "--json"]])
def test_wrong_argument_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["usage", *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # The hosts read a deprecated field of their own.
def test_export_and_deletion_of_an_owner_have_their_usage_if_asked(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_ada = ["--config", str(config), "--owner", "ada"]
    assert main(["export", *of_ada]) == 0
    assert capsys.readouterr().out == ""
    assert main(["export", *of_ada, "--usage"]) == 0
    [line] = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    [hour] = line["hours"]
    assert (line["type"], line["owner"]["principal"], hour["team"]) == ("usage", "ada", "search")
    assert (hour["counts"]["requests"], hour["counts"]["output_tokens"]) == (2, 642)
    assert main(["delete", *of_ada, "--usage", "--yes", "--json"]) == 0
    assert '"deleted days of usage": 1' in capsys.readouterr().out
    assert main(["usage", "--config", str(config), "--by", "user", "--json"]) == 0
    assert [json.loads(each)["user"] for each in capsys.readouterr().out.splitlines()] == ["=HYPERLINK(1)"]
