"""Records whose calls are timed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from ..telemetry.telemetry import Telemetry
from .records import Condition, Op, Record, Records, Watch


class MeasuredRecords:
    """The same records; telemetry hears how long each call took."""

    def __init__(self, records: Records, telemetry: Telemetry) -> None:
        self._records = records
        self._telemetry = telemetry

    @property
    def transactional(self) -> bool:
        """As the records say."""
        return self._records.transactional

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        """Timed."""
        with self._telemetry.storing("get_many"):
            return await self._records.get_many(keys)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Timed; a condition that does not hold is no error."""
        with self._telemetry.storing("commit"):
            await self._records.commit(ops, conditions)

    async def range(self, start: str, end: str, *, limit: int, reverse: bool = False) -> list[tuple[str, Record]]:
        """Timed."""
        with self._telemetry.storing("range"):
            return await self._records.range(start, end, limit=limit, reverse=reverse)

    def watch(self) -> AbstractAsyncContextManager[Watch] | None:
        """As ever: it waits, and for nothing that the store does."""
        return self._records.watch()

    async def now(self) -> float:
        """Timed."""
        with self._telemetry.storing("now"):
            return await self._records.now()

    async def sweep(self, now: float) -> int:
        """Timed."""
        with self._telemetry.storing("sweep"):
            return await self._records.sweep(now)

    async def close(self) -> None:
        """As ever."""
        await self._records.close()
