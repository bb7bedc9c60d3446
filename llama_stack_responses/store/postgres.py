"""Records in the partitions of a PostgreSQL database, which any number of server processes may share.

Every statement names the partition: where the tables are distributed by it, each concerns one part of them.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

from .commit_deadline import APPLIED_SECONDS, TOO_LATE, TRIES, too_late
from .durability import POSTGRES_SETTINGS, losses_of_postgres
from .postgres_connections import PostgresConnections
from .postgres_errors import TimedOut, Unreachable, errors_as_503
from .postgres_locks import lock_id, locks
from .postgres_pubsub import PUBSUB_SILENCE_SECONDS
from .postgres_search import PostgresSearch
from .records import (
    Condition,
    Conflict,
    Delete,
    Empty,
    Ensure,
    Occupancy,
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

# The first parameters are the partition and the time.
_GET_MANY: Final = "SELECT key, version, value FROM $schema.partition_rows WHERE $live AND key = ANY($3)"
# The length of a value is known without reading the value, so only values of the answer are read. A join could read the
# whole partition, this reads one row for each key.
_GET_UNTIL: Final = """
SELECT key, version, value FROM (
  SELECT key, version, value, number, sum(octet_length(value)) OVER (ORDER BY number) - octet_length(value) AS before
  FROM unnest($3::bytea[]) WITH ORDINALITY AS wanted(name, number)
  CROSS JOIN LATERAL (SELECT key, version, value FROM $schema.partition_rows WHERE $live AND key = name LIMIT 1) AS row
) AS found WHERE before < $4 ORDER BY number
"""
_RANGE: Final = """
SELECT key, version, value FROM $schema.partition_rows WHERE $live AND key >= $3 AND key < $4 ORDER BY key LIMIT $5
"""
_RANGE_REVERSE: Final = _RANGE.replace("ORDER BY key", "ORDER BY key DESC")
_RANGE_UNTIL: Final = """
SELECT key, version, value FROM (
  SELECT key, version, value, sum(octet_length(value)) OVER (ORDER BY key) - octet_length(value) AS before
  FROM (
    SELECT key, version, value FROM $schema.partition_rows WHERE $live AND key >= $3 AND key < $4 ORDER BY key LIMIT $5
  ) AS near
) AS found WHERE before < $6 ORDER BY key
"""
_RANGE_UNTIL_REVERSE: Final = _RANGE_UNTIL.replace("ORDER BY key", "ORDER BY key DESC")
_COMMIT: Final = (
    "SELECT told, failed "
    "FROM $schema.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
)
# A commit with this id that is under way fails when it is about to insert its own, or is waited for. The second id is
# there if the commit was not applied by then.
_SETTLE: Final = """
WITH settled AS (
  INSERT INTO $schema.partition_commits(partition, id) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING 1
)
INSERT INTO $schema.partition_commits(partition, id) SELECT $1, $3 FROM settled
"""
_IS_KNOWN: Final = "SELECT EXISTS (SELECT FROM $schema.partition_commits WHERE partition = $1 AND id = $2)"
# The outer condition is for a record that is written again while this waits for its lock. As an array, the keys are
# read once: a join may read them, and lock other ones, several times.
_SWEEP: Final = """
WITH swept AS (
  DELETE FROM $schema.partition_rows WHERE partition = $1 AND expires_at <= $2 AND key = ANY(ARRAY(
    SELECT key FROM $schema.partition_rows WHERE partition = $1 AND expires_at <= $2 LIMIT 1000 FOR UPDATE SKIP LOCKED))
  RETURNING 1
), forgotten AS (
  DELETE FROM $schema.partition_commits WHERE partition = $1 AND made_at < now() - interval '1 minute'
)
SELECT count(*) FROM swept
"""

_ALL: Final = "SELECT key, value, expires_at FROM $schema.partition_rows WHERE $live"
_FETCHED_ROWS: Final = 64
"""Rows of a snapshot that are read at a time."""

_SIZE: Final = "SELECT pg_total_relation_size('$schema.partition_rows')"
_NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_COUNT: Final = "SELECT count(*) FROM $schema.partition_rows WHERE partition = $1"


class PostgresPartition:
    """The records of one partition of a store in PostgreSQL.

    A commit is one call of a function in the database, in one transaction, under advisory locks on the keys and ranges
    that it writes or depends on (`postgres_locks.py`). Conditions on absent keys therefore hold too, no commit has to
    be retried because of a concurrent one, and independent commits share one disk write.

    Args:
        connections: those of the store.
        number: the number of the partition.
        clock: returns seconds since the epoch; None uses the server's clock, which all processes share.
    """

    transactional: Final = True

    def __init__(self, connections: PostgresConnections, number: int, clock: Callable[[], float] | None = None) -> None:
        self._connections, self._partition, self._clock = connections, number, clock
        # A key may be in several partitions. Servers of layout 1 know the locks of the first one.
        self._lock_names = f"{connections.schema}:{number}" if number else connections.schema
        self._lock = lock_id(self._lock_names, "")

    @property
    def has_own_clock(self) -> bool:
        """Whether `now` is the clock of the server."""
        return self._clock is None

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        if not keys:
            return {}
        encoded = [key.encode() for key in dict.fromkeys(keys)]
        if max_bytes is None:
            return dict(_records(await self._read(_GET_MANY, encoded)))
        return dict(_records(await self._read(_GET_UNTIL, encoded, max_bytes)))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        writes, connections = writes_of(ops), self._connections
        if writes or conditions:
            held = locks(self._lock_names, writes, conditions, connections.locks.total)
            arguments = (*_columns(self._locks(held), 2), *_conditions(conditions), *_ops(writes))
            closes = connections.closes
            async with connections.locks.hold(len(held or ())):
                connections.check_open(closes)
                failed = await self._sent(uuid.uuid4(), arguments)
            if failed:
                raise Conflict([conditions[number] for number in failed])
        connections.sender.send(woken_by(ops))

    def _locks(self, held: Sequence[tuple[int, bool]] | None) -> list[tuple[int, bool]]:
        """Return all locks of a commit, in order. First is that of the whole partition, exclusive if it is alone."""
        return [(self._lock, True)] if held is None else [(self._lock, False), *held]

    async def _sent(self, commit_id: uuid.UUID, arguments: Sequence[Any]) -> list[int]:
        """Send a commit; return the numbers of the conditions that do not hold."""
        known, settle = self._connections.deadline, partial(self._settle, commit_id)
        for _ in range(TRIES):
            if self.has_own_clock and not known.known:
                await self.now()
            deadline = known.next() if self.has_own_clock else None
            try:
                [(now, failed)] = await self._fetch(_COMMIT, commit_id, self._time(), deadline, *arguments)
            except Unreachable as error:
                if error.sent:
                    raise Unanswered(error.message, settle) from error
                raise
            except TimedOut as error:
                raise Unanswered(error.message, settle) from error
            known.told(now)
            if failed != [TOO_LATE]:
                return failed or []
        raise too_late()

    async def _settle(self, commit_id: uuid.UUID) -> bool:
        mark = uuid.uuid5(commit_id, "settled")
        await self._fetch(_SETTLE, commit_id, mark)
        # In a statement of its own, which sees what the first has waited for.
        [(unapplied,)] = await self._fetch(_IS_KNOWN, mark)
        return not unapplied

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        between = (start.encode(), end.encode(), limit)
        if max_bytes is None:
            return _records(await self._read(_RANGE_REVERSE if reverse else _RANGE, *between))
        return _records(await self._read(_RANGE_UNTIL_REVERSE if reverse else _RANGE_UNTIL, *between, max_bytes))

    def pubsub(self) -> AbstractAsyncContextManager[PubSub]:
        return self._connections.open_pubsub()

    async def now(self) -> float:
        if self._clock:
            return self._clock()
        [(now,)] = await self._connections.fetch(_NOW)
        self._connections.deadline.told(now)
        return float(now)

    async def sweep(self, now: float) -> int:
        [(swept,)] = await self._fetch(_SWEEP, now)
        return int(swept)

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        with errors_as_503():
            await self._connections.pool()  # creates the tables of a new store
            async with (
                self._connections.connected() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                cursor = await connection.cursor(self._connections.sql(_ALL), self._partition, self._time())
                while rows := await cursor.fetch(_FETCHED_ROWS):
                    yield [Put(key.decode(), value, expires_at) for key, value, expires_at in rows]

    async def size(self) -> int | None:
        [(size,)] = await self._connections.fetch(_SIZE)
        return int(size)

    async def losses(self) -> dict[str, str]:
        [settings] = await self._connections.fetch(POSTGRES_SETTINGS)
        return losses_of_postgres(dict(settings))

    async def exists(self) -> bool:
        return await self._connections.exists()

    async def close(self) -> None:
        await self._connections.close()

    def _time(self) -> float | None:
        """Return the time of this server, if that counts."""
        return self._clock() if self._clock else None

    async def _read(self, sql: str, *arguments: Any) -> list[Any]:
        """Return the rows of a statement about what has not expired."""
        return await self._fetch(sql, self._time(), *arguments)

    async def _fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """Return the rows of a statement whose first parameter is the partition."""
        return await self._connections.fetch(sql, self._partition, *arguments)


class PostgresRecords(PostgresPartition):
    """Records in PostgreSQL 13 or newer, in one partition.

    Args:
        url: `postgresql://USER@HOST:PORT/DATABASE`; with `?sslmode=verify-full`, for example, for TLS.
        password: the user's password, if it is not in the URL.
        schema: the schema that holds the tables; it is created if needed.
        connections: maximum number of connections of this process, without the one of a subscription.
        timeout: maximum seconds for connecting, and for one answer.
        clock: as of `PostgresPartition`.
        applied_seconds: a commit is applied within these, or never.
    """

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
        own = PostgresConnections(
            url,
            password=password,
            schema=schema,
            connections=connections,
            timeout=timeout,
            pubsub_silence=pubsub_silence,
            applied_seconds=applied_seconds,
        )
        super().__init__(own, 0, clock)
        self._search = PostgresSearch(own.run, own.sql)

    def search_index(self) -> PostgresSearch:
        return self._search


class PostgresPart(PostgresPartition):
    """One of several partitions of a store, on the server of the others."""

    async def server(self) -> str:
        """Return the address of the server."""
        return self._connections.address

    async def pubsub_over(self, connection: PubSub) -> PubSub:
        """Receive the notifications of this partition over the connection of another one: names are in one only."""
        return connection

    @property
    def hash_slot(self) -> None:
        """None: there are no slots."""
        return None

    async def occupancy(self) -> Occupancy:
        """Return how many records there are; what they take is known of all partitions together only."""
        [(rows,)] = await self._fetch(_COUNT)
        return Occupancy(rows, None, None)


def postgres_parts(
    url: str, partitions: int, *, clock: Callable[[], float] | None = None, **more: Any
) -> list[PostgresPart]:
    """Return the partitions of a store, which share their connections.

    Args:
        partitions: their number, with which the store is made.
        more: further arguments of `PostgresConnections`.
    """
    shared = PostgresConnections(url, partitions=partitions, **more)
    return [PostgresPart(shared, number, clock) for number in range(partitions)]


def _records(rows: Sequence[Any]) -> list[tuple[str, Record]]:
    return [(key.decode(), Record(value, version)) for key, version, value in rows]


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
