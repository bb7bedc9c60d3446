"""Whether somebody searches in the stack: only then there is an index of words."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ....core.errors import ApiError
from ....store.records import Put, Records

KEY: Final = "sd/wanted"
"""The key of the row that says so to all servers. It has no value, and ends by itself."""

KEPT_DAYS: Final = 28
"""Days after the last search for which the index is kept."""

_DAY: Final = 86_400.0


class Demand:
    """Notes that somebody searches, and knows whether somebody has, on any server of the store.

    Args:
        records: the store.
        clock: returns seconds.

    Attributes:
        wanted: whether somebody has searched, as far as this server knows.
        is_new: whether somebody has searched here since the index was brought up to date.
    """

    def __init__(self, records: Records, clock: Callable[[], float] = time.monotonic) -> None:
        self._records, self._clock = records, clock
        self._renewed: float | None = None
        self.wanted = False
        self.is_new = False

    async def ask(self) -> None:
        """Note a search, in the store once a day."""
        self.is_new = True
        if self._renewed is None or self._clock() - self._renewed >= _DAY:
            with suppress(ApiError):  # A store that cannot be written may be searched; the next search tries again.
                ends = await self._records.now() + KEPT_DAYS * _DAY
                await self._records.commit([Put(KEY, b"", ends)])
                self._renewed, self.wanted = self._clock(), True

    async def look(self) -> None:
        """Read whether somebody has searched on any server.

        Raises:
            ApiError: 503, the store does not answer.
        """
        self.wanted = KEY in await self._records.get_many([KEY])
