"""The tables of a PostgreSQL store, and the function that commits.

partition_rows     the records, by partition and key
partition_commits  the ids of commits that were applied: a retry after a lost answer finds its own
layout             one row: the layout that a server has to know at least, and the number of partitions
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import asyncpg

from ..core.errors import ApiError

LAYOUT: Final = 2
"""The layout of a new store, and the highest one that this version knows."""

WAIT_FOR_COMMITS: Final = "SELECT pg_advisory_xact_lock($lock)"
"""Waits until no commit of the first partition is under way, and lets none begin in this transaction."""

PARAMETERS: Final = {
    "keys": "bytea[]",
    "versions": "bigint[]",
    "key_numbers": "int[]",
    "starts": "bytea[]",
    "ends": "bytea[]",
    "buts": "bytea[]",
    "start_numbers": "int[]",
    "kinds": "text[]",
    "op_keys": "bytea[]",
    "op_values": "bytea[]",
    "op_expiries": "float8[]",
}
"""The conditions and the ops of a commit, in the functions of both layouts."""

_GIVEN: Final = ", ".join(f"{name} {kind}" for name, kind in PARAMETERS.items())
_SIGNATURE: Final = f"smallint, uuid, float8, float8, bigint[], boolean[], {', '.join(PARAMETERS.values())}"

# Values are already compressed. The wide columns come first, so that nothing is lost to their alignment.
_TABLES: Final = """
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE TABLE IF NOT EXISTS $schema.partition_rows(
  version bigint NOT NULL, expires_at float8, partition smallint NOT NULL, key bytea NOT NULL, value bytea NOT NULL,
  PRIMARY KEY (partition, key));
ALTER TABLE $schema.partition_rows ALTER value SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS partition_rows_expiry ON $schema.partition_rows(partition, expires_at)
  WHERE expires_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS $schema.partition_commits(
  id uuid NOT NULL, made_at timestamptz NOT NULL DEFAULT now(), partition smallint NOT NULL,
  PRIMARY KEY (partition, id));
CREATE INDEX IF NOT EXISTS partition_commits_made_at ON $schema.partition_commits(partition, made_at);
CREATE TABLE IF NOT EXISTS $schema.layout(version integer NOT NULL, partitions integer NOT NULL);
INSERT INTO $schema.layout(version, partitions) SELECT 2, $partitions
  WHERE NOT EXISTS (SELECT FROM $schema.layout);
"""
FUNCTION: Final = """
CREATE OR REPLACE FUNCTION $schema.commit(
  part smallint, commit_id uuid, now_at float8, deadline float8, locks bigint[], exclusive boolean[], $given,
  OUT told float8, OUT failed int[]
) LANGUAGE plpgsql AS $body$
DECLARE
  op record;
