"""Waiting work of several users, in the order of their turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from enum import IntEnum
from itertools import count
from typing import Final

from .share import Share

_OLDEST_FIRST: Final = 8
"""Every so many turns of a user, the work that has waited longest goes first, whatever its precedence."""


class Precedence(IntEnum):
    """Which work of one user goes first. The turns of other users do not depend on it."""

    BEGUN = 0
    """It continues what a client already sees."""
    URGENT = 1
    """A client waits for it that asked for priority."""
    NEW = 2
    """A client waits for it."""
    SOON = 3
    """No client waits for it, but it was asked for with priority."""
    LATER = 4
    """No client waits for it."""


class _Line[Work]:
    """The waiting work of one user.

    Args:
        share: of the user.

    Attributes:
        share: as above.
        tag: when the user's turn is, in virtual time.
    """

    __slots__ = ("_served", "_works", "share", "tag")

    def __init__(self, share: Share) -> None:
        self.share, self.tag = share, 0.0
        self._works: dict[Precedence, deque[tuple[int, Work]]] = {}
        self._served = 0

    def __len__(self) -> int:
        return sum(map(len, self._works.values()))

    def add(self, work: Work, number: int, precedence: Precedence) -> None:
        self._works.setdefault(precedence, deque()).append((number, work))

    def head(self) -> Work:
        return self._works[self._first()][0][1]

    def take(self) -> None:
        self._drop_first(self._first())
        self._served += 1

    def remove(self, work: Work) -> bool:
        for precedence, works in self._works.items():
            for at, (_, each) in enumerate(works):
                if each is work:
                    del works[at]
                    if not works:
                        del self._works[precedence]
                    return True
        return False

    def _first(self) -> Precedence:
        if len(self._works) == 1:
            return next(iter(self._works))
        if self._served % _OLDEST_FIRST == _OLDEST_FIRST - 1:
            return min(self._works, key=lambda each: self._works[each][0][0])
        return min(self._works)

    def _drop_first(self, precedence: Precedence) -> None:
        works = self._works[precedence]
        works.popleft()
        if not works:
            del self._works[precedence]


class WaitingWork[Work]:
    """Work that waits, from which a user is chosen whose turn it is.

    The next turn is that of the user who holds least for their weight. Users who hold the same take turns, as many as
    their weights say (self-clocked fair queueing; Golestani, INFOCOM 1994). A user who comes back has saved nothing up
    and owes nothing. The work of one user goes by its precedence, and else in order.

    A turn takes the time of as many users as hold something and wait too, and of as many different weights.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line[Work]] = {}
        self._by_weight: dict[float, OrderedDict[Hashable, _Line[Work]]] = {}
        self._time = 0.0  # virtual
        self._number = count()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def count(self, user: Hashable) -> int:
        """Return how many pieces of work of a user wait."""
        line = self._lines.get(user)
        return len(line) if line else 0

    def add(self, work: Work, share: Share, precedence: Precedence = Precedence.NEW) -> None:
        """Add a piece of work."""
        line = self._lines.get(share.user)
        if line is None:
            line = self._lines[share.user] = _Line(share)
            self._append(line)
        line.add(work, next(self._number), precedence)

    def next(
        self, held: Callable[[Hashable], int] | None = None, fits: Callable[[Share, Work], bool] | None = None
    ) -> tuple[Share, Work] | None:
        """Return the next piece of work, which goes on waiting; None if none may go.

        Args:
            held: returns how much a user holds; None if no user holds anything.
            fits: returns whether a user may have what a piece of work needs.
        """
        best: tuple[float, float] | None = None
        chosen: _Line[Work] | None = None
        for lines in self._by_weight.values():
            for user, line in lines.items():
                holding = held(user) if held else 0
                if fits and not fits(line.share, line.head()):
                    continue
                rank = holding / line.share.weight, line.tag
                if best is None or rank < best:
                    best, chosen = rank, line
                if not holding:
                    break  # those behind hold no less, and their turns come later
        return (chosen.share, chosen.head()) if chosen else None

    def take(self, user: Hashable) -> None:
        """Take out what `next` has returned for this user, whose next turn comes after those of the others."""
        line = self._lines[user]
        line.take()
        self._time = max(self._time, line.tag)
        del self._by_weight[line.share.weight][user]
        if line:
            self._append(line)
        else:
            self._forget(line)

    def remove(self, work: Work, user: Hashable) -> bool:
        """Take out a piece of work that waits no longer; return False if it was taken before."""
        line = self._lines.get(user)
        if line is None or not line.remove(work):
            return False
        if not line:
            del self._by_weight[line.share.weight][user]
            self._forget(line)
        return True

    def _append(self, line: _Line[Work]) -> None:
        line.tag = self._time + 1 / line.share.weight
        self._by_weight.setdefault(line.share.weight, OrderedDict())[line.share.user] = line

    def _forget(self, line: _Line[Work]) -> None:
        del self._lines[line.share.user]
        if not self._by_weight[line.share.weight]:
            del self._by_weight[line.share.weight]
