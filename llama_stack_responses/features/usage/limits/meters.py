"""Meters of what may be used in a window, of which each server takes parts from the store.

The row `uq/<end of the window>/<name of the meter>` has how much of the limit the servers have taken. A server asks the
store only when its part is used up. Parts are a twentieth of the limit of a minute at most, and an eighth of what is
left, so little is left unused at other servers when the limit is reached. What a response uses beyond what was taken is
taken afterwards, also beyond the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ....store.conflict_retry import ConflictRetry
from ....store.content_names import row_key
from ....store.records import Put, Records, VersionIs, committed
from .windows import Window

PREFIX: Final = "uq/"
_LEFT_SHARE: Final = 1 / 8
_KNOWN_SECONDS: Final = 1.0
"""Seconds for which a server does not ask the store again after there was nothing left."""
_EXPIRY_SECONDS: Final = 3600.0


class Meter:
    """What may be used of one limit.

    Args:
        records: the store.
        clock: returns the time of the store's clock, in seconds since the epoch.
        name: identifies it among all meters.
        limit: how many units may be used in a window.
        window: the windows.

    Attributes:
        limit: as above.
        window: as above.
    """

    __slots__ = (
        "_clock",
        "_end",
        "_free",
        "_held",
        "_left",
        "_lock",
        "_name",
        "_none_until",
        "_records",
        "limit",
        "window",
    )

    def __init__(self, records: Records, clock: Callable[[], float], name: str, limit: int, window: Window) -> None:
        self._records, self._clock, self._name = records, clock, name
        self.limit, self.window = limit, window
        self._lock = asyncio.Lock()
        self._end = 0
        # What this server may use yet, what its running responses are expected to use of that, and what no server has
        # taken as far as this one knows.
        self._left, self._held, self._free = 0, 0, limit
        self._none_until = 0.0

    @property
    def remaining(self) -> int:
        """How much may be used yet, as far as this server knows."""
        self._roll()
        return max(0, min(self.limit, self._free + self._left - self._held))

    @property
    def unused(self) -> int:
        """How much is not used yet, as far as this server knows, without what running responses are expected to use."""
        self._roll()
        return self._free + self._left

    @property
    def seconds_left(self) -> float:
        """Seconds until the window ends."""
        self._roll()
        return max(0.0, self._end - self._clock())

    @property
    def end(self) -> int:
        """When the window ends, in seconds since the epoch."""
        self._roll()
        return self._end

    @property
    def is_held(self) -> bool:
        """Whether something is left, which running responses are expected to use: some of it may stay unused."""
        self._roll()
        return self._held > 0 and self._left > 0

    @property
    def owes(self) -> bool:
        """Whether more was used than this server has taken."""
        return self._left < 0

    async def hold(self, units: int) -> bool:
        """Hold units that are expected to be used; return False if there are not so many.

        Raises:
            ApiError: 503, the store does not answer.
        """
        self._roll()
        if self._left - self._held < units and self._clock() >= self._none_until:
            async with self._lock:
                await self._take_room(units)
        if self._left - self._held < units:
            return False
        self._held += units
        return True

    async def _take_room(self, units: int) -> None:
        """Take what is missing, as long as there is some: responses that end meanwhile may use more than was held."""
        while True:
            self._roll()
            if self._left - self._held >= units:
                return
            await self._take(units)
            if self._free <= 0:
                self._none_until = self._clock() + _KNOWN_SECONDS
                return

    def release(self, units: int) -> None:
        """Hold units no longer."""
        self._held -= units

    def use(self, units: int) -> None:
        """Count units as used."""
        self._roll()
        self._left -= units

    async def settle(self) -> None:
        """Take what was used beyond what this server had taken.

        Raises:
            ApiError: 503, the store does not answer.
        """
        async with self._lock:
            self._roll()
            if self.owes:
                await self._take(0)

    async def look(self) -> None:
        """Read what all servers have taken.

        Raises:
            ApiError: 503, the store does not answer.
        """
        async with self._lock:
            self._roll()
            await self._change(lambda _: max(0, -self._left))

    async def give_back(self) -> None:
        """Give back what is not used.

        Raises:
            ApiError: 503, the store does not answer.
        """
        async with self._lock:
            self._roll()
            if self._left > 0:
                await self._change(lambda _: -self._left)

    def _roll(self) -> None:
        """Begin the window of the present time."""
        now = self._clock()
        # A clock that was ahead is set back.
        if not self._end - self.window.longest <= now < self._end:
            self._end = self.window.end(now)
            self._left, self._free, self._none_until = 0, self.limit, 0.0

    async def _take(self, units: int) -> None:
        missing = max(0, units + self._held - self._left)
        owed = max(0, -self._left)

        def part(free: int) -> int:
            most = min(int(self.limit * self.window.share), int(free * _LEFT_SHARE))
            return max(owed, min(free, max(missing, most)))

        await self._change(part)

    async def _change(self, part: Callable[[int], int]) -> None:
        """Take a part of what is free: `part` returns it, or a negative number to give back."""
        end, key = self._end, row_key(f"{PREFIX}{self._end:08x}/", self._name)
        retry = ConflictRetry()
        while True:
            await retry.wait()
            row = (await self._records.get_many([key])).get(key)
            taken = int(row.value) if row else 0
            more = part(self.limit - taken)
            put = Put(key, b"%d" % (taken + more), expires_at=end + _EXPIRY_SECONDS)
            if not more or await committed(self._records, [put], [VersionIs(key, row.version if row else None)]):
                break
        if end == self._end:
            self._left += more
            self._free = self.limit - taken - more
