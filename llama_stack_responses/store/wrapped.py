"""Records that pass each call on to others: the base of those that add something to some calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from .records import (
    Condition,
    Configured,
    Inspected,
    Limited,
    Op,
    PubSub,
    Record,
    Records,
    apply_noted,
    filled_in,
    get_or_floors,
    partitions_of,
    range_in,
    ranges_in,
    replicated,
    server_of,
)
from .search_index import SearchIndex, index_of


class WrappedRecords:
    """Passes each call on.

    Args:
        records: the wrapped records.

    Attributes:
        partitions: the number of their partitions.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        # A look at what a store can do takes longer than most of what is done with the answer.
        self.partitions: Final = partitions_of(records)

    @property
    def transactional(self) -> bool:
        """Whether the wrapped records are transactional."""
        return self._records.transactional

    @property
    def has_own_clock(self) -> bool:
        """Whether the wrapped records have a clock of their own."""
        return self._records.has_own_clock

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read."""
        return await self._records.get_many(keys, max_bytes=max_bytes)

    async def get_or_floors(
        self, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[str, Record]:
        """Read, with what is before missing keys."""
        return await get_or_floors(self._records, keys, floors, max_bytes=max_bytes)

    def server_of(self, tag: int) -> str:
        """Return the server with the rows of a tag."""
        return server_of(self._records, tag)

    async def replicated(self, tag: int, server: str) -> bool:
        """Wait for replicas."""
        return await replicated(self._records, tag, server)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Commit."""
        await self._records.commit(ops, conditions)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range."""
        return await self._records.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    def pubsub(self) -> AbstractAsyncContextManager[PubSub] | None:
        """Subscribe."""
        return self._records.pubsub()

    async def now(self) -> float:
        """Return the store's time."""
        return await self._records.now()

    async def sweep(self, now: float) -> int:
        """Sweep."""
        return await self._records.sweep(now)

    async def size(self) -> int | None:
        """Return the size."""
        return await self._records.size()

    async def free(self) -> int | None:
        """Return the bytes that can still be stored; None if that is unknown, or without a limit."""
        return await self._records.free() if isinstance(self._records, Limited) else None

    async def losses(self) -> Mapping[str, str] | None:
        """Return how the wrapped records may be lost."""
        return await self._records.losses() if isinstance(self._records, Configured) else {}

    async def range_in(
        self, number: int, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range of one partition."""
        return await range_in(self._records, number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    async def filled_in(self, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        """Say which ranges of one partition may have rows."""
        return await filled_in(self._records, number, ranges)

    async def ranges_in(
        self, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        """Read several ranges of one partition."""
        return await ranges_in(self._records, number, ranges, limit=limit, reverse=reverse)

    async def apply_noted(self, number: int) -> None:
        """Apply what was noted in one partition."""
        await apply_noted(self._records, number)

    async def damage(self) -> str:
        """Return what is damaged of the wrapped records."""
        return await self._records.damage() if isinstance(self._records, Inspected) else ""

    def search_index(self) -> SearchIndex | None:
        """Return the index of the wrapped records."""
        return index_of(self._records)

    async def close(self) -> None:
        """Close the wrapped records."""
        await self._records.close()
