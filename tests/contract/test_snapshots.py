"""Snapshots and backups: a store as it was at one moment, while others write, and the same in any other store."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.backup_format import BackupWriter, read_backup
from llama_stack_responses.store.records import Delete, Op, Put, Records, Snapshots
from tests.contract.backends import Clock
from tests.support.golden_store import golden_files

LARGE: Final = bytes(50_000)


def snapshot(records: Records) -> AsyncGenerator[Sequence[Put]]:
    assert isinstance(records, Snapshots)
    return records.snapshot()


async def rows_of(records: Records) -> dict[str, Put]:
    rows = [row async for batch in snapshot(records) for row in batch]
    found = {row.key: row for row in rows}
    assert len(found) == len(rows), "no row comes twice"
    return found


async def test_snapshot_has_each_row_with_its_value_and_expiry(records: Records, clock: Clock) -> None:
    puts = [Put("a/1", b"one"), Put("b/2", b"", clock.now + 60), Put("z/9", bytes(range(256)))]
    await records.commit([*puts, Put("c/3", b"gone", clock.now + 1)])
    clock.now += 2
    assert await rows_of(records) == {put.key: put for put in puts}


async def test_snapshot_of_an_empty_store_has_no_rows(records: Records) -> None:
    assert await rows_of(records) == {}


@pytest.mark.needs("transactions")
async def test_snapshot_is_whole_while_others_write(records: Records) -> None:
    """Each commit writes, replaces or deletes rows at both ends of the store together."""

    def both(number: int, value: bytes) -> list[Op]:
        return [Put(f"{place}/{number:03}", value) for place in "amz"]

    for number in range(300):
        await records.commit([*both(number, b"0"), Put(f"k/{number:03}", LARGE)])
    ended = False

    async def write() -> None:
        turn = 0
        while not ended:
            turn += 1
            number = turn * 7 % 300
            gone = [Delete(f"{place}/{number + 1:03}") for place in "amz"]
            await records.commit([*both(number, b"%d" % turn), *gone, *both(300 + turn, b"new")])
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    try:
        for _ in range(3):
            found: dict[str, bytes] = {}
            async for batch in snapshot(records):
                found |= {row.key: row.value for row in batch}
                await asyncio.sleep(0.01)
            places = [{key[2:]: value for key, value in found.items() if key[0] == place} for place in "amz"]
            assert places[0] == places[1] == places[2]
            assert len(places[0]) >= 200
    finally:
        ended = True
        await writing


@pytest.mark.needs("transactions")
async def test_rows_written_during_a_snapshot_are_stored_as_usual(records: Records) -> None:
    await records.commit([Put(f"{place}/{number}", LARGE) for place in "az" for number in range(200)])
    reading = snapshot(records)
    await anext(reading)
    await records.commit([Put("z/1", b"new"), Delete("z/2"), Put("zz", b"new")])
    found = await records.get_many(["z/1", "z/2", "zz"])
    assert {key: record.value for key, record in found.items()} == {"z/1": b"new", "zz": b"new"}
    assert found["z/1"].version == 2
    rest = {row.key: row.value async for batch in reading for row in batch}
    assert rest.get("z/1", LARGE) == rest.get("z/2", LARGE) == LARGE
    assert "zz" not in rest
    again = await rows_of(records)
    assert again["z/1"].value == b"new"
    assert "z/2" not in again


def written(*rows: Put) -> bytes:
    file = io.BytesIO()
    writer = BackupWriter(file)
    for row in rows:
        writer.add(row)
    writer.end()
    return file.getvalue()


ROWS: Final = [Put("r/1", b"value"), Put("p/1", b"", 12.5), Put("n/2", bytes(1000))]


def test_backup_file_is_read_as_written() -> None:
    assert list(read_backup(io.BytesIO(written(*ROWS)))) == ROWS


@pytest.mark.parametrize("cut", [0, 5, 40, 100, -1, -40])
def test_incomplete_backup_file_is_refused(cut: int) -> None:
    with pytest.raises(ApiError, match=r"not complete|not a backup|checksum"):
        list(read_backup(io.BytesIO(written(*ROWS)[:cut])))


def test_changed_backup_file_is_refused() -> None:
    data = written(*ROWS)
    for place in range(31, len(data)):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(ApiError):
            list(read_backup(io.BytesIO(damaged)))


@pytest.mark.parametrize("path", golden_files("backup.bin"), ids=lambda path: path.parent.name)
def test_backup_file_of_released_version_is_read(path: Path) -> None:
    assert list(read_backup(io.BytesIO(path.read_bytes()))) == ROWS
