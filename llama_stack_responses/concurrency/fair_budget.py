"""Units that users share fairly, such as slots or bytes, for work that waits until there are enough."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final

from .share import Share, current_share
from .waiting_work import Precedence, WaitingWork

WAITING_PER_USER: Final = 256
"""Pieces of work of one user that may wait, if no setting says how many."""


class QueueFull(Exception):  # noqa: N818 (a normal result, not an error of this program)
    """Too much work of the user waits already."""


class _Work:
    """Waiting work."""

    __slots__ = ("granted", "units")

    def __init__(self, units: int) -> None:
        self.units = units
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class FairBudget:
    """Units that concurrent pieces of work of one event loop may hold.

    The users of waiting work (`Share`) take turns, as `WaitingWork` says. Without authentication there is one user, who
    may hold all units.

    Args:
        total: units. Work that needs more is admitted alone.
        per_user: units that one user may hold at a time; None for all.
        waiting_per_user: pieces of work of one user that may wait; None for any number.

    Attributes:
        total: as above.
        left: units that are not held; negative if some were taken beyond the total.
        waiting: pieces of work that wait.
    """

    def __init__(self, total: int, per_user: int | None = None, waiting_per_user: int | None = None) -> None:
        self.total = self.left = total
        self.waiting = 0
        self._per_user = total if per_user is None else per_user
        self._waiting_per_user = waiting_per_user
        self._held: Counter[Hashable] = Counter()
        self._works: WaitingWork[_Work] = WaitingWork()

    @property
    def is_idle(self) -> bool:
        """Whether no unit is held."""
        return not self._held

    def has_room(self, units: int) -> bool:
        """Return whether work of the server itself that needs these units would not wait."""
        return not self._works and min(units, self.total) <= self.left

    @asynccontextmanager
    async def hold(self, units: int) -> AsyncIterator[None]:
        """Hold units during the block, and wait until they are free.

        Raises:
            QueueFull: too much work of this user waits.
        """
        share = await self.enter(units)
        try:
            yield
        finally:
            self.leave(share, units)

    async def enter(self, units: int = 1, precedence: Precedence = Precedence.NEW, *, may_refuse: bool = True) -> Share:
        """Wait for units; return whose they are. `leave` gives them back.

        Args:
            units: how many.
            precedence: which work of the same user goes first.
            may_refuse: whether too much waiting work of the user is a reason to refuse this.

        Raises:
            QueueFull: too much work of this user waits.
        """
        if share := self.enter_at_once(units):
            return share
        share, work = current_share(), _Work(units)
        self._works.add(work, share, precedence)
        self.waiting += 1
        try:
            self._admit()
            if may_refuse and not work.granted.done() and self._is_full(share):
                raise QueueFull
            await work.granted
        except (asyncio.CancelledError, QueueFull):
            self._give_up(work, share)
            raise
        return share

    def enter_at_once(self, units: int = 1) -> Share | None:
        """Take units and return whose they are; None if too few are free or other work waits."""
        share = current_share()
        if not self.has_room(units) or not self._fits(share, units):
            return None
        self._take(share, units)
        return share

    def enter_beyond(self, units: int = 1) -> Share:
        """Take units at once, beyond the total if none are left, for work that would wait for itself."""
        share = current_share()
        self._take(share, units)
        return share

    def leave(self, share: Share, units: int = 1) -> None:
        """Give units back."""
        units = min(units, self.total)
        self.left += units
        self._held[share.user] -= units
        if not self._held[share.user]:
            del self._held[share.user]
        self._admit()

    def _admit(self) -> None:
        while (turn := self._works.next(self._held.__getitem__, self._may_go)) is not None:
            share, work = turn
            if min(work.units, self.total) > self.left:
                return  # small work does not overtake it
            self.waiting -= 1
            if work.granted.done():  # cancelled, and its task has not run since
                self._works.remove(work, share.user)
                continue
            self._works.take(share.user)
            self._take(share, work.units)
            work.granted.set_result(None)

    def _give_up(self, work: _Work, share: Share) -> None:
        """Let others go on in place of work that waits no longer."""
        if self._works.remove(work, share.user):
            self.waiting -= 1
            self._admit()
        elif work.granted.done() and not work.granted.cancelled():
            self.leave(share, work.units)

    def _may_go(self, share: Share, work: _Work) -> bool:
        return self._fits(share, work.units)

    def _fits(self, share: Share, units: int) -> bool:
        held = self._held[share.user]
        return not held or held + units <= (self.total if share.may_have_all else self._per_user)

    def _is_full(self, share: Share) -> bool:
        return self._waiting_per_user is not None and self._works.count(share.user) > self._waiting_per_user

    def _take(self, share: Share, units: int) -> None:
        units = min(units, self.total)
        self.left -= units
        self._held[share.user] += units
