"""Deletion of expired responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..logs import get_logger
from . import codec
from .layout import BUCKET, owner_of_bucket
from .records import Conflict, Delete, Empty, Records, after_prefix, pages_of
from .retention import Counts

logger = get_logger(__name__)


class Expiry:
    """Deletes responses that have expired.

    Args:
        records: the store.
        delete: deletes a response; returns False if it does not exist.
    """

    def __init__(self, records: Records, delete: Callable[[str], Awaitable[bool]]) -> None:
        self._records = records
        self._delete = delete

    async def run(self, oldest: str, limit: int) -> int:
        """Delete at most `limit` responses with orders below `oldest`, and return their number."""
        deleted = 0
        for row, _ in await self._records.range("x/", after_prefix(f"x/{oldest[:BUCKET]}"), limit=limit):
            digits, of = row.split("/")[1], owner_of_bucket(row)
            start = f"l/{of}/{digits}"
            end = min(after_prefix(start), f"l/{of}/{oldest}")
            expired = await self._records.range(start, end, limit=limit - deleted)
            for listed, _ in expired:
                await self._forget(listed)
            deleted += len(expired)
            if digits < oldest[:BUCKET]:
                await self._drop_bucket(row, start)
        return deleted

    async def count(self, oldest: str) -> Counts:
        """Count the responses with orders below `oldest`, and all: this reads all rows of lists."""
        expired = stored = 0
        async for rows in pages_of(self._records, "l/"):
            expired += sum(key.split("/")[2] < oldest for key, _ in rows)
            stored += len(rows)
        return Counts(expired, stored)

    async def _forget(self, listed: str) -> None:
        response_id = listed.rpartition("/")[2]
        try:
            existed = await self._delete(response_id)
        except codec.UnreadableError as error:
            logger.error(
                "expired response deleted; its history could not be read and was kept: %s: %s", response_id, error
            )
            await self._records.commit([Delete(f"r/{response_id}"), Delete(listed)])
            return
        if not existed:
            # A bounded store has dropped the response early, but not this row.
            await self._records.commit([Delete(listed)])

    async def _drop_bucket(self, row: str, prefix: str) -> None:
        with suppress(Conflict):
            await self._records.commit([Delete(row)], [Empty(prefix)])
