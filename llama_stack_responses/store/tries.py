"""How often a commit is tried that others get in the way of."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from ..core.errors import ApiError

_TRIES: Final = 32
_AT_ONCE: Final = 2
"""Tries that follow one another at once: mostly there is only one other."""
_PAUSES: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Seconds, at most, before the next ones; the last goes for all further ones. By chance, so that others come apart."""


class Tries:
    """The tries at one commit."""

    def __init__(self) -> None:
        self._made = 0

    async def another(self) -> None:
        """Waits until it is time for the next.

        Raises:
            ApiError: 503, if there have been enough.
        """
        if self._made == _TRIES:
            message = "The response store is busy: others keep changing the same conversation."
            raise ApiError(503, message, retry_after=1)
        if self._made >= _AT_ONCE:
            longest = _PAUSES[min(self._made - _AT_ONCE, len(_PAUSES) - 1)]
            await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 (no secret)
        self._made += 1
