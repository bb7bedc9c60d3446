"""Wakes who waits for something in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from math import inf
from typing import Final

SELDOM: Final = 5.0
"""Seconds after which somebody looks who would be told by other processes: what tells them may get lost."""

NAMES: Final = ""
"""What rings when other names are listened for than before."""


class Bell:
    """Rings by name. The rings of other processes come in through a `Lookout`, where the store passes them on."""

    def __init__(self) -> None:
        self._ears: dict[str, set[Ear]] = {}
        self._told: set[str] = set()

    @property
    def names(self) -> set[str]:
        """What is listened for."""
        return self._ears.keys() - {NAMES}

    @contextmanager
    def listen(self, name: str) -> Iterator[Ear]:
        """Hears each ring from here on: whoever looks now, and then waits, misses nothing in between."""
        ear = Ear(name, self._told)
        ears = self._ears.setdefault(name, set())
        ears.add(ear)
        if len(ears) == 1:
            self.ring(NAMES)
        try:
            yield ear
        finally:
            ears.remove(ear)
            if not ears:
                del self._ears[name]
                self.ring(NAMES)

    def ring(self, name: str) -> None:
        """Wakes all that listen for this name."""
        for ear in self._ears.get(name, ()):
            ear.ring()

    def ring_all(self) -> None:
        """Wakes all that listen."""
        for name in self.names:
            self.ring(name)

    def ring_from_outside(self, name: str) -> None:
        """Passes on a ring of another process, or that they come through from now on."""
        self._told.add(name)
        self.ring(name)

    def cut_off(self, names: Collection[str]) -> None:
        """Other processes' rings for these names come through no longer."""
        self._told.difference_update(names)
        for name in names:
            self.ring(name)


class Ear:
    """Somebody who listens for a name. A ring is kept until it is waited for.

    Args:
        told: the names for which other processes ring too.
    """

    def __init__(self, name: str, told: AbstractSet[str]) -> None:
        self._name = name
        self._told = told
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Ends the wait, or the next."""
        self._rung.set()

    async def wait(self, often: float, most: float = inf) -> bool:
        """Waits for a ring; whether there was one.

        Args:
            often: seconds for which to wait if other processes cannot ring; if they can, it is longer.
            most: seconds for which to wait in any case.
        """
        seconds = SELDOM if self._name in self._told else often
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, most)):
                await self._rung.wait()
        rung = self._rung.is_set()
        self._rung.clear()
        return rung
