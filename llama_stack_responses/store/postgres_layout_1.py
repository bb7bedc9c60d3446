"""The change of a PostgreSQL store from layout 1, which had the tables `records` and `commits`, without partitions.

A server of this version that opens such a store changes it, while servers of layout 1 go on: their reads and commits
wait for moments only, since the new index is built beside them. Afterwards, `records` and `commits` are views of the
first partition, and their functions call the new one. So these servers go on with the store as it is now, and may start
anew: its row in `layout` still says 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import asyncpg

from ..concurrency.tasks import LoopTask
from ..core.errors import ApiError
from ..logs import get_logger
from .postgres_errors import errors_as_503
from .postgres_tables import FUNCTION, LAYOUT, PARAMETERS, WAIT_FOR_COMMITS, State

logger = get_logger(__name__)

# The functions of layout 1 took the lock of the whole store by themselves: shared, or exclusively without others.
_LOCKS: Final = """
    CASE WHEN locks IS NULL THEN ARRAY[$lock]::bigint[] ELSE $lock::bigint || locks END,
    CASE WHEN locks IS NULL THEN ARRAY[true] ELSE false || exclusive END
"""
_FUNCTIONS: Final = """
CREATE OR REPLACE FUNCTION $schema.commit(
  commit_id uuid, now_at float8, locks bigint[], exclusive boolean[], $given
) RETURNS int[] LANGUAGE sql AS $body$
  SELECT coalesce(failed, '{}') FROM $schema.commit(0::smallint, commit_id, now_at, NULL, $locks, $names)
$body$;
CREATE OR REPLACE FUNCTION $schema.commit(
  commit_id uuid, now_at float8, deadline float8, locks bigint[], exclusive boolean[], $given,
  OUT told float8, OUT failed int[]
) LANGUAGE sql AS $body$
  SELECT told, failed FROM $schema.commit(0::smallint, commit_id, now_at, deadline, $locks, $names)
$body$;
"""
_NEW_FUNCTIONS: Final = FUNCTION + (
    _FUNCTIONS.replace("$locks", _LOCKS)
    .replace("$given", ", ".join(f"{name} {kind}" for name, kind in PARAMETERS.items()))
    .replace("$names", ", ".join(PARAMETERS))
)

_COLUMNS: Final = """
ALTER TABLE $schema.records ADD COLUMN IF NOT EXISTS partition smallint NOT NULL DEFAULT 0;
ALTER TABLE $schema.commits ADD COLUMN IF NOT EXISTS partition smallint NOT NULL DEFAULT 0;
"""
"""Constant defaults: nothing is rewritten, and servers of layout 1 do not name these columns."""
_BESIDE: Final = (
    "DROP INDEX CONCURRENTLY IF EXISTS $schema.partition_rows_key",
    "CREATE UNIQUE INDEX CONCURRENTLY partition_rows_key ON $schema.records(partition, key)",
    "DROP INDEX CONCURRENTLY IF EXISTS $schema.partition_rows_expiry",
    "CREATE INDEX CONCURRENTLY partition_rows_expiry ON $schema.records(partition, expires_at) "
    "WHERE expires_at IS NOT NULL",
    "ANALYZE $schema.records",
)
"""What others read and write beside. An index is built again if it is there: if that was interrupted, it is not valid.
Servers of layout 1 would read whole ranges without statistics of the new column.
"""
# The former keys stay: a commit that has waited for this goes on in the former function, and needs them.
_CHANGE: Final = """
ALTER TABLE $schema.records RENAME TO partition_rows;
ALTER TABLE $schema.commits RENAME TO partition_commits;
CREATE UNIQUE INDEX partition_commits_key ON $schema.partition_commits(partition, id);
CREATE INDEX partition_commits_made_at ON $schema.partition_commits(partition, made_at);
CREATE VIEW $schema.records AS
  SELECT key, version, expires_at, value FROM $schema.partition_rows WHERE partition = 0;
CREATE VIEW $schema.commits AS SELECT id, made_at FROM $schema.partition_commits WHERE partition = 0;
ALTER TABLE $schema.layout ADD COLUMN partitions integer NOT NULL DEFAULT 1;
"""
_END: Final = """
ALTER TABLE $schema.partition_rows DROP CONSTRAINT records_pkey,
  ADD CONSTRAINT partition_rows_pkey PRIMARY KEY USING INDEX partition_rows_key;
ALTER TABLE $schema.partition_commits DROP CONSTRAINT commits_pkey,
  ADD CONSTRAINT partition_commits_pkey PRIMARY KEY USING INDEX partition_commits_key;
