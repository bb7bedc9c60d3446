"""The index of words of a PostgreSQL store, with `tsvector`.

    search_documents    the rows that are indexed: their words and their texts
    search_waiting      the rows that are noted: they were written and are not indexed yet
    search_state        `filled`: up to which key older rows are noted

Triggers note and delete with the row itself, whichever program writes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import asyncpg

from ..concurrency.offloading import in_thread
from .postgres_errors import TimedOut
from .records import Record
from .search_index import (
    CLAIM_SECONDS,
    FIND_SECONDS,
    LISTED,
    Document,
    Noted,
    Term,
    owner_of,
    took_too_long,
    words_of,
)

_CREATE: Final = """
SELECT pg_advisory_xact_lock($lock);
CREATE TABLE IF NOT EXISTS $schema.search_documents(key bytea PRIMARY KEY, words tsvector NOT NULL, text text NOT NULL);
CREATE INDEX IF NOT EXISTS search_words ON $schema.search_documents USING gin(words);
CREATE TABLE IF NOT EXISTS $schema.search_waiting(
  id bigserial PRIMARY KEY, key bytea UNIQUE NOT NULL, claimed_until float8 NOT NULL DEFAULT 0);
CREATE OR REPLACE FUNCTION $schema.search_note() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM $schema.search_waiting WHERE key = OLD.key;
    DELETE FROM $schema.search_documents WHERE key = OLD.key;
  ELSE
    INSERT INTO $schema.search_waiting(key) VALUES (NEW.key)
    ON CONFLICT (key) DO UPDATE SET id = excluded.id, claimed_until = 0;
  END IF;
  RETURN NULL;
END
$body$;
DROP TRIGGER IF EXISTS search_written ON $schema.records;
CREATE TRIGGER search_written AFTER INSERT OR UPDATE ON $schema.records FOR EACH ROW
  WHEN (NEW.key >= 'l/' AND NEW.key < 'l0') EXECUTE FUNCTION $schema.search_note();
DROP TRIGGER IF EXISTS search_deleted ON $schema.records;
CREATE TRIGGER search_deleted AFTER DELETE ON $schema.records FOR EACH ROW
  WHEN (OLD.key >= 'l/' AND OLD.key < 'l0') EXECUTE FUNCTION $schema.search_note();
