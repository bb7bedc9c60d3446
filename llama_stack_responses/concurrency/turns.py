"""Turns of users for work that takes several iterations of the event loop, such as the beginning of a response."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Self

from .fair_budget import FairBudget
from .share import Share
from .waiting_work import Precedence

_ITERATIONS: Final = 24
"""About as many as a response takes to begin."""


class Turns:
    """Lets a few pieces of work go on at a time; the users of those that wait take turns.

    All tasks of an event loop go on one after the other. Without turns, the request of one user would wait in each
    iteration for the two hundred that another one has sent.

    Args:
        at_once: pieces of work that go on at a time.
        per_user: those of one authenticated user. More would take turns with the work of another user as well, which
            goes on in as many iterations as they.
        seconds: the longest turn while the event loop is idle. Work that waits for something else, such as a slow
            server, does not delay other users.
    """

    def __init__(self, at_once: int, per_user: int, seconds: float) -> None:
        self._budget = FairBudget(at_once, per_user)
        self._seconds = seconds

    @property
    def is_idle(self) -> bool:
        """Whether no turn is held."""
        return self._budget.is_idle

    async def take(self, precedence: Precedence = Precedence.NEW) -> Turn:
        """Wait for a turn, and begin it; the caller has to end it."""
        return Turn(self._budget, await self._budget.enter(precedence=precedence), self._seconds)

    async def give_way(self, seconds: float) -> None:
        """Let the waiting work of the current user go first, for this time at most; the caller gets no turn.

        Others who give way go on one after the other, as turns come free.
        """
        if not self._budget.waiting:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                self._budget.leave(await self._budget.enter(precedence=Precedence.LATER))


class Turn:
    """A turn that has begun. As a context manager, it ends with the block.

    Args:
        budget: has admitted it.
        share: whose turn it is.
        seconds: after this time it ends by itself, if other work waits only after some iterations of the event loop.
            While the loop is busy these take longer, as the work does.
    """

    __slots__ = ("_budget", "_iterations", "_share", "_timer")

    def __init__(self, budget: FairBudget, share: Share, seconds: float) -> None:
        self._budget = budget
        self._share = share
        self._iterations = _ITERATIONS
        self._timer: asyncio.Handle | None = asyncio.get_running_loop().call_later(seconds, self._end_later)

    def end(self, _: object = None) -> None:
        """End the turn, unless it has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._budget.leave(self._share)

    def _end_later(self) -> None:
        # Counting costs an iteration each: while nothing waits, there is nothing to delay.
        if not self._iterations or not self._budget.waiting:
            self.end()
            return
        self._iterations -= 1
        self._timer = asyncio.get_running_loop().call_soon(self._end_later)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
