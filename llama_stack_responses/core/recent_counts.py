"""Counts of what happened moments ago, by key, within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable

from .lru_cache import LruCache


class RecentCounts[Key]:
    """Counts events by key. The count of a key begins anew at the first event after its time is over.

    Args:
        seconds: the time for which a count holds, from its first event on.
        max_keys: keys that are counted; further ones replace the least recently used.
        clock: returns seconds.
    """

    def __init__(self, seconds: float, max_keys: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._counts: LruCache[Key, tuple[float, int]] = LruCache(max_keys)

    def add(self, key: Key) -> int:
        """Count an event; return the count of its key, which has this event."""
        now = self._clock()
        since, count = self._counts.get(key) or (now, 0)
        if now - since > self._seconds:
            since, count = now, 0
        self._counts.set(key, (since, count + 1))
        return count + 1
