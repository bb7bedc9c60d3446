"""Damage of an SQLite file is noticed at the start and in calls."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.integrity_check import IntegrityCheck
from llama_stack_responses.store import sqlite_inspection
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put
from llama_stack_responses.store.sqlite import SqliteRecords

PAGE: Final = 4096


async def stored(path: Path) -> SqliteRecords:
    """Return records of a few hundred pages, all of which are in the file."""
    records = SqliteRecords(path)
    for number in range(60):
        await records.commit([Put(f"k/{number:02}", random.Random(number).randbytes(20_000))])
    await records.close()
    return records


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(PAGE * 20)
        file.write(os.urandom(PAGE * (path.stat().st_size // PAGE - 30)))


async def test_damage_is_found_at_the_start_without_a_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "records.db"
    records = await stored(path)
    damage(path)
    check = IntegrityCheck(records, DEFAULT)
    await check.check()
    await check.check()
    assert check.damaged
    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "llama-stack-responses recover" in line.getMessage()
    assert len(line.getMessage()) < 1000
    await records.close()


async def test_damage_is_found_in_a_call_while_the_server_runs(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    records = await stored(path)
    check = IntegrityCheck(records, DEFAULT)
    await check.check()
    before = check.damaged
    damage(path)
    with pytest.raises(ApiError, match="damaged"):
        await records.get_many([f"k/{number:02}" for number in range(60)])
    await check.check()
    assert (before, check.damaged) == (False, True)
    await records.close()


async def test_file_that_is_whole_or_locked_or_absent_is_not_damaged(tmp_path: Path) -> None:
    for records in (await stored(tmp_path / "whole.db"), SqliteRecords(tmp_path / "absent.db"), MemoryRecords(9, 9)):
        check = IntegrityCheck(records, DEFAULT)
        await check.check()
        assert not check.damaged
        await records.close()


async def test_inspection_ends_in_limited_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "records.db"
    await stored(path)
    damage(path)
    caplog.set_level("INFO")
    assert await sqlite_inspection.inspect(path, seconds=0.0) == ""
    assert "only a part" in caplog.text
    assert await sqlite_inspection.inspect(path)