BEGIN
  FOR i IN 1 .. cardinality(locks) LOOP
    IF exclusive[i] THEN
      PERFORM pg_advisory_xact_lock(locks[i]);
    ELSE
      PERFORM pg_advisory_xact_lock_shared(locks[i]);
    END IF;
  END LOOP;
  now_at := coalesce(now_at, extract(epoch FROM clock_timestamp()));
  told := now_at;
  IF EXISTS (SELECT FROM $schema.partition_commits AS c WHERE c.partition = part AND c.id = commit_id) THEN
    RETURN;
  END IF;
  IF now_at > deadline THEN
    failed := '{-1}';
    RETURN;
  END IF;
  -- Joins could read the whole partition. These subqueries read one row for each condition.
  SELECT array_agg(number ORDER BY number) INTO failed FROM (
    SELECT number
    FROM unnest(keys, versions, key_numbers) AS condition(key, version, number)
    WHERE condition.version IS DISTINCT FROM (
      SELECT r.version FROM $schema.partition_rows AS r
      WHERE r.partition = part AND r.key = condition.key AND (r.expires_at IS NULL OR r.expires_at > now_at))
    UNION ALL
    SELECT number
    FROM unnest(starts, ends, buts, start_numbers) AS condition(start, stop, but, number)
    WHERE (
      SELECT r.version FROM $schema.partition_rows AS r
      WHERE r.partition = part AND r.key >= start AND r.key < stop AND r.key IS DISTINCT FROM but
      AND (r.expires_at IS NULL OR r.expires_at > now_at) LIMIT 1) IS NOT NULL
  ) AS broken;
  IF failed IS NOT NULL THEN
    RETURN;
  END IF;
  FOR op IN
    SELECT * FROM unnest(kinds, op_keys, op_values, op_expiries) WITH ORDINALITY
    AS given(kind, key, value, expires_at, number) ORDER BY number
  LOOP
    IF op.kind = 'delete' THEN
      DELETE FROM $schema.partition_rows AS r WHERE r.partition = part AND r.key = op.key;
    ELSIF op.kind = 'put' THEN
      INSERT INTO $schema.partition_rows AS r(partition, key, version, expires_at, value)
      VALUES (part, op.key, 1, op.expires_at, op.value)
      ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at,
      version = CASE WHEN r.expires_at <= now_at THEN 1 ELSE r.version + 1 END;
    ELSE
      INSERT INTO $schema.partition_rows AS r(partition, key, version, expires_at, value)
      VALUES (part, op.key, 1, op.expires_at, op.value)
      ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at, version = 1
      WHERE r.expires_at <= now_at;
    END IF;
  END LOOP;
  INSERT INTO $schema.partition_commits(partition, id) VALUES (part, commit_id);
END
$body$;
""".replace("$given", _GIVEN)
"""Replaced by a newer version with the same parameters; one with others leaves it to the servers that call it."""
TABLES: Final = f"{_TABLES}{FUNCTION}"
"""Makes what is missing of a store; `$partitions` is the number of its partitions."""

_STATE: Final = """
SELECT to_regclass('$schema.layout') IS NOT NULL,
  to_regclass('$schema.partition_rows') IS NOT NULL,
  to_regclass('$schema.records') IS NOT NULL,
  to_regprocedure('$schema.commit($signature)') IS NOT NULL,
  EXISTS (
    SELECT FROM pg_constraint WHERE conname = 'records_pkey' AND conrelid = to_regclass('$schema.partition_rows'))
""".replace("$signature", _SIGNATURE)
_LAYOUT: Final = "SELECT to_jsonb(layout) FROM $schema.layout AS layout"
"""That of layout 1 has no number of partitions."""


@dataclass(frozen=True)
class State:
    """What a schema has."""

    has_layout: bool
    has_rows: bool
    has_records: bool
    has_function: bool
    has_former_keys: bool

    @property
    def is_whole(self) -> bool:
        """Whether a store of this layout is there."""
        return self.has_rows and self.has_function

    @property
    def is_former(self) -> bool:
        """Whether a store of layout 1 is there, whose table `records` became a view."""
        return self.has_records and not self.has_rows


async def state_of(connection: asyncpg.Connection | asyncpg.Pool, sql: Callable[[str], str], partitions: int) -> State:
    """Return what a schema has.

    Args:
        sql: fills in the name of the schema.
        partitions: the number of partitions of the settings.

    Raises:
        ApiError: 503, a newer version has written the store, or it has another number of partitions.
    """
    state = State(*await connection.fetchrow(sql(_STATE)))
    row = await connection.fetchval(sql(_LAYOUT)) if state.has_layout else None
    if row is None:
        return state
    layout = json.loads(row)
    if layout["version"] > LAYOUT:
        raise ApiError(
            503,
            f"The response store was written by a newer version of this software (schema {layout['version']}; "
            f"this one reads up to {LAYOUT}).",
        )
    if (made := layout.get("partitions", 1)) != partitions:
        raise ApiError(
            503,
            f"The response store was made with {made} partitions, and its settings have {partitions}: set 'partitions' "
            f"of the store to {made}, or another 'schema_name'.",
        )
    return state
