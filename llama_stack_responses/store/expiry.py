"""Deletion of expired responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..logs import get_logger
from . import codec
from .layout import BUCKET
from .records import Conflict, Delete, Empty, Records, after_prefix
from .retention import Retention

logger = get_logger(__name__)


class Expiry:
    """Deletes responses that have expired.

    Args:
        records: the store.
        retention: decides which responses have expired.
        delete: deletes a response; returns False if it does not exist.
    """

    def __init__(self, records: Records, retention: Retention, delete: Callable[[str], Awaitable[bool]]) -> None:
        self._records = records
        self._retention = retention
        self._delete = delete

    async def run(self, limit: int) -> int:
        """Delete at most `limit` expired responses, and return their number."""
        oldest = self._retention.oldest()
        deleted = 0
        for row, _ in await self._records.range("x/", after_prefix(f"x/{oldest[:BUCKET]}"), limit=limit):
            _, digits, of = row.split("/")
            start = f"l/{of}/{digits}"
            end = min(after_prefix(start), f"l/{of}/{oldest}")
            expired = await self._records.range(start, end, limit=limit - deleted)
            for listed, _ in expired:
                await self._forget(listed)
            deleted += len(expired)
            if digits < oldest[:BUCKET]:
                await self._drop_bucket(row, start)
        return deleted

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
