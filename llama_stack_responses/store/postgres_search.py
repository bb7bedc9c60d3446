"""The index of words of a PostgreSQL store, with `tsvector`.

    search_entries    the rows that are indexed, with their words, without positions and without the text
    search_noted      the rows that are noted: they were written and are not indexed yet
    search_progress   `filled`: up to which key older rows are noted

Triggers note and delete with the row itself, whichever program writes it. A store with an index has one partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import asyncpg

from ..concurrency.offloading import in_thread
from .postgres_errors import TimedOut
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

# The tables of an earlier version are dropped too.
_CREATE: Final = """
SELECT pg_advisory_xact_lock($lock);
DROP TABLE IF EXISTS $schema.search_documents, $schema.search_waiting, $schema.search_state;
CREATE TABLE IF NOT EXISTS $schema.search_entries(key bytea PRIMARY KEY, words tsvector NOT NULL);
CREATE INDEX IF NOT EXISTS search_terms ON $schema.search_entries USING gin(words);
CREATE TABLE IF NOT EXISTS $schema.search_noted(
  id bigserial PRIMARY KEY, key bytea UNIQUE NOT NULL, claimed_until float8 NOT NULL DEFAULT 0);
CREATE OR REPLACE FUNCTION $schema.search_note() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM $schema.search_noted WHERE key = OLD.key;
    DELETE FROM $schema.search_entries WHERE key = OLD.key;
  ELSE
    INSERT INTO $schema.search_noted(key) VALUES (NEW.key)
    ON CONFLICT (key) DO UPDATE SET id = excluded.id, claimed_until = 0;
  END IF;
  RETURN NULL;
END
$body$;
DROP TRIGGER IF EXISTS search_written ON $schema.partition_rows;
CREATE TRIGGER search_written AFTER INSERT OR UPDATE ON $schema.partition_rows FOR EACH ROW
  WHEN (NEW.key >= 'l/' AND NEW.key < 'l0') EXECUTE FUNCTION $schema.search_note();
DROP TRIGGER IF EXISTS search_deleted ON $schema.partition_rows;
CREATE TRIGGER search_deleted AFTER DELETE ON $schema.partition_rows FOR EACH ROW
  WHEN (OLD.key >= 'l/' AND OLD.key < 'l0') EXECUTE FUNCTION $schema.search_note();
CREATE TABLE IF NOT EXISTS $schema.search_progress(filled bytea NOT NULL);
INSERT INTO $schema.search_progress SELECT 'l/' WHERE NOT EXISTS (SELECT FROM $schema.search_progress);
"""
_DROP: Final = """
DROP TRIGGER IF EXISTS search_written ON $schema.partition_rows;
DROP TRIGGER IF EXISTS search_deleted ON $schema.partition_rows;
DROP FUNCTION IF EXISTS $schema.search_note();
DROP TABLE IF EXISTS $schema.search_entries, $schema.search_noted, $schema.search_progress;
DROP TABLE IF EXISTS $schema.search_documents, $schema.search_waiting, $schema.search_state;
"""
_HAS: Final = "SELECT to_regclass($1) IS NOT NULL"
_FILL: Final = """
WITH older AS (
  SELECT key FROM $schema.partition_rows
  WHERE partition = 0 AND key > (SELECT filled FROM $schema.search_progress) AND key < $1 ORDER BY key LIMIT $2
), noted AS (
  INSERT INTO $schema.search_noted(key) SELECT key FROM older ON CONFLICT (key) DO NOTHING
), moved AS (
  UPDATE $schema.search_progress SET filled = coalesce((SELECT key FROM older ORDER BY key DESC LIMIT 1), $1)
)
SELECT count(*) FROM older
"""
_CLAIM: Final = """
WITH free AS (
  SELECT id FROM $schema.search_noted WHERE claimed_until <= extract(epoch FROM clock_timestamp())
  ORDER BY id DESC LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE $schema.search_noted AS noted SET claimed_until = extract(epoch FROM clock_timestamp()) + $2
FROM free WHERE noted.id = free.id RETURNING noted.id, noted.key
"""
# A row that a commit is changing now is skipped: it is noted again. So this waits for no commit that waits for it.
_PUT: Final = """
WITH given AS (
  SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[]) AS given(id, key, words)
), current AS (
  SELECT noted.id FROM $schema.search_noted AS noted JOIN given USING (id, key) FOR UPDATE OF noted SKIP LOCKED
), done AS (
  DELETE FROM $schema.search_noted WHERE id IN (SELECT id FROM current) RETURNING id
)
INSERT INTO $schema.search_entries(key, words)
SELECT key, words::tsvector FROM given JOIN done USING (id) ON CONFLICT (key) DO UPDATE SET words = excluded.words
"""
# The index of words finds all that match. A walk through the keys would read the words of each row on its way.
_BY_WORDS: Final = "SET LOCAL enable_bitmapscan = on; SET LOCAL enable_indexscan = off"
_FIND: Final = """
SELECT key FROM $schema.search_entries WHERE words @@ $1::tsquery AND key >= $2 AND key < $3
ORDER BY key $order LIMIT $4
"""
_NOTED: Final = "SELECT key FROM $schema.search_noted WHERE key >= $1 AND key < $2 ORDER BY key $order LIMIT $3"
_ROWS: Final = """
SELECT key, version, value FROM $schema.partition_rows
WHERE partition = 0 AND key = ANY($1) AND (expires_at IS NULL OR expires_at > extract(epoch FROM clock_timestamp()))
ORDER BY key $order
"""
_PROGRESS: Final = """
SELECT (SELECT filled FROM $schema.search_progress) = $1,
  (SELECT count(*) FROM (SELECT FROM $schema.search_entries
    LIMIT (SELECT CASE WHEN EXISTS (SELECT FROM $schema.search_noted) THEN $2::bigint ELSE $3 END)) AS entries),
  (SELECT count(*) FROM (SELECT FROM $schema.search_noted LIMIT $2) AS noted)