DROP INDEX $schema.records_expiry, $schema.commits_made_at;
"""


# The driver would keep a query open, with its snapshot, until the transaction ends; building an index waits for that.
_TAKE_TURN: Final = """
DO $do$ BEGIN IF NOT pg_try_advisory_xact_lock($turn) THEN RAISE lock_not_available; END IF; END $do$
"""

_LOCK_SECONDS: Final = 3
"""Maximum seconds for which a change of the tables waits for a lock: all that others begin waits behind it."""
_PAUSE_SECONDS: Final = 5.0
"""Seconds for which others go on before the next try."""
_POLL_SECONDS: Final = 0.2
_CALL_SECONDS: Final = 2.0
"""Seconds of a change for which calls wait."""
_BEGUN_SECONDS: Final = 1.0
"""Seconds after which commits have their locks, or wait for them, that had called a function before it was replaced."""

CHANGING: Final = (
    "The response store is being changed to the layout of this version, which takes seconds, or minutes if it is "
    "large: try again then."
)


class LayoutChange:
    """Changes a store of layout 1, in the background, or waits until another server has done so.

    Args:
        connect: opens a connection without limits of time.
        sql: fills in the name of the schema.
        state: returns what the schema has.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[asyncpg.Connection]],
        sql: Callable[[str], str],
        state: Callable[[asyncpg.Connection], Awaitable[State]],
    ) -> None:
        self._connect, self._sql, self._state = connect, sql, state
        self._changing, self._ending = LoopTask(self._change), LoopTask(self._end)
        self._began: float | None = None
        self._failure: ApiError | None = None

    async def made(self) -> None:
        """Begin with the change, if it is not under way, and wait until it is made, in its first seconds.

        Raises:
            ApiError: 503, it takes longer, and goes on; or it has failed, and nothing of it shows.
        """
        if self._began is None:
            self._began, self._failure = asyncio.get_running_loop().time(), None
        self._changing.start()
        try:
            # Later calls do not wait: they would hold up those behind them.
            async with asyncio.timeout_at(self._began + _CALL_SECONDS):
                await self._changing.wait()
        except TimeoutError as error:
            raise ApiError(503, CHANGING, retry_after=5) from error
        if self._failure:
            raise self._failure

    def end(self) -> None:
        """Drop the keys of layout 1 soon."""
        self._ending.start()

    async def close(self) -> None:
        """Break off what is under way: another server does it, or this one when it opens the store again."""
        await self._changing.stop()
        await self._ending.stop()

    async def _change(self) -> None:
        try:
            async with self._turn(lambda state: state.is_former) as connection:
                if connection is not None:
                    await self._make(connection)
        except ApiError as error:
            self._failure = error
        finally:
            self._began = None

    async def _make(self, connection: asyncpg.Connection) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        logger.info("changing the store to layout %d, servers of the version before go on meanwhile", LAYOUT)
        await self._in_short_waits(connection, _COLUMNS)
        for statement in _BESIDE:
            await connection.execute(self._sql(statement))
        await self._in_short_waits(connection, _CHANGE + _NEW_FUNCTIONS)
        logger.info("changed the store to layout %d in %.1f seconds", LAYOUT, loop.time() - began)

    async def _end(self) -> None:
        await asyncio.sleep(_BEGUN_SECONDS)
        try:
            async with self._turn(lambda state: state.has_former_keys) as connection:
                if connection is not None:
                    await self._in_short_waits(connection, _END)
        except ApiError as error:
            logger.info("the keys of layout 1 stay until a server opens the store again: %s", error)

    @asynccontextmanager
    async def _turn(self, is_needed: Callable[[State], bool]) -> AsyncIterator[asyncpg.Connection | None]:
        """Yield a connection once no other server changes the store; None once it needs no change any more.

        Raises:
            ApiError: 503, the server refused something, or does not answer.
        """
        with errors_as_503():
            # No transaction may build indexes beside others, so the one that holds the turn is of another connection,
            # and ends with it.
            async with self._connect() as turn, self._connect() as connection:
                while is_needed(await self._state(connection)):
                    async with turn.transaction():
                        if await self._takes(turn):
                            yield connection if is_needed(await self._state(connection)) else None
                            return
                    await asyncio.sleep(_POLL_SECONDS)
                yield None

    async def _takes(self, turn: asyncpg.Connection) -> bool:
        """Take the turn for a transaction, unless another server has it; return whether it is taken."""
        try:
            await turn.execute(self._sql(_TAKE_TURN))
        except asyncpg.LockNotAvailableError:
            return False
        return True

    async def _in_short_waits(self, connection: asyncpg.Connection, sql: str) -> None:
        """Execute statements that lock whole tables, in one transaction, once nothing holds the tables for long."""
        while True:
            try:
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                    await connection.execute(self._sql(WAIT_FOR_COMMITS))
                    await connection.execute(self._sql(sql))
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return
