"""A store that counts the calls of its user, and interrupts them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from llama_stack_responses.store.records import Delete, Op, Record, Records, writes_of


class CountingProxy:
    """Forward calls to `records` and count them.

    Every commit after the first `interrupt` ones fails, as after a kill. `jitter` lets other tasks run before each
    call. `meanwhile` holds the concurrent actions to run before a commit, by its number.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self.transactional = records.transactional
        self.has_own_clock = records.has_own_clock
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

    async def now(self) -> float:
        return await self._records.now()

    async def range(self, *args: Any, **kwargs: Any) -> list[tuple[str, Record]]:
        await self.pause()
        self.reads += 1
        return await self._records.range(*args, **kwargs)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Any] = ()) -> None:
        await self.pause()
        self.commits += 1
        if happens := self.meanwhile.pop(self.commits, None):
            await happens()
        if self.commits > self.interrupt:
            raise InterruptedError
        await self._records.commit(ops, conditions)
        self.written.append([(op.key, type(op)) for op in writes_of(ops)])
        self.bytes += sum(0 if isinstance(op, Delete) else len(op.value) for op in writes_of(ops))

    def pubsub(self) -> None:
        """Return None: no test here waits for notifications."""

    async def size(self) -> int | None:
        return await self._records.size()

    async def sweep(self, now: float) -> int:
        return await self._records.sweep(now)

    async def close(self) -> None:
        await self._records.close()
