"""Opens the schema of a PostgreSQL store: makes its tables, or has them changed to the layout of this version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import asyncpg

from ..core.errors import ApiError
from .postgres_layout_1 import CHANGING, LayoutChange
from .postgres_tables import TABLES, WAIT_FOR_COMMITS, State, state_of


class StoreSchema:
    """The schema of a store.

    Args:
        connect: opens a connection without limits of time.
        sql: fills in the name of the schema.
        partitions: the number of partitions of the store.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[asyncpg.Connection]],
        sql: Callable[[str], str],
        partitions: int,
    ) -> None:
        self._sql, self._partitions = sql, partitions
        self._change = LayoutChange(connect, sql, self._state)

    async def open(self, pool: asyncpg.Pool) -> None:
        """Make the tables if there are none, and wait for the change of a former layout.

        Raises:
            ApiError: 503, the store is of a newer version, has another number of partitions, or its layout is still
                being changed, by this server or another one.
        """
        state = await self._state(pool)
        if state.is_former:
            await self._change.made()
            state = await self._state(pool)
        if not state.is_whole:
            await self._make(pool)
        if state.has_former_keys:
            self._change.end()

    async def close(self) -> None:
        """Break off a change of the layout."""
        await self._change.close()

    async def _state(self, connection: asyncpg.Connection | asyncpg.Pool) -> State:
        return await state_of(connection, self._sql, self._partitions)

    async def _make(self, pool: asyncpg.Pool) -> None:
        """Make what is missing, unless another server has made it."""
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(self._sql(WAIT_FOR_COMMITS))
            if (await self._state(connection)).is_former:
                raise ApiError(503, CHANGING, retry_after=1)  # a server of the version before was faster
            await connection.execute(self._sql(TABLES).replace("$partitions", str(self._partitions)))
