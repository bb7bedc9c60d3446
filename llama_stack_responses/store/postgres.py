"""Records in a PostgreSQL database, which any number of server processes may share."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from typing import Any, Final

import asyncpg

from ..concurrency.fair_budget import FairBudget
from ..concurrency.loop_local import Closing, LoopLocal
from ..core.errors import ApiError
from .commit_deadline import APPLIED_SECONDS, TOO_LATE, TRIES, CommitDeadline, too_late
from .connection_slots import shared_connections
from .durability import POSTGRES_SETTINGS, losses_of_postgres
from .postgres_errors import TimedOut, Unreachable, errors_as_503
from .postgres_locks import LOCKS_PER_CONNECTION, lock_id, locks
from .postgres_pubsub import NOTIFY, PUBSUB_SILENCE_SECONDS, NotificationSender, PostgresPubSub, channel
from .postgres_search import PostgresSearch
from .records import (
    CLOSED,
    Condition,
    Conflict,
    Delete,
    Empty,
    Ensure,
    Op,
    PubSub,
    Put,
    Record,
    Unanswered,
    VersionIs,
    Write,
    after_prefix,
    woken_by,
    writes_of,
)

SCHEMA: Final = 1
"""Version of the layout below, stored in the table `layout`."""

# Values are already compressed. `commits` makes commits idempotent: a retry after a lost answer finds its id.
_SETUP: Final = """
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
"""
# The function of other versions has other parameters, and stays for their servers.
_IS_SET_UP: Final = """
SELECT to_regprocedure('$schema.commit(uuid, float8, float8, bigint[], boolean[], bytea[], bigint[], int[], '
  'bytea[], bytea[], bytea[], int[], text[], bytea[], bytea[], float8[])') IS NOT NULL
"""
_LAYOUT: Final = "SELECT version FROM $schema.layout"
_GET_MANY: Final = "SELECT key, version, value FROM $schema.records WHERE $live AND key = ANY($2)"
# The length of a value is known without reading the value, so only values of the answer are read.
_GET_UNTIL: Final = """
SELECT key, version, value FROM (
  SELECT key, version, value, number, sum(octet_length(value)) OVER (ORDER BY number) - octet_length(value) AS before
  FROM unnest($2::bytea[]) WITH ORDINALITY AS wanted(key, number) JOIN $schema.records USING (key) WHERE $live
) AS found WHERE before < $3 ORDER BY number
"""
_RANGE: Final = """
SELECT key, version, value FROM $schema.records WHERE $live AND key >= $2 AND key < $3 ORDER BY key LIMIT $4
"""
_RANGE_REVERSE: Final = """
SELECT key, version, value FROM $schema.records WHERE $live AND key >= $2 AND key < $3 ORDER BY key DESC LIMIT $4
"""
_RANGE_UNTIL: Final = """
SELECT key, version, value FROM (
  SELECT key, version, value, sum(octet_length(value)) OVER (ORDER BY key) - octet_length(value) AS before
  FROM (
    SELECT key, version, value FROM $schema.records WHERE $live AND key >= $2 AND key < $3 ORDER BY key LIMIT $4
  ) AS near
) AS found WHERE before < $5 ORDER BY key
"""
_RANGE_UNTIL_REVERSE: Final = _RANGE_UNTIL.replace("ORDER BY key", "ORDER BY key DESC")
_COMMIT: Final = (
    "SELECT told, failed FROM $schema.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"
)
# A commit with this id that is under way fails when it is about to insert its own, or is waited for. The second id is
# there if the commit was not applied by then.
_SETTLE: Final = """
WITH settled AS (INSERT INTO $schema.commits(id) VALUES ($1) ON CONFLICT DO NOTHING RETURNING 1)
INSERT INTO $schema.commits(id) SELECT $2 FROM settled
"""
_IS_KNOWN: Final = "SELECT EXISTS (SELECT FROM $schema.commits WHERE id = $1)"
_LIVE: Final = "(expires_at IS NULL OR expires_at > coalesce($1, extract(epoch FROM clock_timestamp())))"
# The outer condition is for a record that is written again while this waits for its lock.
_SWEEP: Final = """
WITH swept AS (
  DELETE FROM $schema.records WHERE expires_at <= $1 AND key IN (
    SELECT key FROM $schema.records WHERE expires_at <= $1 LIMIT 1000 FOR UPDATE SKIP LOCKED)
  RETURNING 1
), forgotten AS (
  DELETE FROM $schema.commits WHERE made_at < now() - interval '1 minute'
)
SELECT count(*) FROM swept
"""

_ALL: Final = """
SELECT key, value, expires_at FROM $schema.records
WHERE expires_at IS NULL OR expires_at > coalesce($1::float8, extract(epoch FROM clock_timestamp()))
"""
_FETCHED_ROWS: Final = 64
"""Rows of a snapshot that are read at a time."""

_SIZE: Final = "SELECT pg_total_relation_size('$schema.records')"

_EXISTS: Final = "SELECT to_regclass('$schema.records') IS NOT NULL"

_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 0.8, 0.8)
"""Seconds before each retry while the server is unreachable."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that keeps no state between users: no settings, cursors or locks."""

    def get_reset_query(self) -> str:
        """Return nothing: the default would cost each call a second round trip."""
        return ""


