"""Records of a server without the setting, in a store that may have packed responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

from ...concurrency.tasks import LoopTask
from ...core.errors import ApiError
from ...core.owner import Owner
from ...logs import get_logger
from ...store.records import Condition, Op, Record, Records, after_prefix, range_in
from ...store.wrapped import WrappedRecords
from ...telemetry.instrumentation import Telemetry
from .prefixes import CHAINS, FOLDER

if TYPE_CHECKING:
    from .unpacking_records import UnpackingRecords

logger = get_logger(__name__)

_SECONDS: Final = 60.0
"""Seconds between two looks whether servers with the setting have packed something."""


def open_unconfigured(records: Records, telemetry: Telemetry | None) -> UnpackingRecords:
    """Return records that refuse what is packed, and load what that takes: few stores have something packed."""
    from .bringing import Bringing
    from .unpacking_records import UnpackingRecords

    return UnpackingRecords(records, Bringing(records, None, 0.0, telemetry))


class UnconfiguredRecords(WrappedRecords):
    """Refuse what is packed with the name of the setting, instead of not finding it.

    A store in which nothing was ever packed is read as without this, except for one small row each minute.

    Args:
        records: the store.
        telemetry: has the metrics of what is brought back.
    """

    def __init__(self, records: Records, telemetry: Telemetry) -> None:
        super().__init__(records)
        self._telemetry, self._look_at = telemetry, -inf
        self._unpacking: UnpackingRecords | None = None
        self._later_look = LoopTask(self._try_look)

    async def _there(self) -> Records:
        """Return the records to read from. The first calls wait for the look, later ones do not.

        Raises:
            ApiError: 503, the store does not answer to the first look.
        """
        if self._unpacking is None and (now := asyncio.get_running_loop().time()) >= self._look_at:
            if self._look_at == -inf:
                await self._look()
            else:
                self._later_look.start()
            self._look_at = now + _SECONDS
        return self._unpacking or self._records

    async def _look(self) -> None:
        """Look whether something was packed, and log an error if some of it is not deleted."""
        if FOLDER not in await self._records.get_many([FOLDER]) or self._unpacking:
            return
        self._unpacking = open_unconfigured(self._records, self._telemetry)
        with suppress(ApiError):  # if a part of the store is away, others are read without the line in the log
            if await self._unpacking.range(CHAINS, after_prefix(CHAINS), limit=1):
                logger.error("there are responses in the object store of the setting 'archive', which is not set here")

    async def _try_look(self) -> None:
        with suppress(ApiError):  # where the row is, may be away, and the rest of the store not
            await self._look()

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Commit. What is deleted was read before, so it is known whether something is packed."""
        await (self._unpacking or self._records).commit(ops, conditions)

    async def close(self) -> None:
        """Close the records."""
        await self._later_look.stop()
        await super().close()

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

    @property
    def as_moved(self) -> Records:
        """The store with rows that stand for what is packed, as far as something is known to be."""
        return self._unpacking.as_moved if self._unpacking else self._records

    def reader(self) -> Records:
        """Return the records for reading many responses."""
        return self

    async def packed(self, response_id: str) -> tuple[Owner, str] | None:
        """Return the owner of a packed response, and its position in their list."""
        await self._there()
        return await self._unpacking.packed(response_id) if self._unpacking else None

    async def forget(self, response_id: str, ops: Sequence[Op], conditions: Sequence[Condition]) -> bool:
        """Delete a packed response, which needs no object store."""
        await self._there()
        return await self._unpacking.forget(response_id, ops, conditions) if self._unpacking else False

    async def forget_items(self, conversation_id: str) -> None:
        """Delete packed items of a conversation, which needs no object store."""
        await self._there()
        if self._unpacking:
            await self._unpacking.forget_items(conversation_id)
