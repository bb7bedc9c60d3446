"""The index of words of an SQLite store, with SQLite's FTS5.

    search_documents    the rows that are indexed
    search_texts        their texts, from which FTS5 has the words: it needs them to remove these
    search_words        the words
    search_waiting      the rows that are noted: they were written and are not indexed yet
    search_state        `filled`: up to which key older rows are noted; `deleted_at`: when words were deleted that are
                        still somewhere in the pages of FTS5, in seconds since the epoch

Triggers note and delete with the row itself, whichever program writes it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from .records import Record
from .search_index import CLAIM_SECONDS, FIND_SECONDS, LISTED, Document, Noted, Term, owner_of, took_too_long
from .sqlite_threads import key_list
from .thread_pool import ThreadPool, job_of

_IS_LISTED: Final = "{row}.key >= 'l/' AND {row}.key < 'l0'"
_NOTE: Final = (
    "DELETE FROM search_waiting WHERE key = {key}",
    "INSERT INTO search_waiting(key, claimed_until) VALUES ({key}, 0)",
)
_REMOVE: Final = (
    "UPDATE search_state SET deleted_at = coalesce(deleted_at, strftime('%s', 'now')) "
    "WHERE EXISTS (SELECT 1 FROM search_documents WHERE key = {key})",
    "INSERT INTO search_words(search_words, rowid, owner, text) SELECT 'delete', id, owner, text FROM search_texts "
    "WHERE id = (SELECT id FROM search_documents WHERE key = {key})",
    "DELETE FROM search_texts WHERE id = (SELECT id FROM search_documents WHERE key = {key})",
    "DELETE FROM search_documents WHERE key = {key}",
)
_CREATE: Final = (
    "CREATE TABLE search_documents(id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL)",
    "CREATE TABLE search_texts(id INTEGER PRIMARY KEY, owner TEXT NOT NULL, text TEXT NOT NULL)",
    "CREATE VIRTUAL TABLE search_words USING fts5(owner, text, content='search_texts', content_rowid='id', "
    "tokenize='unicode61 remove_diacritics 2')",
    "CREATE TABLE search_waiting(id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE NOT NULL, "
    "claimed_until REAL NOT NULL)",
    "CREATE TABLE search_state(filled TEXT NOT NULL, deleted_at INTEGER)",
    "INSERT INTO search_state(filled) VALUES ('l/')",
)
_TRIGGERS: Final = {
    "search_inserted": ("INSERT", "new", _NOTE),
    "search_updated": ("UPDATE", "new", _NOTE),
    "search_deleted": ("DELETE", "old", ("DELETE FROM search_waiting WHERE key = {key}", *_REMOVE)),
}
_DROP: Final = (
    *(f"DROP TRIGGER IF EXISTS {name}" for name in _TRIGGERS),
    "DROP TABLE IF EXISTS search_words",
    *(f"DROP TABLE IF EXISTS search_{name}" for name in ("documents", "texts", "waiting", "state")),
)
_EXISTS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'search_state'"
_OLDER: Final = "SELECT key FROM records WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
_NOTE_OLDER: Final = "INSERT OR IGNORE INTO search_waiting(key, claimed_until) VALUES (?, 0)"
_CLAIMABLE: Final = "SELECT 1 FROM search_waiting WHERE claimed_until <= ? LIMIT 1"
_CLAIM: Final = """
UPDATE search_waiting SET claimed_until = ? WHERE id IN (
  SELECT id FROM search_waiting WHERE claimed_until <= ? ORDER BY id DESC LIMIT ?) RETURNING id, key
