"""The index of words of an SQLite store, with SQLite's FTS5.

    search_entries      the rows that are indexed: the number of each, that of its record, and its place in the list
    search_terms        the words of these, without their positions and without the text
    search_vocabulary   the same words, to be read one after the other
    search_noted        the rows that are noted: they were written and are not indexed yet
    search_deleted      the numbers of rows that are indexed no longer, of which FTS5 still has the words
    search_progress     `filled`: up to which key older rows are noted; empty while the index is being dropped

Triggers note and delete with the row itself, whichever program writes it. FTS5 removes a word only if it is told the
word, and no text is kept. So a row leaves `search_entries` at once, and its words leave FTS5 later (`purge`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from .layout import ORDER_DIGITS
from .records import Record
from .search_index import (
    CLAIM_SECONDS,
    COUNTED,
    COUNTED_OF_ALL,
    FIND_SECONDS,
    LISTED,
    NO_PROGRESS,
    Document,
    Noted,
    Progress,
    Term,
    owner_of,
    sought_words,
    took_too_long,
)
from .sqlite_threads import key_list
from .thread_pool import ThreadPool, job_of

_IS_LISTED: Final = "{row}.key >= 'l/' AND {row}.key < 'l0'"
_NOTE: Final = "INSERT INTO search_noted VALUES (new.id, 0)"
_FORGET: Final = (
    "INSERT INTO search_deleted SELECT id, strftime('%s', 'now'), 0 FROM search_entries WHERE record = {record}",
    "DELETE FROM search_entries WHERE record = {record}",
)
_CREATE: Final = (
    "CREATE TABLE search_entries(id INTEGER PRIMARY KEY, record INTEGER UNIQUE NOT NULL, place INTEGER NOT NULL)",
    # Words are already folded and separated by spaces, and no letter beyond ASCII ends one here. Owners have - and _.
    "CREATE VIRTUAL TABLE search_terms USING fts5(words, content='', columnsize=0, detail=none, "
    """tokenize="ascii tokenchars '-_'")""",
    "CREATE VIRTUAL TABLE search_vocabulary USING fts5vocab(search_terms, instance)",
    # Part of the commit of each response, so it takes one page.
    "CREATE TABLE search_noted(record INTEGER PRIMARY KEY, claimed_until REAL NOT NULL)",
    "CREATE TABLE search_deleted(id INTEGER PRIMARY KEY, at INTEGER NOT NULL, removed INTEGER NOT NULL)",
    "CREATE TABLE search_progress(filled TEXT NOT NULL)",
    "INSERT INTO search_progress(filled) VALUES ('l/')",
)
_TRIGGERS: Final = {
    "search_inserted": ("INSERT", "new", [_NOTE]),
    "search_updated": ("UPDATE", "new", ["DELETE FROM search_noted WHERE record = new.id", _NOTE]),
    "search_deletion": (
        "DELETE",
        "old",
        ("DELETE FROM search_noted WHERE record = old.id", *(each.format(record="old.id") for each in _FORGET)),
    ),
}
_TABLES: Final = ("vocabulary", "terms", "entries", "noted", "deleted", "progress")
_LARGE: Final = ("terms_data", "entries", "noted")
"""Tables with many pages: their rows are deleted in steps before they are dropped."""
_FORMER_TRIGGERS: Final = ("search_inserted", "search_updated", "search_deleted")
_FORMER_TABLES: Final = ("words", "texts", "documents", "waiting", "state")
_LARGE_FORMER: Final = ("words_data", "texts", "waiting", "documents")
# FTS5 needs its first ten rows to drop the others' table.
_EMPTY: Final = "DELETE FROM search_{name} WHERE rowid IN (SELECT rowid FROM search_{name} WHERE rowid > 10 LIMIT 500)"

_HAS: Final = "SELECT 1 FROM sqlite_master WHERE name = ?"
_OLDER: Final = "SELECT key, id FROM records WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
_NOTE_OLDER: Final = "INSERT OR IGNORE INTO search_noted VALUES (?, 0)"
_CLAIMABLE: Final = "SELECT 1 FROM search_noted WHERE claimed_until <= ? LIMIT 1"
_CLAIM: Final = """
UPDATE search_noted SET claimed_until = ? WHERE record IN (
  SELECT record FROM search_noted WHERE claimed_until <= ? ORDER BY record DESC LIMIT ?)
