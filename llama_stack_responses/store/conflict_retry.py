"""Retries of a commit that concurrent commits prevent."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from ..core.errors import ApiError

_MAX_TRIES: Final = 32
_IMMEDIATE_TRIES: Final = 2
"""Tries without a pause: usually there is only one concurrent commit."""
_PAUSES: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Maximum seconds before each further try; the last applies to all later ones. Jitter keeps competing commits apart."""


class ConflictRetry:
    """The tries of one commit."""

    def __init__(self) -> None:
        self._tries = 0

    async def wait(self) -> None:
        """Wait until the next try is due.

        Raises:
            ApiError: 503, if there were too many.
        """
        if self._tries == _MAX_TRIES:
            message = "The response store is busy: other requests keep changing the same records."
            raise ApiError(503, message, retry_after=1)
        if self._tries >= _IMMEDIATE_TRIES:
            longest = _PAUSES[min(self._tries - _IMMEDIATE_TRIES, len(_PAUSES) - 1)]
            await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 (no secret)
        self._tries += 1