"""

_NOTED_ROWS: Final = 5_000
"""Older rows that are noted in one transaction."""
_OWNER: Final = "owner/"
"""The beginning of the word that names the owner; no word of a text has a slash."""


class PostgresSearch:
    """The index of a store's schema, as a `SearchIndex`.

    Args:
        run: runs a call with the pool, as `PostgresConnections` does.
        sql: fills the name of the schema into a statement.
    """

    def __init__(
        self, run: Callable[[Callable[[asyncpg.Pool], Awaitable[Any]]], Awaitable[Any]], sql: Callable[[str], str]
    ) -> None:
        self._run, self._sql = run, sql

    async def prepare(self) -> bool:
        if not await self._exists():
            await self._run(lambda pool: pool.execute(self._sql(_CREATE)))
        [[noted]] = await self._fetch(_FILL, LISTED[1].encode(), _NOTED_ROWS)
        return bool(noted == 0)

    async def drop(self) -> None:
        if await self._exists() or await self.is_of_earlier_version():
            await self._run(lambda pool: pool.execute(self._sql(_DROP)))

    async def is_of_earlier_version(self) -> bool:
        return await self._has("search_documents")

    async def claim(self, limit: int) -> list[Noted]:
        if not await self._exists():
            return []
        rows = await self._fetch(_CLAIM, limit, CLAIM_SECONDS)
        return [Noted(key.decode(), (number, 0.0)) for number, key in sorted(rows, reverse=True)]

    async def put(self, documents: Sequence[Document]) -> None:
        vectors = await in_thread(lambda: [_vector(owner_of(each.noted.key), each.words) for each in documents])
        keys = [each.noted.key.encode() for each in documents]
        await self._fetch(_PUT, [each.noted.claim[0] for each in documents], keys, vectors)

    async def find(
        self, terms: Sequence[Term], start: str, end: str, *, limit: int, reverse: bool
    ) -> list[tuple[str, Record]]:
        if not await self._exists():
            return []
        given = (_query(owner_of(start), terms), start.encode(), end.encode(), limit)

        async def keys(pool: asyncpg.Pool) -> Sequence[Any]:
            async with pool.acquire() as connection, connection.transaction(readonly=True):
                await connection.execute(_BY_WORDS)
                found: Sequence[Any] = await connection.fetch(
                    self._ordered(_FIND, reverse), *given, timeout=FIND_SECONDS
                )
                return found

        try:
            return await self._rows(await self._run(keys), reverse)
        except TimedOut as error:
            raise took_too_long() from error

    async def noted(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        if not await self._exists():
            return []
        keys = await self._fetch(self._ordered(_NOTED, reverse), start.encode(), end.encode(), limit)
        return await self._rows(keys, reverse)

    async def _rows(self, keys: Sequence[Any], reverse: bool) -> list[tuple[str, Record]]:
        if not keys:
            return []
        rows = await self._fetch(self._ordered(_ROWS, reverse), [key for (key,) in keys])
        return [(key.decode(), Record(value, version)) for key, version, value in rows]

    def _ordered(self, sql: str, reverse: bool) -> str:
        return self._sql(sql.replace("$order", "DESC" if reverse else "ASC"))

    async def progress(self) -> Progress:
        if not await self._exists():
            return NO_PROGRESS
        [row] = await self._fetch(_PROGRESS, LISTED[1].encode(), COUNTED, COUNTED_OF_ALL)
        return Progress(*row)

    async def purge(self, older_than: float = 0.0) -> None:
        """Do nothing: the server's `autovacuum` removes what deletions leave."""

    async def _exists(self) -> bool:
        # Another server may make or drop it at any time.
        return await self._has("search_progress")

    async def _has(self, table: str) -> bool:
        [[has]] = await self._fetch(_HAS, self._sql(f"$schema.{table}"))
        return bool(has)

    async def _fetch(self, sql: str, *given: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await self._run(lambda pool: pool.fetch(self._sql(sql), *given))
        return rows


def _vector(owner: str, words: Iterable[str]) -> str:
    """Return a `tsvector` of words, and the owner. Words have only letters and digits."""
    return " ".join([f"'{_OWNER}{owner}'", *(f"'{word}'" for word in words)])


def _query(owner: str, terms: Sequence[Term]) -> str:
    """Return a `tsquery`."""
    words = [each for term in terms for each in sought_words(term)]
    return " & ".join([f"'{_OWNER}{owner}'", *(f"'{word}'{':*' if prefix else ''}" for word, prefix in words)])
