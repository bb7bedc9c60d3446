"""Records of a server without the setting, in a store that may have packed responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Final

from ...core.owner import Owner
from ...store.records import Condition, Op, Record, Records, range_in
from ...store.wrapped import WrappedRecords
from .rows import FOLDER
from .unpacking_records import UnpackingRecords

_SECONDS: Final = 60.0
"""Seconds between two looks whether servers with the setting have packed something."""


class UnconfiguredRecords(WrappedRecords):
    """Refuse what is packed with the name of the setting, instead of not finding it.

    A store in which nothing was ever packed is read as without this, except for one small row each minute.

    Args:
        records: the store.
        unpacking: the same, which brings back what is packed, without an object store.
    """

    def __init__(self, records: Records, unpacking: UnpackingRecords) -> None:
        super().__init__(records)
        self._unpacking, self._has_packed, self._look_at = unpacking, False, -inf

    async def _there(self) -> Records:
        """Return the records to read from.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if not self._has_packed and asyncio.get_running_loop().time() >= self._look_at:
            await self._look()
        return self._unpacking if self._has_packed else self._records

    async def _look(self) -> None:
        """Look whether something was packed. All calls wait for the first look, one for each later one."""
        next_look = asyncio.get_running_loop().time() + _SECONDS
        if self._look_at > -inf:
            self._look_at = next_look
        self._has_packed = FOLDER in await self._records.get_many([FOLDER])
        self._look_at = next_look

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        """Read.

        Raises:
            ApiError: 503, something of it is packed.
        """
        return await (await self._there()).get_many(keys, max_bytes=max_bytes)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        """Read a range; errors as of `get_many`."""
        records = await self._there()
        return await records.range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    async def range_in(
        self,
        number: int,
        start: str,
        end: str,
        *,
        limit: int,
        reverse: bool = False,
        max_bytes: int | None = None,
    ) -> list[tuple[str, Record]]:
        """Read a range of one partition; errors as of `get_many`."""
        records = await self._there()
        return await range_in(records, number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    @property
    def unmoved(self) -> Records:
        """The store without what is packed."""
        return self._records

    def reader(self) -> Records:
        """Return the records for reading many responses."""
        return self

    async def packed(self, response_id: str) -> tuple[Owner, str] | None:
        """Return the owner of a packed response, and its position in their list."""
        await self._there()
        return await self._unpacking.packed(response_id) if self._has_packed else None

    async def forget(self, response_id: str, ops: Sequence[Op], conditions: Sequence[Condition]) -> bool:
        """Delete a packed response, which needs no object store."""
        await self._there()
        return self._has_packed and await self._unpacking.forget(response_id, ops, conditions)
