"""The connections of a store to its PostgreSQL, which all partitions of the store share."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, Final

import asyncpg

from ..concurrency.fair_budget import FairBudget
from ..concurrency.loop_local import Closing, LoopLocal
from ..core.errors import ApiError
from .commit_deadline import APPLIED_SECONDS, CommitDeadline
from .connection_slots import shared_connections
from .postgres_errors import Unreachable, errors_as_503
from .postgres_locks import LOCKS_PER_CONNECTION, lock_id
from .postgres_pubsub import NOTIFY, PUBSUB_SILENCE_SECONDS, NotificationSender, PostgresPubSub, channel
from .postgres_schema import StoreSchema
from .records import CLOSED, PubSub

_LIVE: Final = (
    "partition = $1 AND (expires_at IS NULL OR expires_at > coalesce($2, extract(epoch FROM clock_timestamp())))"
)
"""The rows of a partition that have not expired."""

_PLANNING: Final = """
SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off
"""
"""Everything is found by an index, and ranges are in its order, which no value changes. Without statistics, as in a new
store, the planner would read and sort whole ranges; with them, it would make a plan for each call.
"""

# A store of layout 1 has the second table, or view.
_EXISTS: Final = "SELECT coalesce(to_regclass('$schema.partition_rows'), to_regclass('$schema.records')) IS NOT NULL"

_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 0.8, 0.8)
"""Seconds before each retry while the server is unreachable."""

_NO_LIMITS: Final = {"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""Settings of a connection that changes the layout: an administrator may have set others for the user."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that keeps no state between users: no settings, cursors or locks."""

    def get_reset_query(self) -> str:
        """Return nothing: the default would cost each call a second round trip."""
        return ""


class PostgresConnections:
    """Connections to one server, for one schema.

    Args:
        url: as of `PostgresRecords`, and so are the others.
        partitions: the number of partitions of the store, with which it is made.

    Attributes:
        schema: the schema that holds the tables.
        sql: returns a statement with the name of the schema filled in.
        locks: the locks that the commits of this process may hold: no more than fit in the server's lock table.
        deadline: what is known of the server's clock.
        sender: notifies other processes.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        schema: str = "responses",
        partitions: int = 1,
        connections: int = 16,
        timeout: float = 10.0,
        pubsub_silence: float = PUBSUB_SILENCE_SECONDS,
        applied_seconds: float = APPLIED_SECONDS,
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise ValueError(f"the schema's name {schema!r} may have only lowercase letters, digits and _")
        self._url, self._password = url, password
        self._connections, self._timeout, self._pubsub_silence = connections, timeout, pubsub_silence
        self._id = secrets.token_hex(8)
        self._slots = shared_connections(connections)  # users take turns, which they do not in the pool
        self.sql: Final[Callable[[str], str]] = cache(partial(_sql, schema))
        self._schema = StoreSchema(self._unlimited, self.sql, partitions)
        self._local_pool = LoopLocal(self._open)
        self._closes = 0
        self._looking: asyncio.Task[bool] | None = None
        self.schema: Final = schema
        self.locks: Final = FairBudget(connections * LOCKS_PER_CONNECTION)
        self.deadline: Final = CommitDeadline(applied_seconds)
        self.sender: Final = NotificationSender(self._notify)

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._url

    @property
    def closes(self) -> int:
        """How often they were closed."""
        return self._closes

    def check_open(self, closes: int) -> None:
        """Raise a 503 if `close` was called since `closes` was read: an earlier call does not open the store again."""
        if self._closes != closes:
            raise ApiError(503, CLOSED, retry_after=1)

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        """Return the rows of a statement, in which the name of the schema is filled in.

        Raises:
            ApiError: as from `run`.
        """
        return await self.run(lambda pool: pool.fetch(self.sql(sql), *arguments))

    async def run[Result](self, call: Callable[[asyncpg.Pool], Awaitable[Result]]) -> Result:
        """Run a call with the pool, as soon as a connection is free; again while the server is unreachable.

        Raises:
            ApiError: 503, the server refused the call or did not answer it.
        """
        sent, closes = False, self._closes
        for pause in (*_PAUSES, None):
            try:
                async with self._slots.hold(1):
                    self.check_open(closes)
                    with errors_as_503():
                        return await call(await self.pool())
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

    @asynccontextmanager
    async def connected(self, **settings: Any) -> AsyncIterator[asyncpg.Connection]:
        """Yield a connection of its own.

        Args:
            settings: of `asyncpg`, in place of those of all connections.
        """
        connection = await asyncpg.connect(self._url, **{**self._settings(), **settings})
        try:
            yield connection
        finally:
            connection.terminate()

    @asynccontextmanager
    async def open_pubsub(self) -> AsyncIterator[PubSub]:
        """Receive notifications of the schema."""
        with errors_as_503():
            connection = await asyncpg.connect(self._url, **self._settings())
        pubsub = PostgresPubSub(connection, self.schema, self._id, self._notify, self._timeout, self._pubsub_silence)
        try:
            await pubsub.open()
            yield pubsub
        finally:
            await pubsub.close()

    async def exists(self) -> bool:
        """Return whether the store was made. Calls at the same time, as of all partitions, look once.

        Raises:
            ApiError: 503, the server does not answer.
        """
        loop, looking = asyncio.get_running_loop(), self._looking
        if looking is None or looking.done() or looking.get_loop() is not loop:
            looking = self._looking = loop.create_task(self._look())
        return await asyncio.shield(looking)

    async def _look(self) -> bool:
        with errors_as_503():
            async with self.connected() as connection:
                return bool(await connection.fetchval(self.sql(_EXISTS)))

    async def pool(self) -> asyncpg.Pool:
        """Return the pool of the running loop, with the tables of the store made.

        Raises:
            ApiError: 503, the connections are being closed; or as from `StoreSchema.open`.
        """
        try:
            return await self._local_pool.get()
        except Closing as error:
            raise ApiError(503, CLOSED, retry_after=1) from error

    async def close(self) -> None:
        """Send what is due, and close the connections. The next call opens them again."""
        self._closes += 1
        await self.sender.close()
        await self._local_pool.close(self._close_pool)
        await self._schema.close()

    async def _close_pool(self, pool: asyncpg.Pool) -> None:
        await pool.close()
        # Commits that ended meanwhile have notifications to send, which must not open another pool.
        await self.sender.close()

    async def _open(self) -> asyncpg.Pool:
        pool = await asyncpg.create_pool(
            self._url,
            **self._settings(),
            min_size=0,
            max_size=self._connections,
            connection_class=_Connection,
            init=_plan,
        )
        try:
            await self._schema.open(pool)
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def _notify(self, names: Sequence[str]) -> None:
        channels = [channel(self.schema, name) for name in names]
        await self.fetch(NOTIFY, channels, self._id)

    @asynccontextmanager
    async def _unlimited(self) -> AsyncIterator[asyncpg.Connection]:
        settings = self._settings()["server_settings"]
        async with self.connected(command_timeout=None, server_settings=settings | _NO_LIMITS) as connection:
            yield connection

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


async def _plan(connection: asyncpg.Connection) -> None:
    await connection.execute(_PLANNING)


def _sql(schema: str, sql: str) -> str:
    """Return a statement with its placeholders replaced for `schema`."""
    names = {
        "$schema": schema,
        "$lock": str(lock_id(schema, "")),
        "$live": _LIVE,
        "$turn": str(lock_id(f"{schema}:layout", "")),
    }
    return re.sub(r"\$(schema|lock|turn|live)\b", lambda name: names[name[0]], sql)
