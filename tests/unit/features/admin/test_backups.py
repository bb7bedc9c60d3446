"""What `restore` refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import BinaryIO

import pytest

from llama_stack_responses.commands.command_error import CommandError
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.admin import backup_commands
from llama_stack_responses.features.admin.backup_commands import _has_rows, backup, restore
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.secret_check import SecretCheck
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.store.backup_index import BackupIndex
from llama_stack_responses.store.kept_secret import SecretRow
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.unit.features.admin.test_incomplete_backup import given


async def test_store_with_only_the_secrets_of_its_servers_is_empty() -> None:
    records = MemoryRecords()
    await SecretCheck(records, Sealer([], SecretRow(records)), DEFAULT).check()
    assert len(await records.range("!", "~", limit=9)) == 2
    assert not await _has_rows(records)
    await records.commit([Put("r/resp_1", b"x")])
    assert await _has_rows(records)


def backed_up(folder: Path, *names: str, rows: int = 1) -> list[Path]:
    """Return backups of a store with some rows, one made after the other."""

    async def fill() -> None:
        records = SqliteRecords(folder / "records.db")
        await records.commit([Put(f"us/{number}", b"x") for number in range(rows)])
        await records.close()

    asyncio.run(fill())
    for name in names:
        backup(given(folder, folder / name))
    return [folder / name for name in names]


def test_earlier_backup_that_is_not_earlier_is_refused(tmp_path: Path) -> None:
    one, two = backed_up(tmp_path, "one", "two")
    here = tmp_path / "here"
    here.mkdir()
    restore(given(here, one))
    for given_since in (two, one):
        with pytest.raises(CommandError, match="name the later backup first, and the earlier one with --since"):
            restore(given(here, one, given_since))
    restore(given(here, two, one))


def test_full_folder_of_temporary_files_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(BackupIndex):
        def __init__(self, file: BinaryIO) -> None:
            super().__init__(file)
            self._rows.execute("PRAGMA max_page_count = 4")

    monkeypatch.setattr(backup_commands, "BackupIndex", Full)
    [one] = backed_up(tmp_path, "one", rows=1_000)
    here = tmp_path / "here"
    here.mkdir()
    with pytest.raises(CommandError, match=r"disk is full.*: set SQLITE_TMPDIR"):
        restore(given(here, one))
    assert not (here / "records.db").exists()


def test_store_that_cannot_be_reached_is_not_called_partly_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(self: SqliteRecords) -> float:
        raise ApiError(503, "The response store's server cannot be reached.")

    [one] = backed_up(tmp_path, "one")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.setattr(SqliteRecords, "now", fail)
    with pytest.raises(CommandError, match="cannot be reached"):
        restore(given(here, one))
    assert "partly" not in capsys.readouterr().err
