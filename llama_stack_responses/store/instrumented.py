"""Records whose calls are timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from ..telemetry.instrumentation import Telemetry
from .records import Condition, Configured, Inspected, Limited, Op, PubSub, Record, Records, partitions_of
from .search_index import SearchIndex, index_of


class MeasuredRecords:
    """Wraps records, and reports the duration of each call to telemetry."""

    def __init__(self, records: Records, telemetry: Telemetry) -> None:
        self._records = records
        self._telemetry = telemetry

    @property
    def transactional(self) -> bool:
        """Whether the wrapped records are transactional."""
        return self._records.transactional

    @property
    def has_own_clock(self) -> bool:
        """Whether the wrapped records have a clock of their own."""
        return self._records.has_own_clock

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read and time the call."""
        with self._telemetry.storing("get_many"):
            return await self._records.get_many(keys, max_bytes=max_bytes)

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

    def pubsub(self) -> AbstractAsyncContextManager[PubSub] | None:
        """Subscribe without timing: the time is spent waiting for events, not on work of the store."""
        return self._records.pubsub()

    async def now(self) -> float:
        """Return the store's time and time the call."""
        with self._telemetry.storing("now"):
            return await self._records.now()

    async def sweep(self, now: float) -> int:
        """Sweep and time the call."""
        with self._telemetry.storing("sweep"):
            return await self._records.sweep(now)

    async def size(self) -> int | None:
        """Return the size, without timing: only exporters ask."""
        return await self._records.size()

    async def free(self) -> int | None:
        """Return the bytes that can still be stored, without timing: only exporters ask."""
        return await self._records.free() if isinstance(self._records, Limited) else None

    async def losses(self) -> Mapping[str, str] | None:
        """Return how the wrapped records may be lost, without timing: this is asked seldom."""
        return await self._records.losses() if isinstance(self._records, Configured) else {}

    @property
    def partitions(self) -> int:
        """The partitions of the wrapped records."""
        return partitions_of(self._records)

    async def damage(self) -> str:
        """Return what is damaged of the wrapped records, without timing: this is asked seldom."""
        return await self._records.damage() if isinstance(self._records, Inspected) else ""

    def search_index(self) -> SearchIndex | None:
        """Return the index of the wrapped records, without timing: no response waits for it."""
        return index_of(self._records)

    async def close(self) -> None:
        """Close the wrapped records."""
        await self._records.close()
