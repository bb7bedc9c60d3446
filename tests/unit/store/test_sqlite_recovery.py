"""What is read of a damaged SQLite file: files that SQLite itself no longer reads."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.records import Delete, Put
from llama_stack_responses.store.sqlite import SqliteRecords
from llama_stack_responses.store.sqlite_recovery import DamagedFile

PAGE: Final = 4096


async def filled(path: Path, rows: int = 400) -> dict[str, tuple[bytes, float | None]]:
    """Fill a file with rows of all sizes, of which some were deleted again, and return those that are left."""
    noise, records, kept = random.Random(1), SqliteRecords(path), dict[str, tuple[bytes, float | None]]()
    for number in range(rows):
        size = noise.choice((0, 10, 300, 2000, 5000, 40_000))
        expires = noise.choice((None, 4e9, 4e9 + 0.5))
        kept[f"k/{number:04}"] = noise.randbytes(size), expires
        await records.commit([Put(f"k/{number:04}", *kept[f"k/{number:04}"])])
    for number in range(0, rows, 7):
        del kept[f"k/{number:04}"]
        await records.commit([Delete(f"k/{number:04}")])
    await records.close()
    return kept


def read(path: Path) -> tuple[dict[str, tuple[bytes, float | None]], DamagedFile]:
    with DamagedFile(path) as damaged:
        return {row.key: (row.value, row.expires_at) for row in damaged.rows()}, damaged


async def test_whole_file_is_read_without_what_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    kept = await filled(path)
    rows, damaged = read(path)
    assert rows == kept
    assert (damaged.unreadable, damaged.listed) == (0, len(kept))


async def test_wal_of_killed_server_is_read(tmp_path: Path) -> None:
    path, copied = tmp_path / "records.db", tmp_path / "copied.db"
    records = SqliteRecords(path)
    await records.commit([Put("old", b"1"), Put("gone", b"1"), Put("large", b"x" * 50_000)])
    await records.close()
    await records.commit([Put("old", b"2"), Delete("gone")])
    await records.commit([Put("new", b"y" * 9000)])
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{copied}{suffix}")
    await records.close()
    with copied.with_name("copied.db-wal").open("ab") as wal:
        wal.write(b"half of a frame")
    rows, damaged = read(copied)
    assert {key: value for key, (value, _) in rows.items()} == {
        "old": b"2",
        "new": b"y" * 9000,
        "large": b"x" * 50_000,
    }
    assert damaged.unreadable == 0


def first_page(path: Path) -> None:
    """Overwrite the header and the schema."""
    with path.open("r+b") as file:
        file.write(bytes(PAGE))


def roots(path: Path) -> None:
    """Overwrite the roots of the table and its indexes."""
    with sqlite3.connect(path) as connection:
        pages = [page for (page,) in connection.execute("SELECT rootpage FROM sqlite_schema")]
    connection.close()
    for page in pages:
        overwrite(path, page)


def cut(path: Path) -> None:
    """Cut off the end of the file, as a copy on a full disk does."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 3 // 4 + 100)


def some_pages(path: Path) -> None:
    """Overwrite single pages within the file."""
    count = path.stat().st_size // PAGE
    for page in random.Random(2).sample(range(3, count), count // 20):
        overwrite(path, page)


def overwrite(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(random.Random(page).randbytes(PAGE))


@pytest.mark.parametrize(("damage", "share"), [(first_page, 0.99), (roots, 0.99), (cut, 0.7), (some_pages, 0.6)])
async def test_damaged_file_gives_what_is_left(tmp_path: Path, damage: Callable[[Path], None], share: float) -> None:
    path = tmp_path / "records.db"
    kept = await filled(path)
    damage(path)
    records = SqliteRecords(path)
    with pytest.raises(ApiError, match="damaged"):
        await records.get_many(list(kept))
    await records.close()
    rows, damaged = read(path)
    wrong = [key for key, row in rows.items() if kept.get(key) != row]
    # SQLite has no checksums: of a page within a large value, only the chain of pages shows the damage.
    assert wrong == []
    assert len(rows) > share * len(kept)
    assert damaged.unreadable > 0
    assert damaged.listed >= len(rows) or damage is not some_pages


@pytest.mark.parametrize("content", [b"", b"no database at all" * 1000, bytes(100_000)])
def test_other_file_has_no_rows(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert read(path)[0] == {}


async def test_any_damage_ends_without_an_error(tmp_path: Path) -> None:
    """Also chains of pages that lead in circles, and sizes that are far too large."""
    path = tmp_path / "records.db"
    kept = await filled(path, 60)
    whole = path.read_bytes()
    for seed in range(60):
        noise, damaged = random.Random(seed), bytearray(whole)
        for _ in range(noise.choice((1, 10, 1000))):
            damaged[noise.randrange(len(damaged))] = noise.choice((0, 1, 0x0D, 0xFF, noise.randrange(256)))
        path.write_bytes(damaged)
        rows, _ = read(path)
        assert rows.keys() & kept.keys()
