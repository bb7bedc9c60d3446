"""Records whose calls are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..telemetry.instrumentation import Telemetry
from .records import Condition, Op, Record, Records, filled_in, get_or_floors, range_in, ranges_in, replicated
from .wrapped import WrappedRecords


class MeasuredRecords(WrappedRecords):
    """Wraps records, and reports the duration of each call to telemetry.

    Not those that no response waits for: of exporters, of checks that are made seldom, and of the index of words; and
    not subscriptions, which wait for events.
    """

    def __init__(self, records: Records, telemetry: Telemetry) -> None:
        super().__init__(records)
        self._telemetry = telemetry

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read and time the call."""
        with self._telemetry.storing("get_many"):
            return await self._records.get_many(keys, max_bytes=max_bytes)

    async def get_or_floors(
        self, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[str, Record]:
        """Read, with what is before missing keys, and time the call."""
        with self._telemetry.storing("get_many"):
            return await get_or_floors(self._records, keys, floors, max_bytes=max_bytes)

    async def replicated(self, tag: int, server: str) -> bool:
        """Wait for replicas and time the call."""
        with self._telemetry.storing("replicated"):
            return await replicated(self._records, tag, server)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Commit and time the call; a condition that does not hold does not count as an error."""
        with self._telemetry.storing("commit"):
            await self._records.commit(ops, conditions)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range and time the call."""
        with self._telemetry.storing("range"):
            return await self._records.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    async def now(self) -> float:
        """Return the store's time and time the call."""
        with self._telemetry.storing("now"):
            return await self._records.now()

    async def sweep(self, now: float) -> int:
        """Sweep and time the call."""
        with self._telemetry.storing("sweep"):
            return await self._records.sweep(now)

    async def range_in(
        self, number: int, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range of one partition and time the call."""
        with self._telemetry.storing("range"):
            return await range_in(self._records, number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    async def filled_in(self, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        """Say which ranges of one partition may have rows, and time the call."""
        with self._telemetry.storing("range"):
            return await filled_in(self._records, number, ranges)

    async def ranges_in(
        self, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        """Read several ranges of one partition, and time the call."""
        with self._telemetry.storing("range"):
            return await ranges_in(self._records, number, ranges, limit=limit, reverse=reverse)
