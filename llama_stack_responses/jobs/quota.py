"""Limits on the number of rows with a prefix: counted in the store, and exact for the writes of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..core.errors import ApiError
from ..store.records import Records, after_prefix


@dataclass(slots=True)
class _Count:
    """Rows of one prefix that a count in the store may miss.

    Attributes:
        readers: number of counts in the store that are in progress.
        pending: number of rows that were admitted and may not be written yet.
        landed: number of rows that were written, or given up, since the first of these counts began.
    """

    readers: int = 0
    pending: int = 0
    landed: int = 0


class RowQuota:
    """Admits rows before they are written. Each further process may exceed a limit by its concurrent writes.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._counts: dict[str, _Count] = {}

    @asynccontextmanager
    async def admit(self, prefix: str, limit: int, refusal: str) -> AsyncIterator[None]:
        """Admit one more row with the prefix, to be written within the block.

        Raises:
            ApiError: 429 with the message `refusal`, there are `limit` rows already.
        """
        count = self._counts.setdefault(prefix, _Count())
        await self._take(count, prefix, limit, refusal)
        try:
            yield
        finally:
            count.pending -= 1
            count.landed += bool(count.readers)
            self._forget(prefix, count)

    async def _take(self, count: _Count, prefix: str, limit: int, refusal: str) -> None:
        count.readers += 1
        try:
            rows = await self._records.range(prefix, after_prefix(prefix), limit=limit)
            if len(rows) + count.pending + count.landed >= limit:
                raise ApiError(429, refusal, code="rate_limit_exceeded", retry_after=10)
            count.pending += 1
        finally:
            count.readers -= 1
            count.landed *= bool(count.readers)
            self._forget(prefix, count)

    def _forget(self, prefix: str, count: _Count) -> None:
        if not count.readers and not count.pending:
            self._counts.pop(prefix, None)
