"""A store of layout 1 on PostgreSQL, and what its servers send: the statements of version 0.1.0, as they were."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from llama_stack_responses.store.postgres import _columns, _conditions, _ops
from llama_stack_responses.store.postgres_locks import lock_id, locks
from llama_stack_responses.store.records import Condition, Conflict, Op, writes_of

SETUP: Final = """
SELECT pg_advisory_xact_lock($lock);
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE TABLE IF NOT EXISTS $schema.layout(version integer NOT NULL);
INSERT INTO $schema.layout SELECT 1 WHERE NOT EXISTS (SELECT FROM $schema.layout);
CREATE TABLE IF NOT EXISTS $schema.records(
  key bytea PRIMARY KEY, version bigint NOT NULL, expires_at float8, value bytea NOT NULL);
ALTER TABLE $schema.records ALTER value SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS records_expiry ON $schema.records(expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS $schema.commits(id uuid PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX IF NOT EXISTS commits_made_at ON $schema.commits(made_at);
CREATE OR REPLACE FUNCTION $schema.commit(
  commit_id uuid, now_at float8, deadline float8, locks bigint[], exclusive boolean[],
  keys bytea[], versions bigint[], key_numbers int[],
  starts bytea[], ends bytea[], buts bytea[], start_numbers int[],
  kinds text[], op_keys bytea[], op_values bytea[], op_expiries float8[],
  OUT told float8, OUT failed int[]
) LANGUAGE plpgsql AS $body$
DECLARE
  op record;
BEGIN
  -- A commit that needs too many locks takes the one that all others share.
  IF locks IS NULL THEN
    PERFORM pg_advisory_xact_lock($lock);
  ELSE
    PERFORM pg_advisory_xact_lock_shared($lock);
    FOR i IN 1 .. cardinality(locks) LOOP
      IF exclusive[i] THEN
        PERFORM pg_advisory_xact_lock(locks[i]);
      ELSE
        PERFORM pg_advisory_xact_lock_shared(locks[i]);
      END IF;
    END LOOP;
  END IF;
  now_at := coalesce(now_at, extract(epoch FROM clock_timestamp()));
  told := now_at;
  IF EXISTS (SELECT FROM $schema.commits WHERE id = commit_id) THEN
    RETURN;
  END IF;
  IF now_at > deadline THEN
    failed := '{-1}';
    RETURN;
  END IF;
  SELECT array_agg(number ORDER BY number) INTO failed FROM (
    SELECT number
    FROM unnest(keys, versions, key_numbers) AS condition(key, version, number)
    LEFT JOIN $schema.records AS r ON r.key = condition.key AND (r.expires_at IS NULL OR r.expires_at > now_at)
    WHERE r.version IS DISTINCT FROM condition.version
    UNION ALL
    SELECT number
    FROM unnest(starts, ends, buts, start_numbers) AS condition(start, stop, but, number)
    WHERE EXISTS (
      SELECT FROM $schema.records AS r
      WHERE r.key >= start AND r.key < stop AND r.key IS DISTINCT FROM but
      AND (r.expires_at IS NULL OR r.expires_at > now_at))
  ) AS broken;
  IF failed IS NOT NULL THEN
    RETURN;
  END IF;
  FOR op IN
    SELECT * FROM unnest(kinds, op_keys, op_values, op_expiries) WITH ORDINALITY
    AS given(kind, key, value, expires_at, number) ORDER BY number
  LOOP
    IF op.kind = 'delete' THEN
      DELETE FROM $schema.records WHERE key = op.key;
    ELSIF op.kind = 'put' THEN
      INSERT INTO $schema.records AS r VALUES (op.key, 1, op.expires_at, op.value)
      ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at,
      version = CASE WHEN r.expires_at <= now_at THEN 1 ELSE r.version + 1 END;
    ELSE
      INSERT INTO $schema.records AS r VALUES (op.key, 1, op.expires_at, op.value)
      ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at, version = 1
      WHERE r.expires_at <= now_at;
    END IF;
  END LOOP;
  INSERT INTO $schema.commits(id) VALUES (commit_id);
END
$body$;
CREATE OR REPLACE FUNCTION $schema.commit(
  commit_id uuid, now_at float8, locks bigint[], exclusive boolean[],
  keys bytea[], versions bigint[], key_numbers int[],
  starts bytea[], ends bytea[], buts bytea[], start_numbers int[],
  kinds text[], op_keys bytea[], op_values bytea[], op_expiries float8[]
) RETURNS int[] LANGUAGE plpgsql AS $body$
DECLARE
  failed int[];
  op record;
BEGIN
  -- A commit that needs too many locks takes the one that all others share.
  IF locks IS NULL THEN
    PERFORM pg_advisory_xact_lock($lock);
  ELSE
    PERFORM pg_advisory_xact_lock_shared($lock);
    FOR i IN 1 .. cardinality(locks) LOOP
      IF exclusive[i] THEN
        PERFORM pg_advisory_xact_lock(locks[i]);
      ELSE
        PERFORM pg_advisory_xact_lock_shared(locks[i]);
      END IF;
    END LOOP;
  END IF;
  IF EXISTS (SELECT FROM $schema.commits WHERE id = commit_id) THEN
    RETURN '{}';
  END IF;
  now_at := coalesce(now_at, extract(epoch FROM clock_timestamp()));
  SELECT array_agg(number ORDER BY number) INTO failed FROM (
    SELECT number
    FROM unnest(keys, versions, key_numbers) AS condition(key, version, number)
    LEFT JOIN $schema.records AS r ON r.key = condition.key AND (r.expires_at IS NULL OR r.expires_at > now_at)
    WHERE r.version IS DISTINCT FROM condition.version
    UNION ALL
    SELECT number
    FROM unnest(starts, ends, buts, start_numbers) AS condition(start, stop, but, number)
    WHERE EXISTS (
      SELECT FROM $schema.records AS r
      WHERE r.key >= start AND r.key < stop AND r.key IS DISTINCT FROM but
      AND (r.expires_at IS NULL OR r.expires_at > now_at))
  ) AS broken;
  IF failed IS NOT NULL THEN
    RETURN failed;
  END IF;
  FOR op IN
    SELECT * FROM unnest(kinds, op_keys, op_values, op_expiries) WITH ORDINALITY
    AS given(kind, key, value, expires_at, number) ORDER BY number
  LOOP
    IF op.kind = 'delete' THEN
      DELETE FROM $schema.records WHERE key = op.key;
    ELSIF op.kind = 'put' THEN
      INSERT INTO $schema.records AS r VALUES (op.key, 1, op.expires_at, op.value)
      ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at,
      version = CASE WHEN r.expires_at <= now_at THEN 1 ELSE r.version + 1 END;
    ELSE
      INSERT INTO $schema.records AS r VALUES (op.key, 1, op.expires_at, op.value)
      ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at, version = 1
      WHERE r.expires_at <= now_at;
    END IF;
  END LOOP;
  INSERT INTO $schema.commits(id) VALUES (commit_id);
  RETURN '{}';
END
$body$;
"""
"""The tables, and the functions of the last state and of an earlier one."""
LIVE: Final = "(expires_at IS NULL OR expires_at > coalesce($1, extract(epoch FROM clock_timestamp())))"
GET_MANY: Final = "SELECT key, version, value FROM $schema.records WHERE $live AND key = ANY($2)"
RANGE: Final = """
SELECT key, version, value FROM $schema.records WHERE $live AND key >= $2 AND key < $3 ORDER BY key LIMIT $4
"""
GET_UNTIL: Final = """
SELECT key, version, value FROM (
  SELECT key, version, value, number, sum(octet_length(value)) OVER (ORDER BY number) - octet_length(value) AS before
  FROM unnest($2::bytea[]) WITH ORDINALITY AS wanted(key, number) JOIN $schema.records USING (key) WHERE $live
) AS found WHERE before < $3 ORDER BY number
"""
SETTLE: Final = """
WITH settled AS (INSERT INTO $schema.commits(id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING 1)
INSERT INTO $schema.commits(id) SELECT $2 FROM settled
"""
IS_KNOWN: Final = "SELECT EXISTS (SELECT FROM $schema.commits WHERE id = $1)"
SWEEP: Final = """
WITH swept AS (
  DELETE FROM $schema.records WHERE expires_at <= $1 AND key IN (
    SELECT key FROM $schema.records WHERE expires_at <= $1 LIMIT 1000 FOR UPDATE SKIP LOCKED)
  RETURNING 1
), forgotten AS (
  DELETE FROM $schema.commits WHERE made_at < now() - interval '1 minute'
)
SELECT count(*) FROM swept
"""
ALL: Final = """
SELECT key, value, expires_at FROM $schema.records
WHERE expires_at IS NULL OR expires_at > coalesce($1::float8, extract(epoch FROM clock_timestamp()))
"""
COMMIT: Final = (
    "SELECT told, failed FROM $schema.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
)
EARLIER_COMMIT: Final = "SELECT $schema.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"


@dataclass(frozen=True)
class FormerServer:
    """What a server of version 0.1.0 sends.

    Args:
        connection: its connection.
        schema: the schema of the store.
        is_early: whether it commits as the earlier state did.
    """

    connection: asyncpg.Connection
    schema: str
    is_early: bool = False

    async def make(self) -> None:
        """Make a store."""
        await self.connection.execute(self._sql(SETUP))

    async def get(self, *keys: str, max_bytes: int | None = None) -> dict[str, tuple[bytes, int]]:
        """Return values and versions."""
        asked = (None, [key.encode() for key in keys])
        rows = await (self._fetch(GET_MANY, *asked) if max_bytes is None else self._fetch(GET_UNTIL, *asked, max_bytes))
        return {key.decode(): (value, version) for key, version, value in rows}

    async def keys(self, start: str, end: str, limit: int = 10_000) -> list[str]:
        """Return the keys of a range."""
        return [key.decode() for key, *_ in await self._fetch(RANGE, None, start.encode(), end.encode(), limit)]

    async def all_keys(self) -> list[str]:
        """Return the keys of a snapshot."""
        return sorted(key.decode() for key, *_ in await self._fetch(ALL, None))

    async def commit(
        self,
        ops: Sequence[Op],
        conditions: Sequence[Condition] = (),
        *,
        commit_id: uuid.UUID | None = None,
        deadline: float | None = None,
    ) -> None:
        """Commit once; raise `Conflict` as the records do, and `TimeoutError` for a commit that comes too late."""
        writes, name = writes_of(ops), commit_id or uuid.uuid4()
        held = locks(self.schema, writes, conditions, 1024)
        taken = _columns(held, 2) if held is not None else (None, None)
        arguments = (*taken, *_conditions(conditions), *_ops(writes))
        if self.is_early:
            [(failed,)] = await self._fetch(EARLIER_COMMIT, name, None, *arguments)
        else:
            [(_, failed)] = await self._fetch(COMMIT, name, None, deadline, *arguments)
        if failed == [-1]:
            raise TimeoutError
        if failed:
            raise Conflict([conditions[number] for number in failed])

    async def settle(self, commit_id: uuid.UUID) -> bool:
        """Return whether a commit was applied, which it never will be afterwards."""
        mark = uuid.uuid5(commit_id, "settled")
        await self._fetch(SETTLE, commit_id, mark)
        [(unapplied,)] = await self._fetch(IS_KNOWN, mark)
        return not unapplied

    async def sweep(self, now: float) -> int:
        """Delete what has expired."""
        [(swept,)] = await self._fetch(SWEEP, now)
        return int(swept)

    async def may_start(self) -> bool:
        """Return whether a server that starts finds its function and a layout that it knows."""
        found = f"to_regprocedure('{self.schema}.commit(uuid, float8, {'float8, ' * (not self.is_early)}bigint[], "
        found += "boolean[], bytea[], bigint[], int[], bytea[], bytea[], bytea[], int[], text[], bytea[], bytea[], float8[])')"
        return bool(
            await self.connection.fetchval(f"SELECT {found} IS NOT NULL AND version <= 1 FROM {self.schema}.layout")
        )

    async def _fetch(self, sql: str, *arguments: Any) -> list[Any]:
        rows: list[Any] = await self.connection.fetch(self._sql(sql), *arguments)
        return rows

    def _sql(self, sql: str) -> str:
        names = {"$schema": self.schema, "$lock": str(lock_id(self.schema, "")), "$live": LIVE}
        return re.sub(r"\$(schema|lock|live)\b", lambda name: names[name[0]], sql)