class PostgresRecords:
    """Records in PostgreSQL 13 or newer.

    A commit is one call of a function in the database, in one transaction, under advisory locks on the keys and ranges
    that it writes or depends on (`postgres_locks.py`). Conditions on absent keys therefore hold too, no commit has to
    be retried because of a concurrent one, and independent commits share one disk write.

    Args:
        url: `postgresql://USER@HOST:PORT/DATABASE`; with `?sslmode=verify-full`, for example, for TLS.
        password: the user's password, if it is not in the URL.
        schema: the schema that holds the tables; it is created if needed.
        connections: maximum number of connections of this process, without the one of a subscription.
        timeout: maximum seconds for connecting, and for one answer.
        clock: returns seconds since the epoch; None uses the server's clock, which all processes share.
        applied_seconds: a commit is applied within these, or never.
    """

    transactional: Final = True

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        schema: str = "responses",
        connections: int = 16,
        timeout: float = 10.0,
        clock: Callable[[], float] | None = None,
        pubsub_silence: float = PUBSUB_SILENCE_SECONDS,
        applied_seconds: float = APPLIED_SECONDS,
    ) -> None:
        self._pubsub_silence = pubsub_silence
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ValueError(f"the schema's name {schema!r} may have only lowercase letters, digits and _")
        self._url = url
        self._password = password
        self._schema = schema
        self._sql = cache(partial(_sql, schema))
        self._connections = connections
        self._timeout = timeout
        self._clock = clock
        self._id = secrets.token_hex(8)
        self._deadline = CommitDeadline(applied_seconds)
        # The commits of this process hold no more locks than fit in the server's lock table.
        self._locks = FairBudget(connections * LOCKS_PER_CONNECTION)
        self._slots = shared_connections(connections)  # users take turns, which they do not in the pool
        self._sender = NotificationSender(self._notify)
        self._search = PostgresSearch(self._try, self._sql)
        self._local_pool = LoopLocal(self._open)
        self._closes = 0

    @property
    def has_own_clock(self) -> bool:
        """Whether `now` is the clock of the server."""
        return self._clock is None

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        if not keys:
            return {}
        encoded = [key.encode() for key in dict.fromkeys(keys)]
        if max_bytes is None:
            return dict(_records(await self._fetch(_GET_MANY, encoded)))
        return dict(_records(await self._fetch(_GET_UNTIL, encoded, max_bytes)))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        writes = writes_of(ops)
        if writes or conditions:
            held = locks(self._schema, writes, conditions, self._locks.total)
            arguments = (*_locks(held), *_conditions(conditions), *_ops(writes))
            closes = self._closes
            async with self._locks.hold(len(held or ())):
                self._check_open(closes)
                failed = await self._sent(uuid.uuid4(), arguments)
            if failed:
                raise Conflict([conditions[number] for number in failed])
        self._sender.send(woken_by(ops))

    async def _sent(self, commit_id: uuid.UUID, arguments: Sequence[Any]) -> list[int]:
        """Send a commit; return the numbers of the conditions that do not hold."""
        settle = partial(self._settle, commit_id)
        for _ in range(TRIES):
            if self.has_own_clock and not self._deadline.known:
                await self.now()
            deadline = self._deadline.next() if self.has_own_clock else None
            try:
                [(now, failed)] = await self._fetch(_COMMIT, deadline, *arguments, before=(commit_id,))
            except Unreachable as error:
                if error.sent:
                    raise Unanswered(error.message, settle) from error
                raise
            except TimedOut as error:
                raise Unanswered(error.message, settle) from error
            self._deadline.told(now)
            if failed != [TOO_LATE]:
                return failed or []
        raise too_late()

    async def _settle(self, commit_id: uuid.UUID) -> bool:
        mark = uuid.uuid5(commit_id, "settled")
        await self._try(lambda pool: pool.fetch(self._sql(_SETTLE), commit_id, mark))
        # In a statement of its own, which sees what the first has waited for.
        [(unapplied,)] = await self._try(lambda pool: pool.fetch(self._sql(_IS_KNOWN), mark))
        return not unapplied

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        between = (start.encode(), end.encode(), limit)
        if max_bytes is None:
            return _records(await self._fetch(_RANGE_REVERSE if reverse else _RANGE, *between))
        return _records(await self._fetch(_RANGE_UNTIL_REVERSE if reverse else _RANGE_UNTIL, *between, max_bytes))

    def pubsub(self) -> AbstractAsyncContextManager[PubSub]:
        return self._open_pubsub()

    @asynccontextmanager
    async def _open_pubsub(self) -> AsyncIterator[PubSub]:
        with errors_as_503():
            connection = await asyncpg.connect(self._url, **self._settings())
        pubsub = PostgresPubSub(connection, self._schema, self._id, self._notify, self._timeout, self._pubsub_silence)
        try:
            await pubsub.open()
            yield pubsub
        finally:
            await pubsub.close()

    async def _notify(self, names: Sequence[str]) -> None:
        channels = [channel(self._schema, name) for name in names]
        await self._try(lambda pool: pool.fetch(NOTIFY, channels, self._id))

    async def now(self) -> float:
        if self._clock:
            return self._clock()
        rows = await self._try(lambda pool: pool.fetch("SELECT extract(epoch FROM clock_timestamp())::float8"))
        now: float = rows[0][0]
        self._deadline.told(now)
        return now

    def search_index(self) -> PostgresSearch:
        return self._search

    async def sweep(self, now: float) -> int:
        rows = await self._try(lambda pool: pool.fetch(self._sql(_SWEEP), now))
        swept: int = rows[0][0]
        return swept

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        with errors_as_503():
            await self._pool()  # creates the tables of a new store
            connection = await asyncpg.connect(self._url, **self._settings())
            try:
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    now = self._clock() if self._clock else None
                    cursor = await connection.cursor(self._sql(_ALL), now)
                    while rows := await cursor.fetch(_FETCHED_ROWS):
                        yield [Put(key.decode(), value, expires_at) for key, value, expires_at in rows]
            finally:
                connection.terminate()

    async def size(self) -> int | None:
        rows = await self._try(lambda pool: pool.fetch(self._sql(_SIZE)))
        size: int = rows[0][0]
        return size

    async def losses(self) -> dict[str, str]:
        [settings] = await self._try(lambda pool: pool.fetch(POSTGRES_SETTINGS))
        return losses_of_postgres(dict(settings))

    async def exists(self) -> bool:
        with errors_as_503():
            connection = await asyncpg.connect(self._url, **self._settings())
            try:
                return bool(await connection.fetchval(self._sql(_EXISTS)))
            finally:
                connection.terminate()

    async def close(self) -> None:
        self._closes += 1
        await self._sender.close()
        await self._local_pool.close(self._close_pool)

    async def _close_pool(self, pool: asyncpg.Pool) -> None:
        await pool.close()
        # Commits that ended meanwhile have notifications to send, which must not open another pool.
        await self._sender.close()

    async def _fetch(self, sql: str, *arguments: Any, before: tuple[Any, ...] = ()) -> list[Any]:
        now = self._clock() if self._clock else None
        return await self._try(lambda pool: pool.fetch(self._sql(sql), *before, now, *arguments))

    async def _try(self, call: Callable[[asyncpg.Pool], Awaitable[list[Any]]]) -> list[Any]:
        sent, closes = False, self._closes
        for pause in (*_PAUSES, None):
            try:
                async with self._slots.hold(1):
                    self._check_open(closes)
                    with errors_as_503():
                        return await call(await self._pool())
            except Unreachable as error:
                sent |= error.sent
                if pause is None:
                    raise Unreachable(sent=sent) from error
            except ApiError as error:
                # This answer is to the last try only: an earlier one may have been applied.
                if sent:
                    raise Unreachable(sent=True) from error
                raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
        raise AssertionError("the last attempt returns or raises")

    def _check_open(self, closes: int) -> None:
        """Raise a 503 if `close` was called since `closes` was read: an earlier call does not open the store again."""
        if self._closes != closes:
            raise ApiError(503, CLOSED, retry_after=1)

    async def _pool(self) -> asyncpg.Pool:
        try:
            return await self._local_pool.get()
        except Closing as error:
            raise ApiError(503, CLOSED, retry_after=1) from error

    async def _open(self) -> asyncpg.Pool:
        pool = await asyncpg.create_pool(
            self._url,
            **self._settings(),
            min_size=0,
            max_size=self._connections,
            connection_class=_Connection,
        )
        try:
            if not await pool.fetchval(self._sql(_IS_SET_UP)):
                await pool.execute(self._sql(_SETUP))
            layout = await pool.fetchval(self._sql(_LAYOUT))
            if layout > SCHEMA:
                raise ApiError(
                    503,
                    f"The response store was written by a newer version of this software (schema {layout}; "
                    f"this one reads up to {SCHEMA}).",
                )
        except BaseException:
            pool.terminate()
            raise
        return pool

    def _settings(self) -> dict[str, Any]:
        """Return the settings of each connection."""
        return {
            "password": self._password,
            "timeout": self._timeout,
            "command_timeout": self._timeout,
            "server_settings": {
                "application_name": "llama-stack-responses",
                "jit": "off",
                # A commit has to see the commits that were applied while it waited for its locks.
                "default_transaction_isolation": "read committed",
            },
        }


