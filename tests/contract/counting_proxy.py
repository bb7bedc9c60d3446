"""A store that counts the calls of its user, and interrupts them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from llama_stack_responses.store.records import Condition, Delete, Op, Record, Records, writes_of
from llama_stack_responses.store.wrapped import WrappedRecords


class CountingProxy(WrappedRecords):
    """Forward calls to `records` and count them.

    Every commit after the first `interrupt` ones fails, as after a kill. `jitter` lets other tasks run before each
    call. `meanwhile` holds the concurrent actions to run before a commit, by its number.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.reads = 0
        self.commits = 0
        self.bytes = 0
        self.written: list[list[tuple[str, type[Op]]]] = []
        self.interrupt = math.inf
        self.jitter: random.Random | None = None
        self.meanwhile: dict[int, Callable[[], Awaitable[object]]] = {}

    async def pause(self) -> None:
        for _ in range(self.jitter.randrange(4) if self.jitter else 0):
            await asyncio.sleep(0)

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        await self.pause()
        self.reads += 1
        return await self._records.get_many(keys, max_bytes=max_bytes)

    async def get_or_floors(
        self, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[str, Record]:
        await self.pause()
        self.reads += 1
        return await super().get_or_floors(keys, floors, max_bytes=max_bytes)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        await self.pause()
        self.reads += 1
        return await super().range(start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await self.pause()
        self.commits += 1
        if happens := self.meanwhile.pop(self.commits, None):
            await happens()
        if self.commits > self.interrupt:
            raise InterruptedError
        await self._records.commit(ops, conditions)
        self.written.append([(op.key, type(op)) for op in writes_of(ops)])
        self.bytes += sum(0 if isinstance(op, Delete) else len(op.value) for op in writes_of(ops))

    async def range_in(
        self, number: int, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        self.reads += 1
        return await super().range_in(number, start, end, limit=limit, reverse=reverse, max_bytes=max_bytes)

    async def filled_in(self, number: int, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        self.reads += 1
        return await super().filled_in(number, ranges)

    async def ranges_in(
        self, number: int, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        self.reads += 1
        return await super().ranges_in(number, ranges, limit=limit, reverse=reverse)

    def pubsub(self) -> None:
        """Return None: no test here waits for notifications."""
