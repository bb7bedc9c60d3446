"""Answers the host's auth for the tokens of keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...core.access import AcceptedToken
from ...core.errors import ApiError
from ...core.lru_cache import LruCache
from ...store.access_keys import AccessKeys

_MAX_USES: Final = 4096


class KeyAuthentication:
    """Authenticates tokens, and writes now and then which keys are used.

    Args:
        keys: the keys.
        use_seconds: time for which a use is not written again.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, keys: AccessKeys, use_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._use_seconds = use_seconds
        self._clock = clock
        self._written: LruCache[str, float] = LruCache(_MAX_USES)

    async def authenticate(self, token: str) -> AcceptedToken | None:
        """Return the user of a token; None if it is refused.

        Raises:
            ApiError: 503, the store is unavailable.
        """
        accepted = await self._keys.authenticate(token)
        if accepted is None:
            return None
        await self._write_use(accepted.key.id)
        return AcceptedToken(accepted.key.user, accepted.seconds)

    async def _write_use(self, key_id: str) -> None:
        now, written = self._clock(), self._written.get(key_id)
        if written is not None and now - written < self._use_seconds:
            return
        self._written.set(key_id, now)
        # A store that can be read but not written is no reason to refuse a user.
        with suppress(ApiError):
            await self._keys.used(key_id)
