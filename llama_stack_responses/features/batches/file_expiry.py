"""Deletes the files of results that batches have asked to expire, whatever the host's file store makes of it."""

from __future__ import annotations

from typing import Final

from ...core.errors import ApiError
from ...logs import get_logger
from ...store.records import Delete, Records
from .parts import Parts
from .rows import EXPIRING, Expiring

logger = get_logger(__name__)

_AT_ONCE: Final = 20
"""Batches whose files are deleted at a time."""
_RETRY_SECONDS: Final = 600.0


class FileExpiry:
    """Deletes files that have expired.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def delete_due(self, parts: Parts) -> None:
        """Delete the files of some batches that have expired by now.

        Raises:
            ApiError: 503, the store does not answer.
        """
        now = await self._records.now()
        end = f"{EXPIRING}{int(now) + 1:08x}"
        for key, row in await self._records.range(EXPIRING, end, limit=_AT_ONCE):
            expiring, again = Expiring.decode(row.value), []
            try:
                with parts.impl.access.acting_for(expiring.owner, {}):
                    for file_id in expiring.files:
                        await parts.files.delete(file_id)
            except ApiError as error:
                batch_id = key.rpartition("/")[2]
                logger.warning("could not delete the expired files of a batch: %s: %s", batch_id, error)
                again = [expiring.put(batch_id, now + _RETRY_SECONDS)]
            await self._records.commit([Delete(key), *again])