RETURNING record, (SELECT key FROM records WHERE records.id = record)
"""
_DONE: Final = "DELETE FROM search_noted WHERE record = ? AND claimed_until = ?"
# The number of a row is never used again while FTS5 has words of it.
_LAST: Final = (
    "SELECT max(coalesce((SELECT max(id) FROM search_entries), 0), coalesce((SELECT max(id) FROM search_deleted), 0))"
)
# The order of the joins is fixed: words, entries.
_FIND: Final = """
SELECT place, record FROM search_terms CROSS JOIN search_entries AS entries ON entries.id = search_terms.rowid
WHERE search_terms MATCH ? AND place BETWEEN ? AND ? ORDER BY place {order} LIMIT ?
"""
_FOUND: Final = """
SELECT key, value, version FROM records WHERE id IN (SELECT value FROM json_each(?))
AND key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key {order} LIMIT ?
"""
# Of few, all are looked up and sorted; of many, those of the range are found by their keys.
_FEW_NOTED: Final = """
SELECT key, value, version FROM search_noted AS noted CROSS JOIN records ON records.id = noted.record
WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key {order} LIMIT ?
"""
_MANY_NOTED: Final = """
SELECT key, value, version FROM records CROSS JOIN search_noted AS noted ON noted.record = records.id
WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key {order} LIMIT ?
"""
_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {most})"
_UNPURGED: Final = "SELECT min(at) <= strftime('%s', 'now') - ? FROM search_deleted"
_UNREMOVED: Final = "SELECT id FROM search_deleted WHERE NOT removed"
_DEAD_WORDS: Final = f"""
SELECT term, doc FROM search_vocabulary WHERE term >= ? AND term < ? AND doc IN ({_UNREMOVED})
"""  # noqa: S608 - constants
_MERGE: Final = "INSERT INTO search_terms(search_terms, rank) VALUES ('merge', ?)"

_NOTED_ROWS: Final = 5_000
"""Older rows that are noted in one transaction."""
_FEW: Final = 1_000
_MERGED_PAGES: Final = 200
"""Pages of FTS5 that one transaction writes anew."""
_DEAD: Final = 1_000_000
"""Words of deleted rows that are held at a time; those of further rows are read again."""
_SMALL: Final = 10_000
"""Rows of an index of which all words are read at once. Those of a larger one are read in parts, between searches."""
_ALNUM: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_END: Final = "\U0010ffff"
"""The end of the last part."""
_REMOVED_TOGETHER: Final = 100
"""Rows of which one transaction removes the words."""
_OPERATIONS: Final = 2_000
"""Operations of SQLite between two looks at the clock."""
_SAME_PLACE: Final = 16
"""Rows more than are asked for that are found, since some may have one place."""
_OWNER: Final = "§"
"""The beginning of the word that names the owner; no word of a text has it."""

type _Found = list[tuple[str, Record]]


class SqliteSearch:
    """The index of a store's file, as a `SearchIndex`.

    Args:
        writer: writes to the file.
        readers: read from it at once.
        searchers: read what may take long, so that no other call waits for it.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        writer: ThreadPool[sqlite3.Connection],
        readers: ThreadPool[sqlite3.Connection],
        searchers: ThreadPool[sqlite3.Connection],
        clock: Callable[[], float],
    ) -> None:
        self._writer, self._readers, self._searchers, self._clock = writer, readers, searchers, clock

    async def prepare(self) -> bool:
        if await self._readers.submit(_is_being_dropped):
            await self.drop()
        filled: bool = await self._write(_prepare)
        if await self.is_of_earlier_version():
            await self._drop(_FORMER_TABLES, _LARGE_FORMER, lambda _: True)
        return filled

    async def drop(self) -> None:
        if await self.is_of_earlier_version():
            await self._write(partial(_drop_triggers, _FORMER_TRIGGERS))
            await self._drop(_FORMER_TABLES, _LARGE_FORMER, lambda _: True)
        if await self._readers.submit(partial(_has, "search_progress")):
            await self._write(_begin_to_drop)
            await self._drop(_TABLES, _LARGE, _is_being_dropped)

    async def _drop(
        self, tables: Sequence[str], large: Sequence[str], may: Callable[[sqlite3.Connection], bool]
    ) -> None:
        """Drop tables in steps, as long as this may be: another server may have finished, and have made them anew."""
        for name in large:
            while await self._write(partial(_empty, name, may)):
                pass
        await self._write(partial(_drop_tables, tables, may))

    async def is_of_earlier_version(self) -> bool:
        found: bool = await self._readers.submit(partial(_has, "search_documents"))
        return found

    async def claim(self, limit: int) -> list[Noted]:
        now = self._clock()
        if not await self._readers.submit(partial(_is_claimable, now)):
            return []
        claimed: list[Noted] = await self._write(partial(_claim, now, limit))
        return claimed

    async def put(self, documents: Sequence[Document]) -> None:
        await self._write(partial(_put, documents), sum(8 * len(each.words) for each in documents))

    async def find(
        self, terms: Sequence[Term], start: str, end: str, *, limit: int, reverse: bool
    ) -> list[tuple[str, Record]]:
        match = _match(owner_of(start), terms)
        rows: _Found = await self._searchers.submit(partial(_find, match, (start, end, self._clock()), limit, reverse))
        return rows

    async def noted(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        rows: _Found = await self._searchers.submit(partial(_noted, (start, end, self._clock(), limit), reverse))
        return rows

    async def progress(self) -> Progress:
        progress: Progress = await self._searchers.submit(_progress)
        return progress

    async def purge(self, older_than: float = 0.0) -> None:
        if not await self._searchers.submit(partial(_is_unpurged, older_than)):
            return
        while words := await self._words_of_deleted():
            numbers = sorted(words)
            for at in range(0, len(numbers), _REMOVED_TOGETHER):
                some = {number: words[number] for number in numbers[at : at + _REMOVED_TOGETHER]}
                await self._write(partial(_remove, some))
        # All words go into one segment, step by step. Deleted words do not: nothing older is left that they delete.
        pages = -_MERGED_PAGES
        while await self._write(partial(_merge, pages)):
            pages = _MERGED_PAGES

    async def _words_of_deleted(self) -> dict[int, list[str]]:
        """Return the words of rows that are deleted, of some of them if all would be too many."""
        words: dict[int, list[str]] = {each: [] for each in await self._searchers.submit(_unremoved)}
        is_small = await self._searchers.submit(
            lambda connection: _count(connection, "search_entries", _SMALL) < _SMALL
        )
        held = 0
        for part in pairwise(("", _END) if is_small else _parts()):
            for word, number in await self._searchers.submit(partial(_dead_words, part)) if words else ():
                if number in words:
                    words[number].append(word)
                    held += 1
            while held > _DEAD and len(words) > 1:
                held -= sum(len(words.pop(each)) for each in sorted(words)[len(words) // 2 :])
        return words

    async def _write(self, call: Callable[[sqlite3.Connection], Any], size: int = 0) -> Any:
        job = job_of(call)
        job.size = size
        self._writer.put(job)
        return await job.future


def _has(name: str, connection: sqlite3.Connection) -> bool:
    return connection.execute(_HAS, (name,)).fetchone() is not None


def _filled(connection: sqlite3.Connection) -> str | None:
    """Return up to which key older rows are noted; None without an index."""
    if not _has("search_progress", connection):
        return None
    [filled] = connection.execute("SELECT filled FROM search_progress").fetchone()
    return str(filled)


def _exists(connection: sqlite3.Connection) -> bool:
    return bool(_filled(connection))


def _is_being_dropped(connection: sqlite3.Connection) -> bool:
    return not _filled(connection) and _has("search_progress", connection)


def _begin_to_drop(connection: sqlite3.Connection) -> None:
    if _exists(connection):
        _drop_triggers(tuple(_TRIGGERS), connection)
        connection.execute("UPDATE search_progress SET filled = ''")


def _drop_triggers(names: Sequence[str], connection: sqlite3.Connection) -> None:
    for name in names:
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")


def _empty(name: str, may: Callable[[sqlite3.Connection], bool], connection: sqlite3.Connection) -> bool:
    """Delete some rows of a table; return whether there were any."""
    if not may(connection) or not _has(f"search_{name}", connection):
        return False
    return connection.execute(_EMPTY.format(name=name)).rowcount > 0


def _drop_tables(
    names: Sequence[str], may: Callable[[sqlite3.Connection], bool], connection: sqlite3.Connection
) -> None:
    if may(connection):
        for name in names:
            connection.execute(f"DROP TABLE IF EXISTS search_{name}")


def _prepare(connection: sqlite3.Connection) -> bool:
    if not _has("search_progress", connection):
        _drop_triggers(_FORMER_TRIGGERS, connection)
        for statement in _CREATE:
            connection.execute(statement)
        for name, (event, row, statements) in _TRIGGERS.items():
            body = " ".join(f"{statement};" for statement in statements)
            when = _IS_LISTED.format(row=row)
            connection.execute(f"CREATE TRIGGER {name} AFTER {event} ON records WHEN {when} BEGIN {body} END")
    filled = _filled(connection)
    older = connection.execute(_OLDER, (filled, LISTED[1], _NOTED_ROWS)).fetchall()
    connection.executemany(_NOTE_OLDER, [(record,) for _, record in older])
    if older or filled != LISTED[1]:
        connection.execute("UPDATE search_progress SET filled = ?", (older[-1][0] if older else LISTED[1],))
    return not older


def _is_claimable(now: float, connection: sqlite3.Connection) -> bool:
    return _exists(connection) and connection.execute(_CLAIMABLE, (now,)).fetchone() is not None


def _claim(now: float, limit: int, connection: sqlite3.Connection) -> list[Noted]:
    until = now + CLAIM_SECONDS
    rows = connection.execute(_CLAIM, (until, now, limit)).fetchall()
    return [Noted(key, (record, until)) for record, key in sorted(rows, reverse=True)]


def _put(documents: Sequence[Document], connection: sqlite3.Connection) -> None:
    [number] = connection.execute(_LAST).fetchone()
    rows: list[tuple[int, str]] = []
    for each in documents:
        if not connection.execute(_DONE, each.noted.claim).rowcount:
            continue  # It was written again or deleted meanwhile.
        key, (record, _) = each.noted.key, each.noted.claim
        for statement in _FORGET:
            connection.execute(statement.format(record=":record"), {"record": record})
        number += 1
        connection.execute("INSERT INTO search_entries VALUES (?, ?, ?)", (number, record, _place(key)))
        rows.append((number, " ".join([_OWNER + owner_of(key), *each.words])))
    # With statements in between that may be undone, FTS5 would write each row by itself.
    connection.executemany("INSERT INTO search_terms(rowid, words) VALUES (?, ?)", rows)


def _place(key: str) -> int:
    """Return the place in its list of the row with this key, or of the first one with a key from here on."""
    *_, of_list = key.split("/", 2)
    return int(of_list.partition("/")[0].ljust(ORDER_DIGITS, "0") or "0", 16)


def _match(owner: str, terms: Sequence[Term]) -> str:
    """Return an expression of FTS5. Words have only letters and digits."""
    words = [each for term in terms for each in sought_words(term)]
    return " AND ".join([f'"{_OWNER}{owner}"', *(f'"{word}"{"*" if prefix else ""}' for word, prefix in words)])


def _find(
    match: str, bounds: tuple[str, str, float], limit: int, reverse: bool, connection: sqlite3.Connection
) -> _Found:
    if not _exists(connection):
        return []
    until = time.monotonic() + FIND_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, _OPERATIONS)
    try:
        return _found(match, bounds, limit, reverse, connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise took_too_long() from error
        raise
    finally:
        connection.set_progress_handler(None, 0)


def _found(
    match: str, bounds: tuple[str, str, float], limit: int, reverse: bool, connection: sqlite3.Connection
) -> _Found:
    """Return the rows by their places: all of one place, so that their keys decide which are the first."""
    order, (start, end, _) = "DESC" if reverse else "ASC", bounds
    first, last = _place(start), _place(end) if end.count("/") > 1 else 2 ** (4 * ORDER_DIGITS)
    rows, size = list[tuple[str, Record]](), limit + _SAME_PLACE
    while True:
        some = connection.execute(_FIND.format(order=order), (match, first, last, size)).fetchall()
        whole = some if len(some) < size else [each for each in some if each[0] != some[-1][0]]
        records = key_list([record for _, record in whole])
        found = connection.execute(_FOUND.format(order=order), (records, *bounds, limit - len(rows)))
        rows += [(key, Record(value, version)) for key, value, version in found]
        if len(some) < size or len(rows) == limit:
            return rows
        if not whole:
            size *= 2
        elif reverse:
            last = whole[-1][0] - 1
        else:
            first = whole[-1][0] + 1


def _noted(given: tuple[str, str, float, int], reverse: bool, connection: sqlite3.Connection) -> _Found:
    if not _exists(connection):
        return []
    noted = _count(connection, "search_noted", _FEW)
    if not noted:
        return []
    sql = (_FEW_NOTED if noted < _FEW else _MANY_NOTED).format(order="DESC" if reverse else "ASC")
    return [(key, Record(value, version)) for key, value, version in connection.execute(sql, given)]


def _progress(connection: sqlite3.Connection) -> Progress:
    if not (filled := _filled(connection)):
        return NO_PROGRESS
    waiting = _count(connection, "search_noted", COUNTED)
    indexed = _count(connection, "search_entries", COUNTED if waiting else COUNTED_OF_ALL)
    return Progress(filled == LISTED[1], indexed, waiting)


def _parts() -> Sequence[str]:
    """Return where the parts begin in which words are read, and the end of the last one."""
    return "", *(a + b for a in _ALNUM for b in _ALNUM), *map(chr, range(0x80, 0xD800, 0x400)), _END


def _count(connection: sqlite3.Connection, table: str, most: int) -> int:
    [count] = connection.execute(_COUNT.format(table=table, most=most)).fetchone()
    return int(count)


def _is_unpurged(older_than: float, connection: sqlite3.Connection) -> bool:
    return _exists(connection) and connection.execute(_UNPURGED, (older_than,)).fetchone() == (1,)


def _unremoved(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute(_UNREMOVED)]


def _dead_words(part: tuple[str, str], connection: sqlite3.Connection) -> list[tuple[str, int]]:
    return connection.execute(_DEAD_WORDS, part).fetchall()


def _remove(words: dict[int, list[str]], connection: sqlite3.Connection) -> None:
    """Remove the words of deleted rows."""
    for number, of_row in words.items():
        if connection.execute("UPDATE search_deleted SET removed = 1 WHERE id = ? AND NOT removed", (number,)).rowcount:
            given = (number, " ".join(of_row))
            connection.execute("INSERT INTO search_terms(search_terms, rowid, words) VALUES ('delete', ?, ?)", given)


def _merge(pages: int, connection: sqlite3.Connection) -> bool:
    """Merge some pages; return whether more is to be merged."""
    before = connection.total_changes
    connection.execute(_MERGE, (pages,))
    if connection.total_changes - before > 1:
        return True
    connection.execute("DELETE FROM search_deleted WHERE removed")
    return False
