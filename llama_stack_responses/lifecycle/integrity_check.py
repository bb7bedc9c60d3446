"""Whether the store's file is damaged, while this server runs."""

from __future__ import annotations

from ..intervals import Intervals
from ..logs import get_logger
from ..store.records import Inspected, Records
from .periodic import Periodic

logger = get_logger(__name__)


class IntegrityCheck(Periodic):
    """Has the store inspect its file once, and looks at intervals whether a call has met damage since.

    Damage is final: a file that replaces this one needs a new start.

    Args:
        records: the store.
        intervals: how often to look.
    """

    def __init__(self, records: Records, intervals: Intervals) -> None:
        seconds = intervals.integrity_check_seconds
        super().__init__(self.check, "could not inspect the response store's file", logger, seconds)
        self._records = records
        self.damaged = False

    async def check(self) -> None:
        """Look once, and log what is new."""
        damage = await self._records.damage() if isinstance(self._records, Inspected) else ""
        if damage and not self.damaged:
            self.damaged = True
            what_to_do = "stop it, and save what can be read with 'llama-stack-responses recover', or restore a backup"
            logger.error("the response store's file is damaged, this server is not ready: %s (%s)", what_to_do, damage)
