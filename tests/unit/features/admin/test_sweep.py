"""The command `sweep` and conversations."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest

from llama_stack_responses.cli import main
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.conversations import user

STARTER = str(Path(__file__).parents[4] / "templates" / "starter" / "config.yaml")
DAY = 86_400.0


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with conversations that were changed 1, 50 and 100 days ago."""
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    path = tmp_path / "responses.db"

    async def fill() -> None:
        records = SqliteRecords(path)
        for days in (1, 50, 100):
            then = time.time() - days * DAY
            store = Archive(records, clock=partial(float, then)).conversations
            await store.create(Conversation(f"conv_{days}", Owner("ada"), int(then), {}), [user("hello")])
        await records.close()

    asyncio.run(fill())
    return path


async def left(path: Path) -> list[str]:
    records = SqliteRecords(path)
    rows = [key for key, _ in await records.range("c/", "c0", limit=100)]
    await records.close()
    return rows


def test_sweep_counts_and_deletes_conversations_unchanged_for_days(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "--config", STARTER, "--conversation-days", "60"]
    assert main(command) == 2
    assert "1 of 3 conversations, unchanged since" in capsys.readouterr().err
    assert main([*command, "--yes"]) == 0
    assert capsys.readouterr().out.split()[-3:] == ["deleted", "conversations", "1"]
    assert asyncio.run(left(database)) == ["c/conv_1", "c/conv_50"]


def test_sweep_keeps_conversations_by_default(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--config", STARTER, "--yes"]) == 0
    assert capsys.readouterr().out.split() == ["deleted", "responses", "0"]
    assert len(asyncio.run(left(database))) == 3


def test_days_out_of_range_are_wrong_usage(database: Path) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--config", STARTER, "--conversation-days", "0"])
