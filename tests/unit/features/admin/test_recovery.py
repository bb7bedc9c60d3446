"""The command `recover`."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from llama_stack_responses.cli import main
from llama_stack_responses.store.records import Put
from llama_stack_responses.store.sqlite import SqliteRecords


def damaged_file(path: Path) -> None:
    """Make a store of 100 rows, and overwrite a few of its pages."""

    async def fill() -> None:
        records = SqliteRecords(path)
        await records.commit([Put(f"k/{number:03}", random.Random(number).randbytes(3000)) for number in range(100)])
        await records.close()

    asyncio.run(fill())
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(bytes(4 * 4096))


def test_recover_counts_what_is_saved_and_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, new = tmp_path / "damaged.db", tmp_path / "new.db"
    damaged_file(damaged)
    assert main(["recover", str(damaged), str(new), "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert (counted["file"], counted["rows"] + counted["lost rows"]) == (str(new), 100)
    assert 0 < counted["lost rows"] <= counted["unreadable pages and rows"] * 2

    async def stored() -> int:
        records = SqliteRecords(new)
        rows = await records.range("k/", "k0", limit=1000)
        await records.close()
        return len(rows)

    assert asyncio.run(stored()) == counted["rows"]
    left = {path.name.removesuffix("-clock") for path in tmp_path.iterdir()}
    assert left == {"damaged.db", "new.db"}


def test_recover_into_a_file_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged, new = tmp_path / "damaged.db", tmp_path / "new.db"
    damaged_file(damaged)
    new.write_text("mine")
    assert main(["recover", str(damaged), str(new)]) == 2
    assert (new.read_text(), "already exists" in capsys.readouterr().err) == ("mine", True)


@pytest.mark.parametrize("content", [None, b"something else" * 5000])
def test_recover_of_another_file_makes_none(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, new = tmp_path / "other", tmp_path / "new.db"
    if content:
        other.write_bytes(content)
    assert main(["recover", str(other), str(new)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.glob("new*"))
