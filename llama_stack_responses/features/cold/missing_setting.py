"""Logs that there are packed responses, which cannot be read without the setting."""

from __future__ import annotations

from typing import Final

from ...lifecycle.periodic import Periodic
from ...logs import get_logger
from ...store.records import Records, after_prefix
from .pages import PagedRecords
from .rows import CHAINS

logger = get_logger(__name__)

_SECONDS: Final = 3600.0


class MissingSetting(Periodic):
    """Looks for packed responses at the start, and every hour.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(self.look, "could not look for packed responses", logger, _SECONDS)
        self._records = PagedRecords(records)

    async def look(self) -> None:
        """Log an error if there are packed responses.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if await self._records.range(CHAINS, after_prefix(CHAINS), limit=1):
            logger.error("there are responses in the object store of the setting 'archive', which is not set here")
