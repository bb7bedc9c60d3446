"""Slots of running responses, of which each server takes some from the store for a short time.

The row `ur/<name of the slots>` has how many slots each server has taken, and until when. A server renews its slots
while it uses them, and gives back the others. Those of a server that was killed are free when their time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ....store import codec
from ....store.conflict_retry import ConflictRetry
from ....store.content_names import row_key
from ....store.records import Put, Record, Records, VersionIs, committed

PREFIX: Final = "ur/"
SECONDS: Final = 30.0
"""Seconds for which slots are taken."""
_SHARE: Final = 1 / 8
"""The largest part of the free slots that a server takes at once."""
_KNOWN_SECONDS: Final = 0.2
"""Seconds for which a server does not ask the store again after no slot was free."""


class Slots:
    """The slots of one limit.

    Args:
        records: the store.
        clock: returns the time of the store's clock, in seconds since the epoch.
        server: identifies this server.
        name: identifies the slots among all.
        limit: how many there are.
    """

    __slots__ = ("_clock", "_key", "_lock", "_none_until", "_records", "_server", "_taken", "_until", "_used", "limit")

    def __init__(self, records: Records, clock: Callable[[], float], server: str, name: str, limit: int) -> None:
        self._records, self._clock, self._server = records, clock, server
        self._key, self.limit = row_key(PREFIX, name), limit
        self._lock = asyncio.Lock()
        self._taken = self._used = 0
        self._until = self._none_until = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether this server has taken none."""
        return not (self._taken or self._used)

    async def acquire(self) -> bool:
        """Use a slot; return False if none is free.

        Raises:
            ApiError: 503, the store does not answer.
        """
        if not self._has_free:
            if self._clock() < self._none_until:
                return False
            async with self._lock:
                if not self._has_free:
                    await self._change(lambda free: max(self._used + 1, self._taken + int(free * _SHARE)))
            if not self._has_free:
                self._none_until = self._clock() + _KNOWN_SECONDS
                return False
        self._used += 1
        return True

    def use_anyway(self) -> None:
        """Use a slot although the store does not answer."""
        self._used += 1

    def release(self) -> None:
        """Use a slot no longer."""
        self._used -= 1

    async def renew(self) -> None:
        """Keep the slots that are in use, and give back the others.

        Raises:
            ApiError: 503, the store does not answer.
        """
        async with self._lock:
            if not self.is_idle:
                await self._change(lambda _: self._used)

    @property
    def _has_free(self) -> bool:
        return self._taken > self._used and self._clock() < self._until

    async def _change(self, wanted: Callable[[int], int]) -> None:
        """Take as many slots as are wanted and free; those in use stay taken.

        Args:
            wanted: returns the number of slots for this server, given the number of free ones.
        """
        retry = ConflictRetry()
        while True:
            await retry.wait()
            now = self._clock()
            row = (await self._records.get_many([self._key])).get(self._key)
            others = {name: each for name, each in _stored(row).items() if each[1] > now and name != self._server}
            free = self.limit - sum(count for count, _ in others.values())
            taken = max(self._used, min(free, wanted(max(0, free - self._taken))))
            servers = others | ({self._server: (taken, now + SECONDS)} if taken else {})
            put = Put(self._key, codec.encode(servers, small=True), expires_at=now + SECONDS)
            if await committed(self._records, [put], [VersionIs(self._key, row.version if row else None)]):
                self._taken, self._until = taken, now + SECONDS
                return


def _stored(row: Record | None) -> dict[str, tuple[int, float]]:
    return codec.decode(row.value) if row else {}