CREATE TABLE IF NOT EXISTS $schema.search_state(filled bytea NOT NULL);
INSERT INTO $schema.search_state SELECT 'l/' WHERE NOT EXISTS (SELECT FROM $schema.search_state);
"""
_DROP: Final = """
DROP TRIGGER IF EXISTS search_written ON $schema.records;
DROP TRIGGER IF EXISTS search_deleted ON $schema.records;
DROP FUNCTION IF EXISTS $schema.search_note();
DROP TABLE IF EXISTS $schema.search_documents, $schema.search_waiting, $schema.search_state;
"""
_EXISTS: Final = "SELECT to_regclass('$schema.search_state') IS NOT NULL"
_FILL: Final = """
WITH older AS (
  SELECT key FROM $schema.records WHERE key > (SELECT filled FROM $schema.search_state) AND key < $1
  ORDER BY key LIMIT $2
), noted AS (
  INSERT INTO $schema.search_waiting(key) SELECT key FROM older ON CONFLICT (key) DO NOTHING
), moved AS (
  UPDATE $schema.search_state SET filled = coalesce((SELECT key FROM older ORDER BY key DESC LIMIT 1), $1)
)
SELECT count(*) FROM older
"""
_CLAIM: Final = """
WITH free AS (
  SELECT id FROM $schema.search_waiting WHERE claimed_until <= extract(epoch FROM clock_timestamp())
  ORDER BY id DESC LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE $schema.search_waiting AS waiting SET claimed_until = extract(epoch FROM clock_timestamp()) + $2
FROM free WHERE waiting.id = free.id RETURNING waiting.id, waiting.key
"""
# A row that a commit is changing now is skipped: it is noted again. So this waits for no commit that waits for it.
_PUT: Final = """
WITH given AS (
  SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::text[]) AS given(id, key, words, text)
), current AS (
  SELECT waiting.id FROM $schema.search_waiting AS waiting JOIN given USING (id, key) FOR UPDATE OF waiting SKIP LOCKED
), done AS (
  DELETE FROM $schema.search_waiting WHERE id IN (SELECT id FROM current) RETURNING id
)
INSERT INTO $schema.search_documents(key, words, text)
SELECT key, words::tsvector, text FROM given JOIN done USING (id)
ON CONFLICT (key) DO UPDATE SET words = excluded.words, text = excluded.text
"""
# The index of words finds all that match. A walk through the keys would read the words of each row on its way.
_BY_WORDS: Final = "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off"
_FIND: Final = """
SELECT key FROM $schema.search_documents WHERE words @@ $1::tsquery AND key >= $2 AND key < $3
ORDER BY key $order LIMIT $4
"""
_NOTED: Final = "SELECT key FROM $schema.search_waiting WHERE key >= $1 AND key < $2 ORDER BY key $order LIMIT $3"
_ROWS: Final = """
SELECT key, version, value FROM $schema.records
WHERE key = ANY($1) AND (expires_at IS NULL OR expires_at > extract(epoch FROM clock_timestamp())) ORDER BY key $order
"""
_TEXTS: Final = "SELECT key, text FROM $schema.search_documents WHERE key = ANY($1)"
_WAITING: Final = "SELECT count(*) FROM (SELECT FROM $schema.search_waiting LIMIT 10000) AS noted"

_NOTED_ROWS: Final = 5_000
"""Older rows that are noted in one transaction."""
_POSITIONS: Final = 16_383
"""The greatest position of a word that PostgreSQL knows."""
_OWNER: Final = "owner/"
"""The beginning of the word that names the owner; no word of a text has a slash."""


class PostgresSearch:
    """The index of a store's schema, as a `SearchIndex`.

    Args:
        run: runs a call with the pool, as `PostgresRecords` does.
        sql: fills the name of the schema into a statement.
    """

    def __init__(
        self, run: Callable[[Callable[[asyncpg.Pool], Awaitable[Any]]], Awaitable[Any]], sql: Callable[[str], str]
    ) -> None:
        self._run, self._sql = run, sql
        self._made = False

    async def prepare(self) -> bool:
        if not await self._exists():
            await self._run(lambda pool: pool.execute(self._sql(_CREATE)))
        [[noted]] = await self._fetch(_FILL, LISTED[1].encode(), _NOTED_ROWS)
        return bool(noted == 0)

    async def drop(self) -> None:
        if await self._exists():
            self._made = False
            await self._run(lambda pool: pool.execute(self._sql(_DROP)))

    async def claim(self, limit: int) -> list[Noted]:
        if not await self._exists():
            return []
        rows = await self._fetch(_CLAIM, limit, CLAIM_SECONDS)
        return [Noted(number, key.decode()) for number, key in sorted(rows, reverse=True)]

    async def put(self, documents: Sequence[Document]) -> None:
        vectors = await in_thread(lambda: [_vector(owner_of(each.noted.key), each.text) for each in documents])
        numbers = [each.noted.number for each in documents]
        keys = [each.noted.key.encode() for each in documents]
        await self._fetch(_PUT, numbers, keys, vectors, [each.text.replace("\0", "") for each in documents])

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

    async def texts(self, keys: Sequence[str]) -> dict[str, str]:
        if not await self._exists():
            return {}
        rows = await self._fetch(_TEXTS, [key.encode() for key in keys])
        return {key.decode(): text for key, text in rows}

    async def waiting(self) -> int:
        if not await self._exists():
            return 0
        [[waiting]] = await self._fetch(_WAITING)
        return int(waiting)

    async def purge(self, older_than: float = 0.0) -> None:
        """Do nothing: the server's `autovacuum` removes what deletions leave."""

    async def _exists(self) -> bool:
        # Another server may make the index later, but only one with another setting removes it.
        if not self._made:
            [[self._made]] = await self._fetch(_EXISTS)
        return self._made

    async def _fetch(self, sql: str, *given: Any) -> Sequence[Any]:
        rows: Sequence[Any] = await self._run(lambda pool: pool.fetch(self._sql(sql), *given))
        return rows


def _vector(owner: str, text: str) -> str:
    """Return the words of a text with their positions, and the owner, as a `tsvector`."""
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(islice(words_of(text), _POSITIONS), 1):
        positions.setdefault(word, []).append(position)
    return f"'{_OWNER}{owner}' {_lexemes(positions)}"


def _lexemes(positions: Mapping[str, Sequence[int]]) -> str:
    # PostgreSQL keeps up to 256 positions of a word.
    return " ".join(f"'{word}':{','.join(map(str, places[:256]))}" for word, places in positions.items())


def _query(owner: str, terms: Sequence[Term]) -> str:
    """Return a `tsquery`. Words have only letters and digits."""
    return " & ".join([f"'{_OWNER}{owner}'", *map(_phrase, terms)])


def _phrase(term: Term) -> str:
    words = [f"'{word}'" for word in term.words]
    return f"({' <-> '.join([*words[:-1], words[-1] + (':*' if term.prefix else '')])})"