def _sql(schema: str, sql: str) -> str:
    """Return a statement with its placeholders replaced for `schema`."""
    names = {"$schema": schema, "$lock": str(lock_id(schema, "")), "$live": _LIVE}
    return re.sub(r"\$(schema|lock|live)\b", lambda name: names[name[0]], sql)


def _records(rows: Sequence[Any]) -> list[tuple[str, Record]]:
    return [(key.decode(), Record(value, version)) for key, version, value in rows]


def _locks(held: Sequence[tuple[int, bool]] | None) -> tuple[list[Any] | None, ...]:
    return _columns(held, 2) if held is not None else (None, None)


def _conditions(conditions: Sequence[Condition]) -> tuple[list[Any], ...]:
    versions = [(c.key.encode(), c.version, n) for n, c in enumerate(conditions) if isinstance(c, VersionIs)]
    empties = [
        (c.prefix.encode(), after_prefix(c.prefix).encode(), c.but.encode() if c.but else None, n)
        for n, c in enumerate(conditions)
        if isinstance(c, Empty)
    ]
    return *_columns(versions, 3), *_columns(empties, 4)


def _ops(ops: Sequence[Write]) -> tuple[list[Any], ...]:
    return _columns([_row(op) for op in ops], 4)


def _row(op: Write) -> tuple[str, bytes, bytes, float | None]:
    match op:
        case Put(key, value, expires_at):
            return "put", key.encode(), value, expires_at
        case Ensure(key, value, expires_at):
            return "ensure", key.encode(), value, expires_at
        case Delete(key):
            return "delete", key.encode(), b"", None


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> tuple[list[Any], ...]:
    return tuple([row[column] for row in rows] for column in range(width))
