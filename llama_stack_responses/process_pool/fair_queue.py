"""Places that owners share fairly."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable


class QueueFull(Exception):  # noqa: N818 (it is the answer, and no error of ours)
    """The owner has too much waiting already."""


class FairQueue:
    """Hands out places, to one owner after the other where several wait.

    Args:
        places: how many there are.
        per_owner: how many of them one owner may have at a time.
        waiting_per_owner: how many more of an owner's may wait.
        only_owner: one who may have all places, where there is no other.
    """

    def __init__(
        self, places: int, per_owner: int, waiting_per_owner: int, *, only_owner: Hashable | None = None
    ) -> None:
        self._places = self._free = places
        self._only_owner = only_owner
        self._per_owner = per_owner
        self._waiting_per_owner = waiting_per_owner
        self._running: Counter[Hashable] = Counter()
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_idle(self) -> bool:
        """Whether no place is taken."""
        return not self._running

    async def enter(self, owner: Hashable) -> None:
        """Waits for a place; `leave` gives it back.

        Raises:
            QueueFull: too much of this owner's waits.
        """
        waiting = self._waiting.setdefault(owner, deque())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._admit()
        if not turn.done() and len(waiting) > self._waiting_per_owner:
            self._forget(owner, turn)
            raise QueueFull
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(owner)
            else:
                self._forget(owner, turn)
            raise

    def leave(self, owner: Hashable) -> None:
        """Gives a place back."""
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._admit()

    def _admit(self) -> None:
        while self._free and (owner := self._next()) is not None:
            waiting = self._waiting.pop(owner[0])
            turn = waiting.popleft()
            if waiting:
                # Behind the other owners that wait.
                self._waiting[owner[0]] = waiting
            if not turn.done():
                self._free -= 1
                self._running[owner[0]] += 1
                turn.set_result(None)

    def _next(self) -> tuple[Hashable] | None:
        """The owner whose turn it is. Those before it have all that they may have, so they are no more than places."""
        return next(((each,) for each in self._waiting if self._running[each] < self._most(each)), None)

    def _most(self, owner: Hashable) -> int:
        return self._places if owner == self._only_owner else self._per_owner

    def _forget(self, owner: Hashable, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(owner)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._waiting[owner]
