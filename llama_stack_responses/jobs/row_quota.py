"""Limits on the number of rows with a prefix: counted in the store, and exact for the writes of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ..core.lru_cache import LruCache
from ..store.records import Records, after_prefix, range_in

_COUNT_SECONDS: Final = 1.0
"""Time for which a count of the rows serves for further rows. It reads all of them."""

_SHARES: Final = 8
"""One of so many parts of the free rows may be admitted without another count, by as many processes at a time."""

_MAX_COUNTS: Final = 1024

type _Key = tuple[str, int | None]


@dataclass(slots=True)
class _Count:
    """What a count of the rows with a prefix has found.

    Attributes:
        rows: how many there may be, with those that were admitted since.
        left: how many more may be admitted without another count.
        until: the time until which it serves.
    """

    rows: int
    left: int
    until: float


@dataclass(slots=True)
class _Prefix:
    """The admissions of one prefix that are in progress.

    Attributes:
        requests: number of requests that are not admitted yet.
        pending: number of rows that were admitted and may not be written yet.
        finished: number of rows that were written, or given up, so far.
        waiters: what to resolve, by the value of `finished` that it waits for.
    """

    requests: int = 0
    pending: int = 0
    finished: int = 0
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    def finish(self) -> None:
        """Note that an admitted row was written or given up."""
        self.pending -= 1
        self.finished += 1
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter[0] > self.finished:
                self.waiters.append(waiter)
            elif not waiter[1].done():
                waiter[1].set_result(None)

    async def wait_pending(self) -> None:
        """Wait until as many rows have finished as are pending now."""
        if self.pending:
            future = asyncio.get_running_loop().create_future()
            self.waiters.append((self.finished + self.pending, future))
            await future


@dataclass(frozen=True, slots=True)
class AdmittedRow:
    """A row that may be written.

    Attributes:
        count: how many rows there may be with it.
        finish: is called after it was written, or its write was abandoned.
    """

    count: int
    finish: Callable[[], None]


class RowQuota:
    """Admits rows before they are written. Each further process may exceed a limit by its concurrent writes.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._prefixes: dict[_Key, _Prefix] = {}
        self._counts: LruCache[_Key, _Count] = LruCache(_MAX_COUNTS)

    async def take(self, prefix: str, limit: int, number: int | None = None) -> AdmittedRow | None:
        """Admit one more row with the prefix; return None if there are `limit` rows already.

        Args:
            number: the partition whose rows count; None for all.

        Raises:
            ApiError: 503, the store does not answer.
        """
        key = prefix, number
        state = self._prefixes.setdefault(key, _Prefix())
        state.requests += 1
        try:
            count = self._take_counted(state, key) or await self._take(state, prefix, limit, number)
        finally:
            state.requests -= 1
            self._forget(key, state)
        return None if count is None else AdmittedRow(count, partial(self._finish, key, state))

    def _take_counted(self, state: _Prefix, key: _Key) -> int | None:
        """Return as `_take` does by a count of a moment ago; None if there is none, or it leaves too few free."""
        count = self._counts.get(key)
        if count is None or not count.left or asyncio.get_running_loop().time() >= count.until:
            return None
        count.left -= 1
        count.rows += 1
        state.pending += 1
        return count.rows

    async def _take(self, state: _Prefix, prefix: str, limit: int, number: int | None) -> int | None:
        """Return how many rows there may be with the new one; None if there are `limit` without it."""
        # A count in the store may or may not include rows that are pending when it ends, or finished while it ran.
        # Where they decide, the rows are counted again after them.
        while True:
            finished = state.finished
            rows = len(await self._rows(prefix, limit, number))
            uncertain = state.pending + state.finished - finished
            if rows + uncertain < limit:
                state.pending += 1
                count = rows + uncertain + 1
                until = asyncio.get_running_loop().time() + _COUNT_SECONDS
                self._counts.set((prefix, number), _Count(count, (limit - count) // _SHARES, until))
                return count
            if rows >= limit or not uncertain:
                return None
            await state.wait_pending()

    async def _rows(self, prefix: str, limit: int, number: int | None) -> Sequence[object]:
        if number is None:
            return await self._records.range(prefix, after_prefix(prefix), limit=limit)
        return await range_in(self._records, number, prefix, after_prefix(prefix), limit=limit)

    def _finish(self, key: _Key, state: _Prefix) -> None:
        state.finish()
        self._forget(key, state)

    def _forget(self, key: _Key, state: _Prefix) -> None:
        if not state.requests and not state.pending:
            self._prefixes.pop(key, None)
