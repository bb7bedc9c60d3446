"""What backups have, by key: in a temporary file, so that memory holds little of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from hashlib import blake2b
from itertools import batched
from typing import BinaryIO, Final, NamedTuple, Self

from ..core.errors import ApiError
from .backup_format import DAMAGED, TAKEN, read_backup
from .records import Put, after_prefix

_DIGEST_BYTES: Final = 16
_AT_ONCE: Final = 500
_NO_ROOM: Final = "The keys of the backup cannot be kept in a temporary file"

_TABLE: Final = (
    "CREATE TABLE rows (key TEXT PRIMARY KEY, phase INTEGER, was BLOB, is_now BLOB, place INTEGER, size INTEGER, "
    "expires_at REAL) WITHOUT ROWID"
)
_ADD_OLD: Final = "INSERT OR REPLACE INTO rows (key, was) VALUES (?, ?)"
_ADD_NEW: Final = (
    "INSERT INTO rows (key, phase, is_now, place, size, expires_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO "
    "UPDATE SET phase = excluded.phase, is_now = excluded.is_now, place = excluded.place, size = excluded.size, "
    "expires_at = excluded.expires_at"
)
_ROWS: Final = "SELECT key, was, is_now, place, size, expires_at FROM rows WHERE phase = ? ORDER BY key"
_REMOVED: Final = "SELECT key, was FROM rows WHERE is_now IS NULL ORDER BY key"
_DAMAGED: Final = "SELECT key FROM rows WHERE key >= ? AND key < ? AND is_now IS NOT NULL ORDER BY key"
_TAKEN: Final = (
    "SELECT max(key) FILTER (WHERE was IS NOT NULL), max(key) FILTER (WHERE is_now IS NOT NULL) FROM rows "
    "WHERE key >= ? AND key < ?"
)
_ONE: Final = "SELECT key, was, is_now, place, size, expires_at FROM rows WHERE key = ? AND is_now IS NOT NULL"


def digest(value: bytes) -> bytes:
    """Return a hash of a value."""
    return blake2b(value, digest_size=_DIGEST_BYTES).digest()


class Indexed(NamedTuple):
    """A row of a backup.

    Attributes:
        was: the hash of its value in the earlier backup; None if that lacks it.
        now: the hash of its value.
        place: where its value begins in the file.
        size: the bytes of its value.
    """

    key: str
    was: bytes | None
    now: bytes
    place: int
    size: int
    expires_at: float | None


class BackupIndex:
    """The rows of a backup, and of an earlier one of the same store. A `with` block deletes it.

    Args:
        file: the backup.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rows = sqlite3.connect("", isolation_level=None)  # an unnamed database is a temporary file
        self._rows.execute(_TABLE)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Delete it."""
        self._rows.close()

    def add_earlier(self, rows: Iterable[Put]) -> None:
        """Add the rows of the earlier backup.

        Raises:
            ApiError: 400, the file is damaged; 500, there is no room for its keys.
        """
        for some in batched(rows, _AT_ONCE):
            self._write(_ADD_OLD, [(row.key, digest(row.value)) for row in some])

    def read(self, phase_of: Mapping[str, int]) -> None:
        """Add the rows of the backup.

        Args:
            phase_of: the phases by the first part of a key, or by the first two; 0 for others.

        Raises:
            ApiError: 400, the file is damaged; 500, there is no room for its keys.
        """
        for some in batched(self._placed(), _AT_ONCE):
            self._write(_ADD_NEW, [(row.key, _phase(row.key, phase_of), *rest) for row, *rest in some])

    def _placed(self) -> Iterator[tuple[Put, bytes, int, int, float | None]]:
        for row in read_backup(self._file):
            size = len(row.value)
            yield row, digest(row.value), self._file.tell() - size, size, row.expires_at

    def _write(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        try:
            self._rows.execute("BEGIN")
            self._rows.executemany(statement, rows)
            self._rows.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise ApiError(500, f"{_NO_ROOM} ({error}): set SQLITE_TMPDIR to a folder with more room.") from error

    def rows(self, phase: int) -> Iterator[Indexed]:
        """Yield the rows of the backup in a phase, ordered by key."""
        with closing(self._rows.execute(_ROWS, (phase,))) as found:
            yield from (Indexed(*row) for row in found)

    def removed(self) -> Iterator[tuple[str, bytes]]:
        """Yield the keys that only the earlier backup has, in order, each with the hash of its value."""
        with closing(self._rows.execute(_REMOVED)) as found:
            yield from found

    def get(self, key: str) -> Indexed | None:
        """Return a row of the backup; None if it lacks it."""
        found = self._rows.execute(_ONE, (key,)).fetchone()
        return Indexed(*found) if found else None

    def lacks(self) -> list[str]:
        """Return the ids of what the backup lacks since it was damaged."""
        found = self._rows.execute(_DAMAGED, (DAMAGED, after_prefix(DAMAGED)))
        return [key.removeprefix(DAMAGED) for [key] in found]

    def is_later(self) -> bool:
        """Return whether the backup is later than the earlier one, or one of them does not say when it was made."""
        [was, now] = self._rows.execute(_TAKEN, (TAKEN, after_prefix(TAKEN))).fetchone()
        return was is None or now is None or was < now

    def value(self, row: Indexed) -> bytes:
        """Return the value of a row."""
        self._file.seek(row.place)
        return self._file.read(row.size)


def _phase(key: str, phase_of: Mapping[str, int]) -> int:
    first, second, *_ = (*key.split("/", 2), "")
    return phase_of.get(f"{first}/{second}", phase_of.get(first, 0))
