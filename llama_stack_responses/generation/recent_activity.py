"""What this server did in the last hour, for each user, in half minutes. It is lost when the server ends."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from ..core.owner import Owner
from .activity import Activity

SLOT_SECONDS: Final = 30
_SLOTS: Final = 120
_LOOK_SECONDS: Final = 5.0
"""Interval between two looks at how many responses run."""

_OWNERS_AT_ONCE: Final = 64
"""Users who are counted before the event loop does other things."""

_COUNTED: Final = ("requests", "failed", "output_tokens", "events", "first_tokens", "first_tokens_ms")
_WIDTH: Final = 2 + len(_COUNTED)
"""Numbers of a slot: its number, the most responses that ran at once, and the counts."""

type Identity = tuple[str, str]


class _OfOwner:
    """The slots of one user, in a ring of fixed size, and the totals at the end of the last one."""

    __slots__ = ("last", "peak", "ring")

    def __init__(self) -> None:
        self.ring = array("d", bytes(8 * _WIDTH * _SLOTS))
        self.last = (0.0,) * len(_COUNTED)
        self.peak = 0

    def close(self, slot: int, totals: tuple[float, ...], running: int) -> None:
        """Write a slot, and begin the next one."""
        at = (slot % _SLOTS) * _WIDTH
        self.ring[at : at + _WIDTH] = array("d", (slot, max(self.peak, running), *self.since(totals)))
        self.last, self.peak = totals, running

    def since(self, totals: tuple[float, ...]) -> Iterator[float]:
        """Return what was counted since the last slot. Counts begin again if the user was dropped in between."""
        last = self.last if totals[0] >= self.last[0] else (0.0,) * len(totals)
        return (now - before for now, before in zip(totals, last, strict=True))

    def slots(self, oldest: int, newest: int) -> list[tuple[float, ...]]:
        """Return the slots with something in them, oldest first."""
        rows = (tuple(self.ring[at : at + _WIDTH]) for at in range(0, len(self.ring), _WIDTH))
        return sorted(row for row in rows if oldest <= row[0] <= newest and any(row[1:]))


class RecentActivity:
    """Keeps what a server has counted.

    Args:
        activity: what the server counts.
        clock: returns seconds since the epoch.

    Attributes:
        since: when it began to keep it.
    """

    def __init__(self, activity: Activity, clock: Callable[[], float] = time.time) -> None:
        self._activity = activity
        self._clock = clock
        self.since = round(clock(), 1)
        self._slot = self._number()
        self._owners: dict[Identity, _OfOwner] = {}

    async def keep_looking(self) -> None:
        """Look again and again, until the task is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Note how many responses run and which are quiet, and write the slot if it is over."""
        now = self._clock()
        for identity, running in self._activity.running.items():
            for each in running.values():
                each.notice(now)
            if identity in self._owners:
                self._owners[identity].peak = max(self._owners[identity].peak, len(running))
        slot = self._number()
        if slot != self._slot:
            over, self._slot = self._slot, slot
            await self._close(over)

    def of(self, owner: Owner) -> list[dict[str, Any]]:
        """Return what was done for a user in the last hour, without the times in which it was nothing, oldest first."""
        known = self._owners.get(owner.identity)
        now, totals = self._clock(), self._totals(owner.identity)
        rows = known.slots(self._number() - _SLOTS + 1, self._number()) if known else []
        buckets = [_bucket(row, SLOT_SECONDS) for row in rows]
        running = len(self._activity.running.get(owner.identity, ()))
        current = (self._slot, max(known.peak if known else 0, running), *(known or _OfOwner()).since(totals))
        if any(current[1:]):
            buckets.append(_bucket(current, max(1.0, min(SLOT_SECONDS, now - self._slot * SLOT_SECONDS))))
        return buckets

    def _number(self) -> int:
        return int(self._clock() // SLOT_SECONDS)

    def _totals(self, identity: Identity) -> tuple[float, ...]:
        counts = self._activity.totals(identity)
        return tuple(float(getattr(counts, name)) for name in _COUNTED)

    async def _close(self, slot: int) -> None:
        identities = self._activity.owners()
        self._drop(identities)
        for number, identity in enumerate(identities, 1):
            totals = self._totals(identity)
            running = len(self._activity.running.get(identity, ()))
            known = self._owners.get(identity)
            if known is None and (any(totals) or running):
                known = self._owners[identity] = _OfOwner()
            if known and (running or known.peak or totals != known.last):
                known.close(slot, totals, running)
            if number % _OWNERS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _drop(self, identities: Collection[Identity]) -> None:
        here = frozenset(identities)
        self._owners = {identity: each for identity, each in self._owners.items() if identity in here}


def _bucket(row: tuple[float, ...], seconds: float) -> dict[str, Any]:
    slot, running, *counts = row
    values = dict(zip(_COUNTED, counts, strict=True))
    first = {"count": int(values.pop("first_tokens")), "sum": round(values.pop("first_tokens_ms"), 1)}
    whole = {name: int(value) for name, value in values.items()}
    return {
        "at": int(slot) * SLOT_SECONDS,
        "seconds": round(seconds, 1),
        "running": int(running),
        **whole,
        "first_token_ms": first,
    }
