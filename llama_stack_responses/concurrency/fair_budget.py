"""Units that owners share fairly, such as places or bytes, for work that waits until there are enough."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final

from ..core.owner import ANONYMOUS

WAITING_PER_USER: Final = 256
"""Pieces of work of one owner that may wait, if no setting says how many."""


class QueueFull(Exception):  # noqa: N818 (a normal result, not an error of this program)
    """Too much work of the owner waits already."""


class FairBudget:
    """Units that concurrent pieces of work of one event loop may hold.

    The owners of waiting work take turns; the work of one owner is admitted in order. The owner of a server without
    authentication, which has no other owner, may hold all units.

    Args:
        total: units. Work that needs more is admitted alone.
        per_user: units that one owner may hold at a time; None for all.
        waiting_per_user: pieces of work of one owner that may wait; None for any number.

    Attributes:
        total: as above.
        left: units that are not held.
    """

    def __init__(self, total: int, per_user: int | None = None, waiting_per_user: int | None = None) -> None:
        self.total = self.left = total
        self._per_user = total if per_user is None else per_user
        self._waiting_per_user = waiting_per_user
        self._held: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()

    @property
    def is_idle(self) -> bool:
        """Whether no unit is held."""
        return not self._held

    def has_room(self, units: int) -> bool:
        """Return whether work without an owner that needs these units would not wait."""
        return not self._waiting and min(units, self.total) <= self.left

    @asynccontextmanager
    async def hold(self, units: int, owner: Hashable = None) -> AsyncIterator[None]:
        """Hold units during the block, and wait until they are free.

        Raises:
            QueueFull: too much work of this owner waits.
        """
        await self.enter(owner, units)
        try:
            yield
        finally:
            self.leave(owner, units)

    async def enter(self, owner: Hashable, units: int = 1) -> None:
        """Wait for units. `leave` gives them back.

        Raises:
            QueueFull: too much work of this owner waits.
        """
        if not self._waiting and self._fits(owner, units) and self.has_room(units):
            self._take(owner, units)
            return
        waiting = self._waiting.setdefault(owner, deque())
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = units, granted
        waiting.append(entry)
        self._admit()
        if self._waiting_per_user is not None and not granted.done() and len(waiting) > self._waiting_per_user:
            self._forget(owner, entry)
            raise QueueFull
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.leave(owner, units)
            else:
                self._forget(owner, entry)
            raise

    def leave(self, owner: Hashable, units: int = 1) -> None:
        """Give units back."""
        units = min(units, self.total)
        self.left += units
        self._held[owner] -= units
        if not self._held[owner]:
            del self._held[owner]
        self._admit()

    def _admit(self) -> None:
        while (turn := self._next()) is not None:
            [owner] = turn
            units, granted = self._waiting[owner][0]
            if min(units, self.total) > self.left:
                return  # small work does not overtake it
            waiting = self._waiting.pop(owner)
            waiting.popleft()
            if waiting:
                # The owner goes to the end of the queue of owners.
                self._waiting[owner] = waiting
            if not granted.done():
                self._take(owner, units)
                granted.set_result(None)

    def _next(self) -> tuple[Hashable] | None:
        """Return the next owner within its limit, in a tuple. Owners at their limit hold units, so few are skipped."""
        turns = ((owner,) for owner, waiting in self._waiting.items() if self._fits(owner, waiting[0][0]))
        return next(turns, None)

    def _fits(self, owner: Hashable, units: int) -> bool:
        limit = self._per_user if owner not in (None, ANONYMOUS.identity) else self.total
        return not self._held[owner] or self._held[owner] + units <= limit

    def _take(self, owner: Hashable, units: int) -> None:
        units = min(units, self.total)
        self.left -= units
        self._held[owner] += units

    def _forget(self, owner: Hashable, entry: tuple[int, asyncio.Future[None]]) -> None:
        waiting = self._waiting.get(owner)
        if waiting is not None and entry in waiting:
            waiting.remove(entry)
            if not waiting:
                del self._waiting[owner]
            self._admit()
