"""Which models the host does not list."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ..core.lru_cache import LruCache

_SECONDS: Final = 5.0
"""Seconds after which the host is asked again. Its own cache of what other processes register is as old."""
_MAX_MODELS: Final = 1_000
"""Maximum names that are remembered. Clients choose them."""


class ModelLookups:
    """Looks objects up in the host's routing table, and remembers for a few seconds which are not registered.

    The host answers from memory for those that are. For others it opens its registry file, in a new thread, for each
    request; models are used without being listed by `PROVIDER/MODEL`.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._missing: LruCache[tuple[str, str], float] = LruCache(_MAX_MODELS)

    async def find(self, table: Any, kind: str, name: str) -> Any:
        """Return what the table returns for this object; None if it is not registered, or this user may not see it."""
        if self._is_missing(table, kind, name):
            return None
        resource = await table.get_object_by_identifier(kind, name)
        # A user who may not see an object gets None too, so only one that the registry does not know is remembered.
        if resource is None and _cached(table, kind, name) is None:
            self._missing.set((kind, name), self._clock() + _SECONDS)
        return resource

    def _is_missing(self, table: Any, kind: str, name: str) -> bool:
        until = self._missing.get((kind, name))
        return until is not None and self._clock() < until and _cached(table, kind, name) is None


def _cached(table: Any, kind: str, name: str) -> Any:
    """Return the object that the host's registry holds in memory; True if it cannot say."""
    try:
        return table.dist_registry.get_cached(kind, name)
    except (AttributeError, NotImplementedError):
        return True