"""
_IS_INDEXED: Final = "SELECT 1 FROM search_documents WHERE key = ?"
_DONE: Final = "DELETE FROM search_waiting WHERE id = ? AND key = ? RETURNING id"
# The order of the joins is fixed: words, documents, records.
_FIND: Final = """
SELECT records.key, records.value, records.version FROM (
  SELECT documents.key AS key FROM search_words CROSS JOIN search_documents AS documents
  ON documents.id = search_words.rowid
  WHERE search_words MATCH ? AND documents.key >= ? AND documents.key < ? ORDER BY documents.key {order} LIMIT ?
) AS found CROSS JOIN records ON records.key = found.key AND (expires_at IS NULL OR expires_at > ?)
ORDER BY records.key {order}
"""
_NOTED: Final = """
SELECT records.key, records.value, records.version FROM search_waiting AS waiting JOIN records USING (key)
WHERE waiting.key >= ? AND waiting.key < ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY waiting.key {order} LIMIT ?
"""
_TEXTS: Final = """
SELECT key, text FROM search_documents JOIN search_texts USING (id) WHERE key IN (SELECT value FROM json_each(?))
"""
_WAITING: Final = "SELECT count(*) FROM (SELECT 1 FROM search_waiting LIMIT 10000)"
_UNPURGED: Final = "SELECT 1 FROM search_state WHERE deleted_at <= strftime('%s', 'now') - ?"
_MERGE: Final = "INSERT INTO search_words(search_words, rank) VALUES ('merge', ?)"

_NOTED_ROWS: Final = 5_000
"""Older rows that are noted in one transaction."""
_MERGED_PAGES: Final = 200
"""Pages of FTS5 that one transaction writes anew."""
_OPERATIONS: Final = 2_000
"""Operations of SQLite between two looks at the clock."""


class SqliteSearch:
    """The index of a store's file, as a `SearchIndex`.

    Args:
        writer: writes to the file.
        readers: read from it; only searches use them, so that no other call waits for these.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        writer: ThreadPool[sqlite3.Connection],
        readers: ThreadPool[sqlite3.Connection],
        clock: Callable[[], float],
    ) -> None:
        self._writer, self._readers, self._clock = writer, readers, clock

    async def prepare(self) -> bool:
        filled: bool = await self._write(_prepare)
        return filled

    async def drop(self) -> None:
        if await self._readers.submit(_exists):
            await self._write(_drop)

    async def claim(self, limit: int) -> list[Noted]:
        now = self._clock()
        if not await self._readers.submit(partial(_is_claimable, now)):
            return []
        claimed: list[Noted] = await self._write(partial(_claim, now, limit))
        return claimed

    async def put(self, documents: Sequence[Document]) -> None:
        await self._write(partial(_put, documents), sum(len(each.text) for each in documents))

    async def find(
        self, terms: Sequence[Term], start: str, end: str, *, limit: int, reverse: bool
    ) -> list[tuple[str, Record]]:
        sql = _FIND.format(order="DESC" if reverse else "ASC")
        given = (_match(owner_of(start), terms), start, end, limit, self._clock())
        rows: list[tuple[str, Record]] = await self._readers.submit(partial(_find, sql, given))
        return rows

    async def noted(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        sql = _NOTED.format(order="DESC" if reverse else "ASC")
        rows: list[tuple[str, Record]] = await self._readers.submit(
            partial(_find, sql, (start, end, self._clock(), limit))
        )
        return rows

    async def texts(self, keys: Sequence[str]) -> dict[str, str]:
        texts: dict[str, str] = await self._readers.submit(partial(_texts, keys))
        return texts

    async def waiting(self) -> int:
        waiting: int = await self._readers.submit(_waiting)
        return waiting

    async def purge(self, older_than: float = 0.0) -> None:
        if not await self._readers.submit(partial(_is_unpurged, older_than)):
            return
        # All words go into one segment, step by step. Deleted words do not: nothing older is left that they delete.
        pages = -_MERGED_PAGES
        while await self._write(partial(_merge, pages)):
            pages = _MERGED_PAGES

    async def _write(self, call: Callable[[sqlite3.Connection], Any], size: int = 0) -> Any:
        job = job_of(call)
        job.size = size
        self._writer.put(job)
        return await job.future


def _exists(connection: sqlite3.Connection) -> bool:
    return connection.execute(_EXISTS).fetchone() is not None


def _prepare(connection: sqlite3.Connection) -> bool:
    if not _exists(connection):
        for statement in _CREATE:
            connection.execute(statement)
        for name, (event, row, statements) in _TRIGGERS.items():
            body = " ".join(f"{statement.format(key=f'{row}.key')};" for statement in statements)
            when = _IS_LISTED.format(row=row)
            connection.execute(f"CREATE TRIGGER {name} AFTER {event} ON records WHEN {when} BEGIN {body} END")
    [filled] = connection.execute("SELECT filled FROM search_state").fetchone()
    older = connection.execute(_OLDER, (filled, LISTED[1], _NOTED_ROWS)).fetchall()
    connection.executemany(_NOTE_OLDER, older)
    if older or filled != LISTED[1]:
        connection.execute("UPDATE search_state SET filled = ?", older[-1] if older else (LISTED[1],))
    return not older


def _drop(connection: sqlite3.Connection) -> None:
    for statement in _DROP:
        connection.execute(statement)


def _is_claimable(now: float, connection: sqlite3.Connection) -> bool:
    return _exists(connection) and connection.execute(_CLAIMABLE, (now,)).fetchone() is not None


def _claim(now: float, limit: int, connection: sqlite3.Connection) -> list[Noted]:
    rows = connection.execute(_CLAIM, (now + CLAIM_SECONDS, now, limit)).fetchall()
    return [Noted(*row) for row in sorted(rows, reverse=True)]


def _put(documents: Sequence[Document], connection: sqlite3.Connection) -> None:
    for each in documents:
        key = each.noted.key
        if connection.execute(_DONE, (each.noted.number, key)).fetchone() is None:
            continue
        if connection.execute(_IS_INDEXED, (key,)).fetchone():
            for statement in _REMOVE:
                connection.execute(statement.format(key=":key"), {"key": key})
        number = connection.execute("INSERT INTO search_documents(key) VALUES (?)", (key,)).lastrowid
        row = (number, owner_of(key), each.text)
        connection.execute("INSERT INTO search_texts(id, owner, text) VALUES (?, ?, ?)", row)
        connection.execute("INSERT INTO search_words(rowid, owner, text) VALUES (?, ?, ?)", row)


def _match(owner: str, terms: Sequence[Term]) -> str:
    """Return an expression of FTS5. Words have only letters and digits; the owner is a phrase."""
    phrases = " AND ".join(f'"{" ".join(term.words)}"{"*" if term.prefix else ""}' for term in terms)
    return f'owner : "{owner}" AND text : ({phrases})'


def _find(sql: str, given: Sequence[Any], connection: sqlite3.Connection) -> list[tuple[str, Record]]:
    if not _exists(connection):
        return []
    until = time.monotonic() + FIND_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, _OPERATIONS)
    try:
        return [(key, Record(value, version)) for key, value, version in connection.execute(sql, given)]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise took_too_long() from error
        raise
    finally:
        connection.set_progress_handler(None, 0)


def _texts(keys: Sequence[str], connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute(_TEXTS, (key_list(keys),)).fetchall()) if _exists(connection) else {}


def _waiting(connection: sqlite3.Connection) -> int:
    if not _exists(connection):
        return 0
    [waiting] = connection.execute(_WAITING).fetchone()
    return int(waiting)


def _is_unpurged(older_than: float, connection: sqlite3.Connection) -> bool:
    return _exists(connection) and connection.execute(_UNPURGED, (older_than,)).fetchone() is not None


def _merge(pages: int, connection: sqlite3.Connection) -> bool:
    """Merge some pages; return whether more is to be merged."""
    before = connection.total_changes
    connection.execute(_MERGE, (pages,))
    if connection.total_changes - before > 1:
        return True
    connection.execute("UPDATE search_state SET deleted_at = NULL")
    return False
