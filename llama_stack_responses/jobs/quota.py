"""How many rows there may be below a prefix: counted in the store, and exactly among those of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..core.errors import ApiError
from ..store.records import Records, after_prefix


@dataclass(slots=True)
class _Count:
    """What the rows do not show yet.

    Attributes:
        readers: who is counting the rows.
        pending: rows that may be written and perhaps are not yet.
        landed: rows that were written since the first of the readers began.
    """

    readers: int = 0
    pending: int = 0
    landed: int = 0


class Quotas:
    """Counts rows before they are written. Each further process may exceed a limit by what it writes at once.

    Args:
        records: where the rows are.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._counts: dict[str, _Count] = {}

    @asynccontextmanager
    async def one_more(self, prefix: str, limit: int, refusal: str) -> AsyncIterator[None]:
        """A row below the prefix may be written within the block.

        Raises:
            ApiError: 429 with this message, if there are `limit` already.
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
