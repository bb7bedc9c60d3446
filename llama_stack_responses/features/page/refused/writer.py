"""Writes the rows of refused requests, together and outside of the requests."""

from __future__ import annotations

from collections import deque
from typing import Final

from ....core.errors import ApiError
from ....core.lru_cache import LruCache
from ....core.owner import Owner
from ....feature import Refused
from ....lifecycle.periodic import Periodic
from ....logs import get_logger
from ....store.placement import Placement
from ....store.records import Put, Records, partitions_of
from .fields import put_of
from .rows import RefusedRequests

logger = get_logger(__name__)

_SECONDS: Final = 1.0
"""Seconds between two commits of what waits. A server that is killed loses it."""
_WAITING_PER_USER: Final = 50
_WAITING_USERS: Final = 256
"""What waits for a commit at most: the newest of a user, and those of so many users."""
_KNOWN_USERS: Final = 10_000


class RefusedWriter(Periodic):
    """Keeps the refused requests of users in the store, a bounded number of each user.

    Args:
        records: the store.
        days: days for which they are kept.
        per_user: the newest of each user that are kept; up to a tenth more until older ones are deleted.
    """

    def __init__(self, records: Records, days: float, per_user: int) -> None:
        super().__init__(self.write, "could not keep refused requests", logger, _SECONDS)
        self._records, self._days, self._per_user = records, days, per_user
        self._rows, self._placement = RefusedRequests(records), Placement(partitions_of(records))
        self._waiting: dict[tuple[str, str], tuple[Owner, deque[Put]]] = {}
        self._written = LruCache[tuple[str, str], int](_KNOWN_USERS)

    def add(self, refused: Refused) -> None:
        """Keep a refused request within a second."""
        user = refused.owner.identity
        if user not in self._waiting and len(self._waiting) >= _WAITING_USERS:
            return
        _, waiting = self._waiting.setdefault(user, (refused.owner, deque(maxlen=_WAITING_PER_USER)))
        waiting.append(put_of(refused, self._days, self._placement.of_owner(refused.owner)))

    async def write(self) -> None:
        """Write what waits.

        Raises:
            ApiError: 503, the store does not answer; it is written the next time.
        """
        for user in list(self._waiting):
            owner, puts = self._waiting.pop(user)
            try:
                await self._records.commit(list(puts))
            except ApiError:
                newer = self._waiting.get(user, (owner, ()))[1]
                self._waiting[user] = owner, deque([*puts, *newer], _WAITING_PER_USER)
                raise
            await self._bound(owner, len(puts))

    async def stop(self) -> None:
        """Write what waits, if the store answers, and end."""
        await super().stop()
        try:
            await self.write()
        except ApiError as error:
            logger.warning("could not keep refused requests: %s", error)

    async def _bound(self, owner: Owner, written: int) -> None:
        """Delete a user's oldest rows once enough were written; first when this server writes the first one."""
        known = self._written.get(owner.identity)
        total = self._per_user if known is None else known + written
        if total >= self._per_user // 10:
            await self._rows.keep_newest(owner, self._per_user)
            total = 0
        self._written.set(owner.identity, total)
