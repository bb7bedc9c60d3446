"""A bounded set of slots that owners share fairly."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from typing import Final

from ..core.owner import ANONYMOUS

WAITING_PER_USER: Final = 256
"""Requests of one owner that may wait, if no setting says how many."""


class QueueFull(Exception):  # noqa: N818 (a normal result, not an error of this program)
    """The owner has too many waiting requests already."""


class FairQueue:
    """A bounded set of slots, handed out round-robin to the owners that wait.

    The owner of a server without authentication, which has no other owner, may hold all slots.

    Args:
        slots: number of slots.
        per_user: slots that one owner may hold at a time.
        waiting_per_user: further requests of one owner that may wait.
    """

    def __init__(self, slots: int, per_user: int, waiting_per_user: int = WAITING_PER_USER) -> None:
        self._slots = self._free = slots
        self._per_user = per_user
        self._waiting_per_user = waiting_per_user
        self._running: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_idle(self) -> bool:
        """Whether no slot is taken."""
        return not self._running

    async def enter(self, owner: Hashable) -> None:
        """Wait for a slot. `leave` gives it back.

        Raises:
            QueueFull: too many requests of this owner wait.
        """
        waiting = self._waiting.setdefault(owner, deque())
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(slot)
        self._admit()
        if not slot.done() and len(waiting) > self._waiting_per_user:
            self._forget(owner, slot)
            raise QueueFull
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.leave(owner)
            else:
                self._forget(owner, slot)
            raise

    def leave(self, owner: Hashable) -> None:
        """Give a slot back."""
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._admit()

    def _admit(self) -> None:
        while self._free and (owner := self._next()) is not None:
            waiting = self._waiting.pop(owner[0])
            slot = waiting.popleft()
            if waiting:
                # The owner goes to the end of the queue of owners.
                self._waiting[owner[0]] = waiting
            if not slot.done():
                self._free -= 1
                self._running[owner[0]] += 1
                slot.set_result(None)

    def _next(self) -> tuple[Hashable] | None:
        """Return the next owner below its limit, in a tuple. Owners at their limit hold slots, so few are skipped."""
        return next(((each,) for each in self._waiting if self._running[each] < self._limit_of(each)), None)

    def _limit_of(self, owner: Hashable) -> int:
        return self._slots if owner == ANONYMOUS.identity else self._per_user

    def _forget(self, owner: Hashable, slot: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(owner)
        if waiting is not None and slot in waiting:
            waiting.remove(slot)
            if not waiting:
                del self._waiting[owner]
